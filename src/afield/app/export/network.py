"""What is exported: from the pixels of square images to class probabilities, and what is said about it."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx import GraphModule

from afield import __version__
from afield.app.model import Model
from afield.errors import AfieldError
from afield.networks import as_convolutions
from afield.results.folder import RunFolder

INPUT, OUTPUT = "images", "probabilities"
BATCHES = (1, 2, 5)
MOST_DIFFERENCE = 1e-4
"""In probability, between torch and what reads the file."""

Pixels = NDArray[np.uint8]
Probabilities = NDArray[np.float32]


class ProbabilityNetwork(nn.Module):
    """Bytes (N, 3, size, size) to class probabilities (N, classes).

    Bytes, because they can be only one thing: floats are in 0..1 for the one and in 0..255 for the other.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        as_convolutions(model)
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Normalised, classified, and brought to probabilities."""
        scores: Tensor = self.model(images)
        return scores.softmax(dim=1)


def described(model: Model, file: Path) -> dict[str, str]:
    """What a file's reader should know: what goes in, what comes out, and where the model comes from."""
    size, config = model.preprocessing.image_size, model.config
    return {
        "classes": json.dumps(model.classes),
        "input": f"{INPUT}: uint8, N x 3 x {size} x {size}, RGB, 0 to 255; normalisation is inside",
        "output": f"{OUTPUT}: float32, N x {len(model.classes)}, in the order of classes",
        "preprocessing": json.dumps(asdict(model.preprocessing)),
        "afield_version": __version__,
        "method": config.method_name,
        "task": config.task.kind,
        "sources": json.dumps(model.sources),
        "target": config.task.target or "",
        "step": str(model.step),
        "selector": _selector(file, model),
        "config": json.dumps(config.as_dict()),
    }


def _selector(file: Path, model: Model) -> str:
    """How the checkpoint was chosen among those of its run, as far as its name and step tell."""
    if file.name == RunFolder(file.parent).best.name:
        return "source-val"
    return "last" if model.step == model.config.training.steps else "none: training had not ended"


def traced(network: ProbabilityNetwork) -> ExportedProgram:
    """The network's operations, for batches of any size; refused where torch cannot follow them."""
    model = network.model
    example = torch.from_numpy(noise(2, model.preprocessing.image_size))
    try:
        with torch.no_grad():
            program = torch.export.export(network, (example,), dynamic_shapes=({0: Dim("batch")},))
    except Exception as error:  # whatever a method's own code, or a backbone's, makes of being followed
        raise refusal(model, error) from error
    for part in program.graph_module.modules():
        for node in part.graph.nodes if isinstance(part, GraphModule) else ():
            node.meta.pop("stack_trace", None)  # it names paths of this machine
    return program


def refusal(model: Model, error: Exception) -> AfieldError:
    """The error for a method that cannot be exported."""
    reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
    names = f"method '{model.config.method_name}' on backbone '{model.config.network.backbone}'"
    return AfieldError(f"{names} cannot be exported: {reason}")


def noise(count: int, size: int) -> Pixels:
    """Images that no two files share, to compare with."""
    return np.random.default_rng(count).integers(0, 256, (count, 3, size, size), np.uint8)


def check_same(network: ProbabilityNetwork, again: Callable[[Pixels], Probabilities], reader: str) -> float:
    """The largest difference in probability between the network and what was read back; too large is an error."""
    largest = 0.0
    for count in BATCHES:
        images = noise(count, network.model.preprocessing.image_size)
        with torch.no_grad():
            expected = network(torch.from_numpy(images)).numpy()
        difference = float(np.abs(again(images) - expected).max())
        if not difference <= MOST_DIFFERENCE:  # true of no number too
            raise AfieldError(
                f"in a batch of {count}, {reader} and torch differ by {difference:.2g} in probability, and "
                f"{MOST_DIFFERENCE:g} is allowed; no file was written"
            )
        largest = max(largest, difference)
    return largest


def check_finite(run: Callable[[Pixels], Probabilities], model: Model) -> None:
    """Raise unless batches of all sizes give probabilities."""
    for count in BATCHES:
        told = run(noise(count, model.preprocessing.image_size))
        if told.shape != (count, len(model.classes)) or not np.allclose(told.sum(axis=1), 1, atol=1e-3):
            raise AfieldError(f"the int8 model gives no probabilities for a batch of {count}; no file was written")
