"""Checkpoints that are safe to load from a stranger: tensors as safetensors, all else as JSON. No pickle anywhere."""

import json
import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from afield.config.upgrade import upgraded, upgraded_name
from afield.errors import AfieldError
from afield.files import is_pickle, replacing

FORMAT = 1
KEY = "afield"
TENSOR = "$tensor"


@dataclass(frozen=True)
class Checkpoint:
    """A model with what prediction needs (classes, preprocessing, config) and what resuming needs (`state`)."""

    config: dict[str, dict[str, Any]]
    classes: tuple[str, ...]
    sources: tuple[str, ...]
    preprocessing: dict[str, Any]
    step: int
    state: dict[str, Any]
    """A tree of dicts, lists, plain values and tensors; `state["model"]` is the method's state dict."""
    origin: str = ""
    """Where the method was, if it is not part of afield: a hint for the user, never followed."""


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write at once or not at all: a kill leaves the old file."""
    tensors: dict[str, Tensor] = {}
    content = {"format": FORMAT, **asdict(_without_state(checkpoint)), "state": _fold(checkpoint.state, "", tensors)}
    if not checkpoint.origin:
        del content["origin"]
    try:
        with replacing(path) as temporary:
            save_file(tensors, temporary, metadata={KEY: json.dumps(content)})
    except SafetensorError as error:  # how it says that a disk is full
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise AfieldError(f"cannot write checkpoint {path}: {' '.join(str(error).split())}") from error
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint, or raise one line that says why it cannot be one. Runs no code from the file."""
    if not path.is_file():
        raise AfieldError(f"no checkpoint at {path}")
    try:
        with path.open("rb") as file:
            start = file.read(9)
    except OSError as error:
        raise AfieldError(f"cannot read checkpoint {path}: {error.strerror}") from error
    if is_pickle(start):
        raise AfieldError(f"{path} is a pickle or a PyTorch archive, which could run code; afield opens neither")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise AfieldError(f"{path} is truncated, or not a checkpoint of afield") from error
    try:
        content = json.loads(metadata[KEY])
        version = content.pop("format")
    except (KeyError, ValueError, AttributeError, TypeError, RecursionError) as error:
        raise AfieldError(f"{path} is a safetensors file, but not a checkpoint of afield") from error
    if version != FORMAT:
        raise AfieldError(f"{path} has checkpoint format {version}; this version of afield reads format {FORMAT}")
    try:
        content["state"] = _unfold(content["state"], tensors)
        content["state"]["model"] = {upgraded_name(name): value for name, value in content["state"]["model"].items()}
        content["config"] = upgraded(content["config"])
        if not all(isinstance(content[key], list) for key in ("classes", "sources")):
            raise TypeError("classes and sources are not lists")
        if not isinstance(content.get("origin", ""), str):
            raise TypeError("origin is not a text")
        content |= {key: tuple(content[key]) for key in ("classes", "sources")}
        return Checkpoint(**content)
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise AfieldError(f"{path} is damaged: its parts do not fit together ({error})") from error


def _without_state(checkpoint: Checkpoint) -> Checkpoint:
    """For `asdict`, which would copy every tensor."""
    return Checkpoint(**{**vars(checkpoint), "state": {}})


def _fold(tree: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """Move the tree's tensors into `tensors` and leave their names behind. Keys become strings."""
    if isinstance(tree, Tensor):
        # A copy: safetensors refuses memory that two names share, and channels-last memory.
        tensors[path] = tree.detach().cpu().contiguous().clone()
        return {TENSOR: path}
    if isinstance(tree, dict):
        return {str(key): _fold(value, f"{path}/{key}", tensors) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_fold(value, f"{path}/{index}", tensors) for index, value in enumerate(tree)]
    return tree


def _unfold(tree: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(tree, dict):
        if tree.keys() == {TENSOR}:
            return tensors[tree[TENSOR]]
        return {key: _unfold(value, tensors) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_unfold(value, tensors) for value in tree]
    return tree


def optimiser_state(stored: dict[str, Any], parameters: Iterable[str]) -> dict[str, dict[str, Tensor]]:
    """What optimisers remember by the names of parameters, of which a method has these.

    Older files have the state of torch's optimiser, which goes by their numbers.
    """
    if stored.keys() != {"state", "param_groups"}:
        return stored
    names = list(parameters)
    return {names[int(number)]: state for number, state in stored["state"].items()}


def generator_states(device: torch.device) -> dict[str, Tensor]:
    """The states of the global generators that dropout draws from."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def restore_generators(states: dict[str, Tensor], device: torch.device) -> None:
    """Set the global generators to saved states."""
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)
