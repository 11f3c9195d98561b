"""The arrows between packages: every import, wherever it stands, goes from a later package to an earlier one."""

import ast
from pathlib import Path
from typing import NamedTuple

import pytest

import afield

PACKAGE = Path(afield.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
FACE = PACKAGE / "__init__.py"
LONGEST = 400

# From the first, which knows no other, to the last, which no other knows. A new package finds its place here.
ORDER = (
    "errors", "files", "precision", "kernels", "config", "data", "networks", "losses", "closed_form", "methods",
    "results", "training", "bench", "analysis", "app", "__main__",
)  # fmt: skip
LOOSE = {"errors", "files", "precision", "__main__"}  # what every package may use; and `python -m afield`
WITH_TORCH = {"batches", "normalise", "residence", "augmentation", "strong_views"}  # of the data package
NEVER = {
    "config": {"torch", "lightning_fabric", "timm"},
    "networks": {"afield.losses", "afield.data"},
    "losses": {"afield.networks", "afield.data"},
    "closed_form": {"torch", "lightning_fabric"},
    "methods": {"afield.training", "afield.results", "lightning_fabric"},
    "results": {"torch", "lightning_fabric", "timm"},
    "training": {"afield.bench", "afield.app"},
}
FILE_MODULES = {"os", "io", "pathlib", "shutil", "tempfile", "glob", "fileinput"}


class Import(NamedTuple):
    """One imported name: `from a.b import c` is (a.b, c), `import a.b` is (a.b, None)."""

    line: int
    module: str
    name: str | None


def imports_in(source: str, package: str = "afield") -> list[Import]:
    """All imports of a file of this package: at the top, in functions, and for the type checker only."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [Import(node.lineno, alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            found += [Import(node.lineno, home_of(module, alias.name), alias.name) for alias in node.names]
    return found


def home_of(module: str, name: str) -> str:
    """The module that a name is imported from; of a name of the public face, the one where it is at home."""
    return f"afield.{afield._HOMES[name]}" if module == "afield" and name in afield._HOMES else module


def imports_of(file: Path) -> list[Import]:
    package = ".".join(("afield", *file.relative_to(PACKAGE).parent.parts))
    return imports_in(file.read_text("utf-8"), package)


def package_of(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def package_named(found: Import) -> str | None:
    """The package an import reaches into, or None if it leaves the package or asks only for the version."""
    parts = found.module.split(".")
    if parts[0] != "afield" or (len(parts) == 1 and found.name == "__version__"):
        return None
    return parts[1] if len(parts) > 1 else found.name or "the public face"


def reaches(found: Import, forbidden: str) -> bool:
    full = f"{found.module}.{found.name}"
    return f"{full}.".startswith(f"{forbidden}.") or f"{found.module}.".startswith(f"{forbidden}.")


def path_in_package(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


def test_a_file_imports_only_from_its_own_package_and_earlier_ones():
    for file in (f for f in FILES if f != FACE):
        own = ORDER.index(package_of(file))
        for found in imports_of(file):
            package = package_named(found)
            if package is not None:
                where = f"line {found.line} of {path_in_package(file)}"
                assert package in ORDER, f"{where} imports from '{package}', which is no package"
                assert ORDER.index(package) <= own, f"{where}: {ORDER[own]} must not know {package}"


@pytest.mark.parametrize("package", NEVER)
def test_a_package_never_imports_what_it_must_not_touch(package):
    for file in (f for f in FILES if package_of(f) == package):
        for found in imports_of(file):
            broken = [forbidden for forbidden in NEVER[package] if reaches(found, forbidden)]
            assert not broken, f"line {found.line} of {path_in_package(file)} imports {broken[0]}"


def module_of(file: Path) -> str:
    return ".".join(("afield", *file.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")


def modules_named(found: Import) -> set[str]:
    """What an import may load: the module itself, a submodule of that name, and the packages above."""
    parts = [*found.module.split("."), *([found.name] if found.name else [])]
    return {".".join(parts[:count]) for count in range(2, len(parts) + 1)}


def test_what_needs_no_torch_never_comes_to_it():
    """Configs, results and the data package apart from its batches: no import, however indirect, leads to torch."""
    by_name = {module_of(file): file for file in FILES if file != FACE}
    light = [name for name, file in by_name.items() if package_of(file) in ("config", "results")]
    light += [n for n, f in by_name.items() if package_of(f) == "data" and f.stem not in WITH_TORCH]
    for start in light:
        seen, waiting = set(), {start}
        while waiting:
            seen |= waiting
            found = [i for name in waiting for i in imports_of(by_name[name])]
            heavy = [i for i in found if any(reaches(i, library) for library in ("torch", "lightning_fabric", "timm"))]
            assert not heavy, f"{start} comes to {heavy[0].module} by way of {', '.join(sorted(seen))}"
            waiting = {name for i in found for name in modules_named(i) if name in by_name} - seen


def test_methods_open_no_files():
    for file in (f for f in FILES if package_of(f) == "methods"):
        for found in imports_of(file):
            if (found.module, found.name) == ("pathlib", "PurePath"):
                continue  # a path that cannot touch a disk
            assert found.module.split(".")[0] not in FILE_MODULES, f"{path_in_package(file)} imports {found.module}"
        calls = [node.func for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, ast.Call)]
        assert not [c for c in calls if isinstance(c, ast.Name) and c.id == "open"], path_in_package(file)


def test_training_knows_no_method_by_name():
    general = {"method", "registry", "create"}
    inside = {f.stem for f in FILES if package_of(f) == "methods"} - general
    for file in (f for f in FILES if package_of(f) == "training"):
        for found in imports_of(file):
            if reaches(found, "afield.methods"):
                named = {*found.module.split("."), found.name}
                assert not named & inside, f"{path_in_package(file)} imports the method {found.module}"


def test_only_the_face_the_methods_package_and_what_follows_a_users_word_import_by_a_computed_name():
    allowed = {"__init__.py", "methods/__init__.py", "config/cards.py", "config/outside.py"}
    for file in FILES:
        computed = {"importlib.import_module", "importlib.__import__"}
        names = {f"{i.module}.{i.name}" for i in imports_of(file)}
        assert path_in_package(file) in allowed or not names & computed, path_in_package(file)


def test_every_package_has_its_place_in_the_order_and_exists():
    assert {package_of(f) for f in FILES if f != FACE} == set(ORDER)


def test_files_are_short_enough_to_read():
    long = {path_in_package(f): n for f in FILES if (n := len(f.read_text("utf-8").splitlines())) > LONGEST}
    assert not long


def test_a_method_file_says_what_it_is():
    for file in (PACKAGE / "methods").glob("*.py"):
        assert (ast.get_docstring(ast.parse(file.read_text("utf-8"))) or "").strip(), path_in_package(file)


def test_the_only_loose_files_are_those_that_every_package_may_use():
    assert {f.stem for f in PACKAGE.glob("*.py") if f != FACE} == LOOSE


def test_imports_are_found_wherever_they_stand():
    source = """
import afield.training.run as r
from afield.config import layers as config
from . import gates
from ..losses.moments import moment_distance
if TYPE_CHECKING:
    from afield.app.cli import app
def late():
    import torch.nn, os
"""
    found = imports_in(source, "afield.networks")
    assert [package_named(i) for i in found] == ["training", "config", "networks", "losses", "app", None, None]
    assert reaches(found[-2], "torch")
    assert reaches(found[1], "afield.config")
    assert not reaches(Import(1, "torchvision", None), "torch")
    assert package_named(Import(1, "afield", "__version__")) is None
