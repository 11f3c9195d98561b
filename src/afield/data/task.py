"""A task: which domains are learned from, which is the target, and who may see whose labels."""

from dataclasses import dataclass

import numpy as np

from afield.config.data import TaskKind
from afield.data.domain import Domain, DomainSet, Split
from afield.data.entries import some_of
from afield.data.images import Images, JoinedImages, Labels
from afield.errors import AfieldError


@dataclass(frozen=True)
class LabelledView:
    """Images with their labels."""

    name: str
    images: Images
    labels: Labels


@dataclass(frozen=True)
class UnlabelledView:
    """Images alone: there is no field that could hold a label."""

    name: str
    images: Images


@dataclass(frozen=True)
class Task:
    """What training may see: labelled sources and, in UDA, target images without labels.

    The target's labels are not in this object. They live in `EvaluationViews`, which only the evaluator opens, so a
    method or a sampler that holds a Task cannot leak them.
    """

    kind: TaskKind
    sources: tuple[LabelledView, ...]
    target: UnlabelledView | None
    classes: tuple[str, ...]

    @property
    def seen(self) -> tuple[LabelledView | UnlabelledView, ...]:
        """All that training sees: the sources, then the target."""
        return (*self.sources, *([self.target] if self.target else []))


@dataclass(frozen=True)
class EvaluationViews:
    """What is measured on: images of the sources held out from training, and test images of the target.

    The sources' held-out images are those `source-val` chooses by: the validation split, or the test split where there
    is no other; a source's own figure so chosen is a little optimistic. A target that nobody has labelled has no labels
    here either.
    """

    sources: tuple[LabelledView, ...]
    target: LabelledView | UnlabelledView | None


def make_task(
    data: DomainSet, kind: TaskKind, target: str | None, sources: tuple[str, ...] = ()
) -> tuple[Task, EvaluationViews]:
    """Divide a data set into what training sees and what evaluation sees.

    Without `sources`, all labelled domains but the target are sources. A DG task trains without any target image; its
    target, if named, is only evaluated.
    """
    names = check_task(data, kind, target, sources)
    training = tuple(_labelled(name, data[name].train) for name in names)
    held_out = tuple(_labelled(name, data[name].validation or data[name].test) for name in names)
    unlabelled = UnlabelledView(target, _images_to_adapt_to(data[target])) if target and kind == "uda" else None
    evaluated = _view(target, data[target].test) if target else None
    return Task(kind, training, unlabelled, data.classes), EvaluationViews(held_out, evaluated)


def check_task(data: DomainSet, kind: TaskKind, target: str | None, sources: tuple[str, ...]) -> tuple[str, ...]:
    """The names of the sources, or the error in what was asked."""
    for name in (*sources, *([] if target is None else [target])):
        data[name]
    if kind == "uda" and target is None:
        raise AfieldError(f"a uda task needs a target, one of: {', '.join(data.domains)}")
    if target in sources:
        raise AfieldError(f"target '{target}' is among the sources; a domain is one or the other")
    if len(set(sources)) != len(sources):
        raise AfieldError(f"a source is named twice: {', '.join(sources)}")
    without = [name for name in sources if not data[name].labelled]
    if without:
        raise AfieldError(f"source '{without[0]}' has no labels, and a source needs them; it could be the target")
    names = sources or tuple(name for name, domain in data.domains.items() if name != target and domain.labelled)
    if not names:
        raise AfieldError(f"no source is left beside target '{target}': a source is another domain, with labels")
    return names


def notes_on_task(task: Task) -> list[str]:
    """The classes of which nothing can be learned, though another domain has them."""
    taught = {int(label) for source in task.sources for label in np.unique(source.labels)}
    lacking = [name for number, name in enumerate(task.classes) if number not in taught]
    return [f"no source has images of these classes, so they cannot be learned: {some_of(lacking)}"] if lacking else []


def _view(name: str, split: Split) -> LabelledView | UnlabelledView:
    return (
        UnlabelledView(name, split.images) if split.labels is None else LabelledView(name, split.images, split.labels)
    )


def _labelled(name: str, split: Split) -> LabelledView:
    view = _view(name, split)
    assert isinstance(view, LabelledView)
    return view


def _images_to_adapt_to(domain: Domain) -> Images:
    """A target's training images, those that only a source would hold out, and those that nobody has labelled."""
    held_out = domain.validation if domain.adapted_whole else None
    parts = [split.images for split in (domain.train, held_out, domain.unlabelled) if split is not None]
    return parts[0] if len(parts) == 1 else JoinedImages(parts)
