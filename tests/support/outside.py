"""Methods that are not part of afield, as users write them: in a file, in a module, in an installed package."""

import sys

from afield.config import cards, outside
from afield.methods import registry

METHOD = '''"""A method of a user's own."""

from pydantic import Field
from torch.nn.functional import cross_entropy

import afield


class Options(afield.MethodOptions):
    weight: float = Field(1.0, ge=0, description="weight of the distance")


@afield.register_method("{name}", summary="means pulled together", reference="none")
class Mine(afield.Method):
    Options = Options

    def losses_of(self, F, batch):
        features = self.pool(F)
        means = batch.by_domain(features).mean(dim=1)
        return {{
            "classification": cross_entropy(self.classifier(features[: batch.num_labelled]), batch.labels),
            "distance": self.options.weight * (means - means.mean(dim=0)).square().sum(),
        }}
'''
PACKAGES = ("some_package", "other_package")


def forget():
    """Know no more than a new process does."""
    for name in cards.outside_cards():
        cards.remove_card(name)
        registry._methods.pop(name, None)
    outside._executed.clear()
    for name in [name for name in sys.modules if name.startswith((cards.FILE_MODULE, *PACKAGES))]:
        del sys.modules[name]


def write_file(path, method="from-file"):
    """A file with one method."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(METHOD.format(name=method), "utf-8")


def write_package(folder, package="some_package", method="from-module", text=METHOD):
    """A package with a method in its module `mine`, and where that is."""
    (folder / package).mkdir(parents=True)
    (folder / package / "__init__.py").write_text("", "utf-8")
    (folder / package / "mine.py").write_text(text.format(name=method), "utf-8")
    return f"{package}.mine:Mine"


def install(folder, distribution, entry_points):
    """What an installer writes about a package that has entry points."""
    described = folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
    described.mkdir(parents=True)
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n", "utf-8")
    (described / "entry_points.txt").write_text(f"[afield.methods]\n{entry_points}\n", "utf-8")
