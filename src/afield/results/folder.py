"""A run's folder: what lies in it, and who may write there."""

import shutil
from pathlib import Path

from afield.errors import AfieldError


class RunFolder:
    """`config.toml`, `records.jsonl`, `last.ckpt`, `best.ckpt` and TensorBoard's files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.toml"
        self.records = path / "records.jsonl"
        self.last = path / "last.ckpt"
        self.best = path / "best.ckpt"
        self.tensorboard = path / "tensorboard"

    @property
    def holds_run(self) -> bool:
        """Whether a run was started here."""
        return any(file.exists() for file in (self.config, self.records, self.last, self.best))

    def check(self, resume: bool, overwrite: bool, resumable: bool = True) -> None:
        """Raise unless a run may be written here. Changes nothing."""
        if resume and overwrite:
            raise AfieldError("--resume and --overwrite exclude each other")
        nearest = next(place for place in (self.path, *self.path.absolute().parents) if place.exists())
        if not nearest.is_dir():
            raise AfieldError(f"{nearest} is a file, not a folder for a run")
        if resume and not self.config.exists():
            raise AfieldError(f"there is no run to resume in {self.path}")
        if self.holds_run and not (resume or overwrite):
            ways = "--resume continues it, --overwrite replaces it" if resumable else "--overwrite replaces it"
            raise AfieldError(f"{self.path} already holds a run; {ways}")

    def clear(self) -> None:
        """Remove a run's files, and no others."""
        for file in (self.config, self.records, self.last, self.best):
            file.unlink(missing_ok=True)
        shutil.rmtree(self.tensorboard, ignore_errors=True)
        self.sweep()

    def sweep(self) -> None:
        """Remove what a kill in the middle of a save has left half-written."""
        for file in (self.config, self.records, self.last, self.best):
            file.with_name(file.name + ".tmp").unlink(missing_ok=True)
