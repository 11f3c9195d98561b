"""A task: which domains are learned from, which is the target, and who may see whose labels."""

from dataclasses import dataclass
from typing import Literal

from afield.domains.domain import Augmentation, DomainSet, Images, Labels
from afield.errors import AfieldError

TaskKind = Literal["uda", "dg"]


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
    augmentation: Augmentation


@dataclass(frozen=True)
class EvaluationViews:
    """Test splits with labels: of the sources (held out from training) and of the target.

    The sources' test images are what `source-val` chooses by; a source's own figure so chosen is a little optimistic.
    """

    sources: tuple[LabelledView, ...]
    target: LabelledView | None


def make_task(
    data: DomainSet, kind: TaskKind, target: str | None, sources: tuple[str, ...] = ()
) -> tuple[Task, EvaluationViews]:
    """Split a data set into what training sees and what evaluation sees.

    Without `sources`, all domains but the target are sources. A DG task trains without any target image; its target,
    if named, is only evaluated.
    """
    names = check_task(data, kind, target, sources)
    training = tuple(LabelledView(name, data[name].train.images, data[name].train.labels) for name in names)
    held_out = tuple(LabelledView(name, data[name].test.images, data[name].test.labels) for name in names)
    unlabelled = UnlabelledView(target, data[target].train.images) if target and kind == "uda" else None
    evaluated = LabelledView(target, data[target].test.images, data[target].test.labels) if target else None
    task = Task(kind, training, unlabelled, data.classes, data.augmentation)
    return task, EvaluationViews(held_out, evaluated)


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
    names = sources or tuple(name for name in data.domains if name != target)
    if not names:
        raise AfieldError(f"no source is left beside target '{target}'")
    return names
