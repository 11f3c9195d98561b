"""The feature maps of drawn images: vectors for divergence and t-SNE, and activation maps to look at."""

from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from afield.analysis.subject import Subject
from afield.data.images import Indices, Pixels
from afield.data.task import LabelledView
from afield.training.evaluation import View

Floats = NDArray[np.floating[Any]]
MOST_MAPPED = 16
"""Images whose activation maps are shown, over all domains."""
UNKNOWN = -1


@dataclass(frozen=True)
class Features:
    """What a method makes of images drawn from each domain; one row per image."""

    domains: tuple[str, ...]
    classes: tuple[str, ...]
    domain: NDArray[np.int64]
    label: NDArray[np.int64]
    """The true class, or UNKNOWN."""
    predicted: NDArray[np.int64]
    pixels: Pixels
    means: dict[str, Floats]
    """By map (F, A, ...), the mean over positions of each channel."""
    pooled: dict[str, Floats]
    """By map, the pooled vector; what the classifier reads, unless a method has layers in between."""


@dataclass(frozen=True)
class Activations:
    """Where in an image the maps are active, of a few images of each domain."""

    domains: list[str]
    """The domain of each image."""
    labels: list[str | None]
    predicted: list[str]
    pixels: Pixels
    maps: dict[str, Floats]
    """By map: (images, height, width), each of Euclidean norm 1."""


def features_of(subject: Subject) -> Features:
    """The features of the images that are drawn."""
    drawn = subject.drawn()
    pixels = np.concatenate([view.images.read(where) for view, where in zip(subject.views, drawn, strict=True)])
    labels = [_labels(view, where) for view, where in zip(subject.views, drawn, strict=True)]
    means: dict[str, list[Tensor]] = {}
    pooled: dict[str, list[Tensor]] = {}
    predicted: list[Tensor] = []
    with torch.inference_mode():
        for inputs in subject.inputs_of(pixels):
            F = subject.method.backbone(inputs)
            predicted.append(subject.method.scores_of(F).argmax(dim=1).cpu())
            for name, features in subject.method.maps_of(F).items():
                means.setdefault(name, []).append(features.mean(dim=(2, 3)).cpu())
                pooled.setdefault(name, []).append(subject.method.pool(features).cpu())
    return Features(
        domains=tuple(subject.domains),
        classes=subject.classes,
        domain=np.repeat(np.arange(len(drawn)), [len(where) for where in drawn]),
        label=np.concatenate(labels),
        predicted=torch.cat(predicted).numpy(),
        pixels=pixels,
        means={name: torch.cat(parts).numpy() for name, parts in means.items()},
        pooled={name: torch.cat(parts).numpy() for name, parts in pooled.items()},
    )


def activations_of(subject: Subject, per_domain: int = 2) -> Activations:
    """The activation maps of a few images of each domain, of different classes where labels tell.

    As in the paper: the sum over the channels, divided by its Euclidean norm over the positions. Of each channel the
    absolute value counts, which makes no difference after a ReLU.
    """
    count = max(1, min(per_domain, MOST_MAPPED // len(subject.views)))
    chosen = [_spread(view, where, count) for view, where in zip(subject.views, subject.drawn(), strict=True)]
    pixels = np.concatenate([view.images.read(where) for view, where in zip(subject.views, chosen, strict=True)])
    labels = np.concatenate([_labels(view, where) for view, where in zip(subject.views, chosen, strict=True)])
    maps: dict[str, list[Tensor]] = {}
    predicted: list[int] = []
    with torch.inference_mode():
        for inputs in subject.inputs_of(pixels):
            F = subject.method.backbone(inputs)
            predicted += subject.method.scores_of(F).argmax(dim=1).tolist()
            for name, features in subject.method.maps_of(F).items():
                maps.setdefault(name, []).append(activation(features).cpu())
    return Activations(
        domains=[view.name for view, where in zip(subject.views, chosen, strict=True) for _ in where],
        labels=[None if label == UNKNOWN else subject.classes[label] for label in labels],
        predicted=[subject.classes[label] for label in predicted],
        pixels=pixels,
        maps={name: torch.cat(parts).numpy() for name, parts in maps.items()},
    )


def activation(features: Tensor) -> Tensor:
    """Maps (B, C, H, W) to (B, H, W): the sum of the channels' absolute values, of Euclidean norm 1.

    >>> activation(torch.ones(1, 7, 2, 2))
    tensor([[[0.5000, 0.5000],
             [0.5000, 0.5000]]])
    """
    summed = features.abs().sum(dim=1)
    norms: Tensor = torch.linalg.vector_norm(summed, dim=(1, 2), keepdim=True)
    return summed / norms.clamp_min(1e-12)


def _labels(view: View, where: Indices) -> NDArray[np.int64]:
    return view.labels[where] if isinstance(view, LabelledView) else np.full(len(where), UNKNOWN, np.int64)


def _spread(view: View, where: Indices, count: int) -> Indices:
    """So many of the drawn images, of one class after the other."""
    labels = _labels(view, where)
    of_classes = [where[labels == label].tolist() for label in np.unique(labels)]
    in_turn = [index for index in chain.from_iterable(zip_longest(*of_classes)) if index is not None]
    return np.array(in_turn[:count], np.int64)
