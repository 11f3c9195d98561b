"""A run's folder: what lies in it, and who may write there."""

import json
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from afield.config.selectors import LABEL_FREE
from afield.errors import AfieldError
from afield.files import remove_leftovers, write_whole

WHO = "afield train"
CANDIDATE = "ensemble-at-"
MOST_BYTES_OF_HEADER = 100_000_000
"""Of a safetensors file, as safetensors itself has it."""


CHOSEN = "chosen.ckpt"
"""In a comparison's folder, the checkpoint of the method that it chose."""


class RunFolder:
    """`config.toml`, `records.jsonl`, `last.ckpt`, `SELECTOR.ckpt` of others to keep, and what loggers write."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.toml"
        self.records = path / "records.jsonl"
        self.last = self.checkpoint("last")
        self.diverged = path / "diverged.ckpt"
        """Of a training that has diverged: the weights as they became, and what they were trained on last."""
        self.tensorboard = path / "tensorboard"
        self.wandb = path / "wandb"
        self.loggers = path / "loggers.json"
        self._best = path / "best.ckpt"  # what version 0.1.0 called the one of source-val

    def checkpoint(self, selector: str) -> Path:
        """Where the checkpoint is that a selector has chosen, if it is kept."""
        return self.path / f"{selector}.ckpt"

    def candidate(self, step: int) -> Path:
        """Where, while a run trains, a checkpoint is that `ensemble` may come to choose."""
        return self.checkpoint(f"{CANDIDATE}{step}")

    @property
    def candidates(self) -> list[Path]:
        """All checkpoints that `ensemble` may come to choose."""
        return sorted(self.path.glob(f"{CANDIDATE}[0-9]*.ckpt"))

    @property
    def checkpoints(self) -> tuple[Path, ...]:
        """All that a run may have, whether they are there or not."""
        return (*map(self.checkpoint, LABEL_FREE), *self.candidates, self._best, self.diverged)

    @property
    def kept(self) -> list[str]:
        """The selectors whose checkpoints are there."""
        return [name for name in LABEL_FREE if self.checkpoint(name).is_file()]

    def upgrade(self) -> None:
        """Give an older run's checkpoints their present names."""
        if self._best.is_file():
            self._best.replace(self.checkpoint("source-val"))

    @property
    def files(self) -> tuple[Path, ...]:
        """In the order in which they are removed: what a run is known by goes last."""
        return *self.checkpoints, self.loggers, self.config, self.records

    @property
    def holds_run(self) -> bool:
        """Whether a run was started here: its records say so, or its config and a checkpoint do."""
        checkpoint = self.config.exists() and any(map(is_checkpoint, self.checkpoints))
        return checkpoint or first_event(self.records).get("event") == "run"

    @property
    def holds_benchmark(self) -> bool:
        """Whether the records are those of a benchmark, whose runs have labels, and whose folder has no config."""
        return "label" in first_event(self.records) and not self.config.exists()

    def check(self, resume: bool, overwrite: bool) -> None:
        """Raise unless a run may be written here. Changes nothing."""
        if resume and overwrite:
            raise AfieldError("resume and overwrite exclude each other")
        self._check_place()
        if resume and not self.config.exists():
            raise AfieldError(f"there is no run to resume in {self.path}")
        if resume:
            return
        if self.holds_benchmark:
            raise AfieldError(f"{self.path} holds the records of a benchmark; a run needs a folder of its own")
        if self.holds_run and not overwrite:
            raise AfieldError(f"{self.path} already holds a run; resume continues it, overwrite replaces it")
        strange = [file.name for file in self.files if file.exists()]
        if strange and not self.holds_run:
            raise AfieldError(f"{self.path} holds a {strange[0]} that is not from a run; choose another folder")

    def _check_place(self) -> None:
        nearest = next(place for place in (self.path, *self.path.absolute().parents) if place.exists())
        if not nearest.is_dir():
            raise AfieldError(f"{nearest} is a file, not a folder for a run")
        here = self.path.resolve()
        places = {Path(here.anchor): "the root of the disk", Path.cwd(): "the current folder"}
        with suppress(RuntimeError):  # nobody's home
            places[Path.home().resolve()] = "your home folder"
        if here in places:
            raise AfieldError(f"{self.path} is {places[here]}; a run needs a folder of its own, such as runs/x")

    def clear(self) -> None:
        """Remove a run's files, and no others."""
        with suppress(OSError):  # it is not there, or holds other things too
            for file in self.tensorboard.glob("events.out.tfevents*"):
                file.unlink()
            self.tensorboard.rmdir()
        with suppress(OSError):
            self._clear_wandb()
        for file in self.files:
            file.unlink(missing_ok=True)
        self.sweep()

    def _clear_wandb(self) -> None:
        """Remove the folders of this run of W&B, and what W&B has put beside them."""
        known_as = self.logger_ids.get("wandb")
        if known_as is None:
            return
        for folder in self.wandb.glob(f"*run-*-{known_as}*"):
            if not folder.is_symlink():
                shutil.rmtree(folder)
        for name in ("latest-run", "debug.log", "debug-internal.log"):
            if (self.wandb / name).is_symlink():
                (self.wandb / name).unlink()
        self.wandb.rmdir()

    @property
    def logger_ids(self) -> dict[str, str]:
        """The identifiers that loggers have given this run, by logger. A damaged file counts as missing."""
        try:
            found = json.loads(self.loggers.read_text("utf-8"))
            return {name: one for name, one in found.items() if isinstance(one, str) and re.fullmatch(r"\w+", one)}
        except (OSError, ValueError, AttributeError, RecursionError):
            return {}

    def remember_logger(self, name: str, known_as: str) -> None:
        """Keep such a name, so that a resumed run goes on in the logger's same one."""
        write_whole(self.loggers, json.dumps({**self.logger_ids, name: known_as}))

    def sweep(self) -> None:
        """Remove what a kill in the middle of a save has left half-written."""
        for file in (*self.files, self.checkpoint(f"{CANDIDATE}*")):
            remove_leftovers(file)


def first_event(records: Path) -> dict[str, Any]:
    """The first line of a file of records; empty if there is none."""
    try:
        with records.open("rb") as file:
            event = json.loads(file.readline())
    except (OSError, ValueError, RecursionError):
        return {}
    return event if isinstance(event, dict) else {}


def is_checkpoint(path: Path) -> bool:
    """Whether a file is a checkpoint of afield, as far as its header tells."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length)) if length <= MOST_BYTES_OF_HEADER else {}
        return "afield" in header["__metadata__"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False
