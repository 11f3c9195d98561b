"""Find what the analysis needs of the runs that a user names: records, and networks with their images."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from afield.analysis.history import History, history_of
from afield.errors import AfieldError
from afield.files import BusyFolderError, check_unlocked
from afield.results.figures import UNNAMED, runs_at
from afield.results.folder import WHO, RunFolder, is_checkpoint
from afield.results.records import read_records
from afield.results.settings import NO_MATTER, flat, written

if TYPE_CHECKING:  # `afield figure curves` does without torch
    from afield.analysis.subject import Subject


@dataclass(frozen=True)
class Named:
    """What one path stands for: a run with its checkpoint, or the records of a benchmark's runs."""

    path: Path
    histories: list[History]
    checkpoint: Path | None
    """None: there is none (any more)."""
    benchmark: bool = False


class DataMissingError(AfieldError):
    """The images that a run was trained on are missing or have changed."""


def read_named(paths: Sequence[Path], *, labels_shared: bool = False) -> list[Named]:
    """What the paths stand for; runs that share a name, as seeds of one label do, get their folders' names or paths.

    With `labels_shared` a label stays with all runs that a benchmark gave it: a curve may be the mean of its seeds.
    """
    found = [_read(path) for path in paths]
    for name_of in (_name, str):
        found = _renamed(found, name_of, labels_shared)
    return found


def _renamed(found: list[Named], name_of: Callable[[Path], str], labels_shared: bool) -> list[Named]:
    """The runs, with new names for those that share one: results are kept by name, and would overwrite each other."""
    named_alone = [named for named in found if not (labels_shared and "label" in named.histories[0].header)]
    names = Counter(named.histories[0].name for named in named_alone if not named.benchmark)
    return [
        named
        if named.benchmark or names[named.histories[0].name] < 2
        else replace(named, histories=[replace(history, name=name_of(named.path)) for history in named.histories])
        for named in found
    ]


def _read(path: Path) -> Named:
    if not path.exists():
        raise AfieldError(f"no run at {path}")
    given = path if path.is_file() and (path.suffix == ".ckpt" or is_checkpoint(path)) else None
    if path.is_file() and not given and path.suffix != ".jsonl":
        raise AfieldError(f"{path} is neither a run's folder, a checkpoint of one, nor a file of records")
    folder = RunFolder(path if path.is_dir() else path.parent)
    if path.suffix == ".jsonl" or (path.is_dir() and folder.holds_benchmark):
        histories = told_apart([history_of(run, _name(path), where=path) for run in runs_at(path)])
        return Named(path, histories, None, benchmark=True)
    if not folder.records.is_file():
        raise AfieldError(f"no records at {folder.records}: a run's folder has them")
    going = is_going(folder.path)  # before its records are read: it may end in between
    records = read_records(folder.records)
    if not records:
        begun = folder.records.stat().st_size > 0  # a kill has cut its first line
        why = "holds no complete record" if begun else "is empty: the run has not begun"
        raise AfieldError(f"{folder.records} {why}")
    history = history_of(records, _name(path), going=going, where=folder.records)
    return Named(path, [history], given or (folder.last if folder.last.is_file() else None))


def _name(path: Path) -> str:
    """A run's name: its folder's and, of another checkpoint than the last, the checkpoint's too."""
    place = path.resolve()
    return place.name if place.is_dir() else f"{place.parent.name}/{place.name}"


def told_apart(histories: list[History]) -> list[History]:
    """The runs of a benchmark; those that share a label, but not their protocol or settings, say so in their names."""
    protocols = [history.header.get("protocol", {}).get("name") or UNNAMED for history in histories]
    settings = [{k: v for k, v in flat(history.config).items() if k not in NO_MATTER} for history in histories]
    named = []
    for history, protocol, own in zip(histories, protocols, settings, strict=True):
        alike = [
            other
            for peer, at, other in zip(histories, protocols, settings, strict=True)
            if (peer.name, at) == (history.name, protocol)
        ]
        differing = {key: value for key, value in own.items() if any(other.get(key) != value for other in alike)}
        remarks = [*([protocol] if len(set(protocols)) > 1 else []), *([written(differing)] if differing else [])]
        named.append(replace(history, name=f"{history.name} ({'; '.join(remarks)})") if remarks else history)
    return named


def is_going(folder: Path) -> bool:
    """Whether a process is training in a run's folder now."""
    try:
        check_unlocked(folder, WHO)
    except BusyFolderError:
        return True
    return False


def open_subject(named: Named) -> "tuple[Subject, int, tuple[str, ...]]":
    """A run's network on the test images of its domains, the checkpoint's step, and notes about the images.

    A checkpoint that cannot be loaded is an error; so are images that are not there, but a DataMissingError.
    """
    from afield.analysis.subject import Subject
    from afield.app.evaluate import test_views
    from afield.app.model import load
    from afield.data.open import open_data
    from afield.training.devices import best_device

    assert named.checkpoint
    model = load(named.checkpoint)
    target = model.config.task.target
    domains = [*model.sources, *([target] if target else [])]
    try:
        data = open_data(model.config.data)
        views = test_views(model, data.with_sources(model.sources), domains, named.checkpoint)
    except AfieldError as error:
        raise DataMissingError(f"the images of '{model.config.data.name}' cannot be looked at: {error}") from error
    trained_on = named.histories[0].header.get("protocol", {}).get("checksum")
    changed = trained_on is not None and trained_on != data.checksum()
    notes = ("the images are others than those it was trained on",) if changed else ()
    device = best_device()
    method = model.method.to(device)
    return Subject(method, model.preprocessing, model.classes, tuple(views), target, device), model.step, notes
