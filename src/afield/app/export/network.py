"""The network that is exported, from the pixels of square images to class probabilities, and its metadata."""

import io
import json
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx import GraphModule

from afield import __version__
from afield.app.export.formats import Format
from afield.app.model import Model
from afield.config.selectors import LABEL_FREE
from afield.errors import AfieldError
from afield.networks import as_convolutions
from afield.results.folder import RunFolder
from afield.results.records import end_of, read_records

INPUT, OUTPUT = "images", "probabilities"
BATCHES = (1, 2, 5)
MOST_DIFFERENCE = 1e-4
"""The largest allowed difference in a probability between torch and the program that reads the file."""
ADVICE = re.compile(r"\s*[^.!?;]*\bTORCH(_LOGS|DYNAMO)\w*.*")
"""Where torch's errors begin their advice to developers, about environment variables: it is cut off from there."""

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


def described(model: Model, file: Path, kind: Format) -> dict[str, str]:
    """What a file's reader should know: what goes in, what comes out, and where the model comes from.

    Weights alone are no program, so that nothing is said of what goes into it.
    """
    size, config = model.preprocessing.image_size, model.config
    program = {
        "input": f"{INPUT}: uint8, N x 3 x {size} x {size}, RGB, 0 to 255; normalisation is inside",
        "output": f"{OUTPUT}: float32, N x {len(model.classes)}, in the order of classes",
    }
    return {
        "classes": json.dumps(model.classes),
        **({} if kind == "safetensors" else program),
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
    """How the checkpoint was chosen among those of its run, as far as its name, its step and the run's records tell."""
    if file.stem in LABEL_FREE and file.stem != "last":
        return file.stem
    if model.step == model.config.training.steps:
        return "last"
    try:
        end = end_of(read_records(RunFolder(file.parent).records))
    except AfieldError:  # a checkpoint that was taken out of its run's folder
        return "unknown: the run's records are not beside it"
    # With patience a run may end before all its steps.
    return "last" if end and end["step"] == model.step else "none: training had not ended"


def traced(network: ProbabilityNetwork) -> ExportedProgram:
    """The network's operations, for batches of any size; refused where torch cannot follow them."""
    model = network.model
    example = torch.from_numpy(noise(2, model.preprocessing.image_size))
    try:
        with torch.no_grad(), silent():
            program = torch.export.export(network, (example,), dynamic_shapes=({0: Dim("batch")},))
    except Exception as error:  # whatever a method's own code, or a backbone's, makes of being followed
        raise refusal(model, error) from error
    for part in program.graph_module.modules():
        for node in part.graph.nodes if isinstance(part, GraphModule) else ():
            node.meta.pop("stack_trace", None)  # it names paths of this machine
    return program


def refusal(model: Model, error: Exception) -> AfieldError:
    """The error for a method that cannot be exported."""
    first = next(iter(str(error).strip().splitlines()), "")
    reason = ADVICE.sub("", first)[:200] or type(error).__name__
    names = f"method '{model.config.method_name}' on backbone '{model.config.network.backbone}'"
    return AfieldError(f"{names} cannot be exported: {reason}")


@contextmanager
def silent() -> Iterator[None]:
    """Without torch's remarks on its own working, such as a whole graph that it could not complete."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # of all loggers, because each of torch's modules has its own, with its own level
    try:
        with redirect_stderr(io.StringIO()):  # where the graph is printed
            yield
    finally:
        logging.disable(before)


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
