"""A trained method ready for use: load it from a checkpoint and predict on images of any common form."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import Tensor, nn

from afield.app.images import as_images
from afield.config.catalogue import canonical_name, check_there, find_entry
from afield.config.layers import Config, completed, resolve
from afield.config.selectors import check_selector
from afield.data.normalise import Normalise
from afield.data.preprocessing import Preprocessing
from afield.errors import AfieldError
from afield.methods import Method
from afield.methods.create import method_of
from afield.methods.registry import AnyMethod, find_method, name_of
from afield.results.folder import CHOSEN, RunFolder
from afield.training.checkpoint import Checkpoint, load_checkpoint

MOST_IMAGES, MOST_PIXELS = 256, 64 * 224**2
MOST_SOURCES = 1000
MOST_BYTES_COMPUTED = 512 * 2**20
"""The limit for tables that a network computes and no checkpoint has, such as relative positions of patches."""
OURS = "afield."


class Model(nn.Module):
    """A trained method in evaluation mode, without the parts that only training needs.

    `model(images)` takes float tensors (N, 3, size, size) in 0..1 and gives class scores. `model.predict` takes images
    in any form and gives class names; `model.predict_proba` gives the probabilities.
    """

    def __init__(
        self,
        method: Method,
        preprocessing: Preprocessing,
        classes: tuple[str, ...],
        config: Config,
        sources: tuple[str, ...] = (),
        step: int = 0,
    ) -> None:
        super().__init__()
        self.method = method
        self.preprocessing = preprocessing
        self.normalise = Normalise(preprocessing)
        self.classes = classes
        self.config = config
        self.sources, self.step = sources, step
        method.drop_training_parts()
        self.eval()

    def __repr__(self) -> str:
        # A module's own is hundreds of lines; `model.method` shows them.
        size = self.preprocessing.image_size
        parts = f"{len(self.classes)} classes, images of {size} x {size}, step {self.step}"
        return f"Model({self.config.method_name!r}, {self.config.network.backbone!r}, {parts})"

    def forward(self, images: Tensor) -> Tensor:
        """Class scores (N, classes) of images in 0..1."""
        scores: Tensor = self.method(self.normalise(images))
        return scores

    def predict(self, images: Any) -> list[str]:
        """The class of each image: paths, PIL images, arrays or tensors, one or many."""
        return [self.classes[index] for index in self.predict_proba(images).argmax(dim=1).tolist()]

    @torch.inference_mode()
    def predict_proba(self, images: Any) -> Tensor:
        """Class probabilities (N, classes) of images in any form."""
        device = next(self.parameters()).device
        chunks = _chunks(as_images(images, self.preprocessing.image_size, self.preprocessing.oblong), self.chunk)
        probabilities = [self(torch.stack(chunk).to(device)).softmax(dim=1).cpu() for chunk in chunks]
        return torch.cat(probabilities) if probabilities else torch.zeros(0, len(self.classes))

    @property
    def chunk(self) -> int:
        """How many images it looks at together: fewer of large ones, so that memory stays the same."""
        return min(MOST_IMAGES, max(1, MOST_PIXELS // self.preprocessing.image_size**2))


def check_numbers(probabilities: Tensor) -> None:
    """Raise if a network predicts nothing that could be shown or compared."""
    if not probabilities.isfinite().all():
        raise AfieldError("the model predicts probabilities that are no numbers; its training may have diverged")


def load(path: str | Path, *, selector: str | None = None, method: AnyMethod | None = None) -> Model:
    """The model of a checkpoint, or of a run's folder, on the CPU.

    Of a folder it is the checkpoint at the end of training or, with a `selector`, the one that it chose; the run keeps
    those that `training.keep` names.
    Safe with files from strangers; anything but a checkpoint is an error. So a checkpoint never imports a method that
    is not part of afield: unless it is registered already, `method` says again where it is, as for `afield.train`.
    """
    file = find_checkpoint(Path(path), selector)
    checkpoint = load_checkpoint(file)
    check_method(file, checkpoint, None if method is None else name_of(method))
    try:
        config = resolve(completed(checkpoint.config, importing=True))
        preprocessing = TypeAdapter(Preprocessing).validate_json(json.dumps(checkpoint.preprocessing), strict=True)
        if not all(isinstance(name, str) for name in checkpoint.classes):
            raise AfieldError("its classes are not names")
        if not all(map(isfinite, (*preprocessing.mean, *preprocessing.std))) or min(preprocessing.std) <= 0:
            raise AfieldError("its normalisation divides by zero, or is no number")
        filled = _filled(checkpoint, config, preprocessing.image_size)
    except (AfieldError, RuntimeError, KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else " ".join(str(error).split())[:200]
        raise AfieldError(f"{file} is damaged or from another version of afield: {reason}") from error
    return Model(filled, preprocessing, checkpoint.classes, config, checkpoint.sources, checkpoint.step)


def check_method(file: Path, checkpoint: Checkpoint, given: str | None) -> None:
    """Raise unless a checkpoint's method is known here, and is the one that the user has named, if any."""
    section = checkpoint.config.get("method") if isinstance(checkpoint.config, dict) else None
    name = section.get("name") if isinstance(section, dict) else None
    if given is not None and canonical_name(given) != name:
        raise AfieldError(f"{file} is of method '{name}', not '{given}'")
    check_there(f"{file}: its", name, checkpoint.origin)


def find_checkpoint(path: Path, selector: str | None = None) -> Path:
    """The file itself or, of a run's folder, the checkpoint that a selector chose; without one the last."""
    if selector is not None:
        check_selector(selector)
    if not path.is_dir():
        if selector is not None:
            raise AfieldError(f"a selector chooses among the checkpoints in a run's folder, and {path} is not a folder")
        return path
    folder = RunFolder(path)
    file = folder.checkpoint(selector or "last")
    if file.is_file():
        return file
    if not folder.holds_run and selector is None and (path / CHOSEN).is_file():  # of a comparison
        return path / CHOSEN
    if not folder.kept:
        raise AfieldError(f"no checkpoint in folder {path}: a run's folder has a {folder.last.name}")
    kept = ", ".join(folder.kept)
    raise AfieldError(f"{path} has no checkpoint of '{selector}', only of {kept}: training.keep says which a run keeps")


def _filled(checkpoint: Checkpoint, config: Config, image_size: int) -> Method:
    """The method with the file's tensors."""
    tensors: dict[str, Tensor] = checkpoint.state["model"]
    if len(checkpoint.sources) > MOST_SOURCES:
        raise AfieldError(f"it asks for {len(checkpoint.sources)} sources")
    build = partial(method_of, config, image_size, len(checkpoint.classes), len(checkpoint.sources), fill_later=True)
    # Weights come from the file: building must not disturb the caller's generators.
    with torch.random.fork_rng(devices=[]):
        _check_shapes(build, tensors, find_method(find_entry(config.method_name).card.name).__module__.startswith(OURS))
        method = build()
    method.load_state_dict(tensors)
    return method


def _check_shapes(build: Callable[[], Method], tensors: dict[str, Tensor], ours: bool) -> None:
    """Raise unless the method that would be built is made of the file's tensors; it is not given memory before."""
    try:
        with torch.device("meta"):  # shapes without values
            method = build()
    except (RuntimeError, NotImplementedError) as error:
        if ours or "meta" not in str(error):
            raise
        return  # a user's own method may look at values while it is built; it is trusted
    expected = {name: tuple(tensor.shape) for name, tensor in method.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    for name in (*expected, *found):
        if expected.get(name) != found.get(name):
            wanted, there = (str(shapes.get(name, "none")) for shapes in (expected, found))
            raise AfieldError(f"of tensor '{name}' its config asks for shape {wanted}, and the file has {there}")
    if sum(tensor.nbytes for name, tensor in method.named_buffers() if name not in found) > MOST_BYTES_COMPUTED:
        raise AfieldError(f"tables of its backbone '{method.shape.network.backbone}' would take too much memory")


def _chunks(items: Iterator[Tensor], size: int) -> Iterator[list[Tensor]]:
    while chunk := list(islice(items, size)):
        yield chunk
