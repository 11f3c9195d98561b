"""Starting a backbone from a file: safetensors, or what torch.save wrote of tensors alone. No file can run code."""

import pickle
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from afield.errors import AfieldError
from afield.files import is_pickle, is_safetensors
from afield.networks.shapes import on_meta
from afield.networks.weight_names import (
    Tensors,
    is_head,
    named_as_timm,
    named_by_order,
    natural,
    without_prefix,
)

NESTS = ("state_dict", "model_state_dict", "model", "model_ema", "state_dict_ema")
"""Under which names training scripts save a network beside other things."""
OWN_NEST = "/model/"
"""What a checkpoint of afield has before the names of a method's tensors."""
DERIVED = ("num_batches_tracked", "attn_mask", "relative_coords_table")
"""Tensors that a network counts or computes for itself, so that a file need not have them."""
MOST_NAMED = 3


def load_weights(backbone: nn.Module, path: str, name: str, image_size: int) -> None:
    """Fill a backbone with a file's tensors, by timm's names for them or torchvision's; `name` is the backbone's.

    A file's classifier is left out. Tables of positions made for another image size are resampled as timm does it.
    """
    network: nn.Module = getattr(backbone, "model", backbone)  # timm's own: a file has no names of ours
    found = without_prefix(read_tensors(Path(path).expanduser()))
    needed = _needed(network, image_size)
    best: dict[str, list[str]] | None = None
    for tensors in _readings(found, network, needed):
        wrong = _differences(tensors, network, needed)
        if not any(wrong.values()):
            _fill(network, tensors)
            return
        if best is None or sum(map(len, wrong.values())) < sum(map(len, best.values())):
            best = wrong
    wrong = {kind: names for kind, names in (best or {}).items() if names}
    count = sum(map(len, wrong.values()))
    parts = ", ".join(f"{kind} {_some(names)}" for kind, names in wrong.items())
    differ = f"{count} tensors differ" if count > 1 else "one tensor differs"
    raise AfieldError(f"{path} has the weights of another network than '{name}': {differ}: {parts}")


def read_tensors(path: Path) -> Tensors:
    """The tensors of a file by name: in the file's order or, of safetensors, which has none, in that of the names."""
    if not path.is_file():
        raise AfieldError(f"no file of weights at {path}" + (", which is a folder" if path.is_dir() else ""))
    start = b""
    try:
        with path.open("rb") as file:
            start = file.read(9)
        safe = is_safetensors(start)
        with warnings.catch_warnings(action="ignore"):  # of torch, about pickles that it then refuses
            content = load_file(path) if safe else torch.load(path, weights_only=True, map_location="cpu")
    except OSError as error:
        raise AfieldError(f"cannot read weights {path}: {error.strerror or error}") from error
    except Exception as error:  # a file cut short, or of another kind, fails in many ways
        refused = isinstance(error, pickle.UnpicklingError) and "nsupported" in str(error)
        if refused and is_pickle(start):
            raise AfieldError(
                f"{path} holds more than tensors, which could run code, so it is not opened: save a state_dict alone"
            ) from error
        raise AfieldError(f"cannot read weights {path}: it is cut short, or no file of tensors") from error
    tensors = _tensors_in(content)
    if not tensors:
        raise AfieldError(f"{path} has no tensors with names in it")
    return {name: tensors[name] for name in sorted(tensors, key=natural)} if safe else tensors


def _tensors_in(content: Any) -> Tensors:
    """The numbers a network has learned, of a dictionary or of one inside it where training scripts keep them."""
    inside = [content.get(nest) for nest in NESTS] if isinstance(content, Mapping) else []
    for place in (*inside, content):
        found = _numbers(place) if isinstance(place, Mapping) else {}
        if found:
            return found
    return {}


def _numbers(content: Mapping[Any, Any]) -> Tensors:
    tensors = {str(n): t for n, t in content.items() if isinstance(t, Tensor) and t.is_floating_point()}
    own = {n.removeprefix(OWN_NEST): t for n, t in tensors.items() if n.startswith(OWN_NEST)}
    return {name: t for name, t in (own or tensors).items() if name.rpartition(".")[2] not in DERIVED}


def _readings(found: Tensors, network: nn.Module, needed: frozenset[str]) -> Iterator[Tensors]:
    """The tensors under the network's names, in every way in which they can be read."""
    for tensors in (found, named_as_timm(found)):
        # timm knows a file with its own names by the classifier, which ours may come without.
        yield _filtered({"head.fc.weight": torch.zeros(0), **tensors}, network) if needed <= tensors.keys() else tensors
    yield _filtered(found, network)
    if ordered := named_by_order(found, {name: t for name, t in network.state_dict().items() if name in needed}):
        yield ordered


def _filtered(tensors: Tensors, network: nn.Module) -> Tensors:
    """What timm's filter for this network makes of tensors: its authors' names become timm's, tables are resampled."""
    timms_filter = getattr(sys.modules[type(network).__module__], "checkpoint_filter_fn", None)
    try:
        with warnings.catch_warnings(action="ignore"):  # timm's, about code of its own
            return dict(timms_filter(tensors, network)) if timms_filter else tensors
    except Exception:  # these are not the tensors it was written for
        return tensors


def _needed(network: nn.Module, image_size: int) -> frozenset[str]:
    """The names of what has a part in the features: not of layers that timm has between these and the classifier."""
    shapes = on_meta(network).eval().requires_grad_()
    features = getattr(shapes, "forward_features", shapes)(torch.zeros(1, 3, image_size, image_size, device="meta"))
    names, parameters = zip(*shapes.named_parameters(), strict=True)
    slopes = torch.autograd.grad(features.sum(), parameters, allow_unused=True)
    used = {name for name, slope in zip(names, slopes, strict=True) if slope is not None}
    layers = {name.rpartition(".")[0] for name in used}
    statistics = {n for n, _ in shapes.named_buffers() if "running_" in n and n.rpartition(".")[0] in layers}
    return frozenset(used | statistics)


def _differences(tensors: Tensors, network: nn.Module, needed: frozenset[str]) -> dict[str, list[str]]:
    """How the tensors differ from the network's, by kind of difference."""
    own = network.state_dict()
    there = [name for name in own if name in needed and name in tensors]
    shapes = {name: (tuple(tensors[name].shape), tuple(own[name].shape)) for name in there}
    return {
        "of another shape": [f"{n} {given} for {wanted}" for n, (given, wanted) in shapes.items() if given != wanted],
        "missing": [name for name in own if name in needed and name not in tensors],
        "not in the network": [name for name in tensors if name not in own and not is_head(name)],
    }


def _some(names: list[str]) -> str:
    first = ", ".join(names[:MOST_NAMED])
    return f"{len(names)} ({first}{', ...' if len(names) > MOST_NAMED else ''})"


def _fill(network: nn.Module, tensors: Tensors) -> None:
    own = network.state_dict()
    fitting = {n: t for n, t in tensors.items() if n in own and t.shape == own[n].shape}
    network.load_state_dict(fitting, strict=False)
