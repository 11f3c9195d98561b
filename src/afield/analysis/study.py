"""Everything a report shows of one run."""

from collections.abc import Callable
from dataclasses import dataclass

from afield.analysis.complexity import Complexity, complexity_of
from afield.analysis.divergence import Divergence, divergence_of
from afield.analysis.embedding import Embedding, embedding_of
from afield.analysis.features import Activations, activations_of, features_of
from afield.analysis.history import History
from afield.analysis.predictions import DomainPredictions, Unsure, least_sure, predict
from afield.analysis.subject import Subject


@dataclass(frozen=True)
class Learned:
    """What the network of a checkpoint does with the test images of the run's domains."""

    step: int
    """Of the checkpoint."""
    classes: tuple[str, ...]
    target: str | None
    predictions: list[DomainPredictions]
    unsure: list[Unsure]
    activations: Activations
    divergence: Divergence | None
    embedding: Embedding | None
    complexity: Complexity
    notes: tuple[str, ...] = ()
    """What a reader should know, such as that the images have changed since training."""


@dataclass(frozen=True)
class Study:
    """One run: its history, and what its network learned or why that is not known."""

    history: History
    learned: Learned | None
    missing: str = ""


STAGES = ("predictions", "features", "activation maps", "t-SNE", "complexity")


def learned_by(
    subject: Subject, step: int, notes: tuple[str, ...] = (), begin: Callable[[str], None] = lambda stage: None
) -> Learned:
    """All the numbers of a subject; `begin` is called with the name of each of the STAGES as it begins."""
    begin("predictions")
    predictions = predict(subject)
    unsure = least_sure(subject, predictions)
    begin("features")
    features = features_of(subject)
    divergence = divergence_of(features)
    begin("activation maps")
    activations = activations_of(subject)
    begin("t-SNE")
    embedding = embedding_of(features)
    begin("complexity")
    complexity = complexity_of(subject)
    return Learned(
        step, subject.classes, subject.target, predictions, unsure, activations, divergence, embedding, complexity,
        notes,
    )  # fmt: skip
