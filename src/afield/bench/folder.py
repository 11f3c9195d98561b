"""A benchmark's folder: the records of finished runs, the list of failed ones, and the runs in progress."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from afield.bench.outcome import Failed
from afield.bench.shard import Shard
from afield.config.plan import Job, identity_of_record
from afield.errors import AfieldError
from afield.files import check_unlocked, locked
from afield.results.folder import RunFolder
from afield.results.records import (
    Record,
    append_record,
    read_records,
    read_runs,
    record_files,
    rewrite_records,
)

WHO = "afield bench"
RUNS = "runs"
KEPT = "kept"
DIVERGED = "diverged"


@contextmanager
def open_folder(path: Path, shard: Shard | None = None, keep: Sequence[str] = ()) -> Iterator["BenchFolder"]:
    """The folder, created if it is missing, and locked against other processes while the context lasts.

    A shard has a folder of its own in it: two processes that append to one file are not safe on every file system. The
    shards of a benchmark may be at work at the same time, but not together with one that takes all jobs.
    """
    if RunFolder(path).config.exists():
        raise AfieldError(f"{path} holds a run of `afield train`; a benchmark needs a folder of its own")
    with ExitStack() as stack:
        stack.enter_context(locked(path, WHO, shared=shard is not None))
        own = path / shard.folder if shard else path
        if shard:
            stack.enter_context(locked(own, WHO))
        # Only now, with a lock of its own that others can see: of two that start at once, one at least sees the other.
        others = [place for place in (path, *shard_folders(path)) if place != own]
        for place in others:
            if shard and place != path and not shard.divides_like(place.name):
                check_unlocked(place, WHO)  # of another division, with some of the same jobs
        yield BenchFolder(own, [file for file in record_files(path) if file.parent != own], keep, others)


def shard_folders(path: Path) -> list[Path]:
    """The folders of shards in that of a benchmark, of any division."""
    return sorted(path.glob("shard-*-of-*"))


def begun_in(places: Sequence[Path], job: Job) -> Path | None:
    """The folder of a run in one of these places, if it was begun there."""
    return next((folder for place in places if (folder := place / RUNS / job.slug).exists()), None)


class BenchFolder:
    """`records.jsonl`, `failures.jsonl`, `runs/`, `kept/` and `diverged/`, which has post-mortems of trainings.

    What a killed process left half-written is repaired.

    `elsewhere` are files of records that others write: what they hold is not run again. `others` are folders in which
    shards, or all jobs, were worked on before: what was begun there goes on there. `keep` are the selectors whose
    checkpoints of recorded runs are kept.
    """

    def __init__(
        self, path: Path, elsewhere: Sequence[Path] = (), keep: Sequence[str] = (), others: Sequence[Path] = ()
    ) -> None:
        self.records = path / "records.jsonl"
        self._failures = path / "failures.jsonl"
        self._runs = path / RUNS
        self._others, self._diverged = others, path / DIVERGED
        self._kept, self._keep = path / KEPT, keep
        self._places = [path, *(file.parent for file in elsewhere)]
        self._recorded: list[list[Record]] = []
        if self.records.exists():
            self._recorded = read_runs(self.records)
            # A process killed while writing leaves half a run, or half a line.
            rewrite_records(self.records, [record for run in self._recorded for record in run])
        self._recorded += [run for file in elsewhere for run in read_runs(file)]
        self._identities = {identity_of_record(run[0]) for run in self._recorded}
        failures = read_records(self._failures) if self._failures.exists() else []
        self._failed = {identity_of_record(failure): failure for failure in failures}

    def check_data(self, name: str, checksum: str) -> None:
        """Raise if the folder has results on other images under the same name: no table could show both."""
        for header, *_ in self._recorded:
            images = header.get("protocol", {})  # a damaged record may lack anything
            if images.get("data") == name and images.get("checksum") != checksum:
                raise AfieldError(f"{self.records} is about other images of '{name}' than those now in use")

    def holds(self, job: Job) -> bool:
        """Whether a job's run is recorded."""
        return job.identity in self._identities

    def run_folder(self, job: Job) -> Path:
        """Where a job trains."""
        return begun_in(self._others, job) or self._runs / job.slug

    def kept_folder(self, job: Job) -> Path:
        """Where the folder of a recorded run is that keeps checkpoints; no benchmark removes it."""
        return self._kept / job.slug

    def lacks_checkpoints(self, job: Job) -> bool:
        """Whether a checkpoint to be kept of a recorded run is not there."""
        kept = [RunFolder(place / KEPT / job.slug) for place in self._places]
        return any(not any(one.checkpoint(name).is_file() for one in kept) for name in self._keep)

    def add(self, job: Job, records: list[Record]) -> None:
        """Store a finished run's records."""
        append_record(self.records, *records)
        self._identities.add(job.identity)
        if self._failed.pop(job.identity, None):
            self._write_failures()
            self._post_mortem(job).unlink(missing_ok=True)
        self.tidy(job)

    def add_failure(self, job: Job, failed: Failed) -> None:
        """Store why a run failed, in place of an earlier failure of it."""
        named = {"label": job.place.label, "target": job.target, "seed": job.seed}
        protocol = {"name": job.place.protocol, "version": job.place.version}
        rest = {**asdict(failed), "protocol": protocol, "config": job.config.as_dict()}
        self._failed[job.identity] = {"event": "failure", **named, **rest}
        self._write_failures()
        folder = RunFolder(self.run_folder(job))
        if folder.diverged.exists():
            self._diverged.mkdir(exist_ok=True)
            folder.diverged.replace(self._post_mortem(job))
            self._remove(folder)

    def tidy(self, job: Job) -> None:
        """Remove the folder of a recorded run or, if some of its checkpoints are to be kept, put it aside with them."""
        folder = RunFolder(self.run_folder(job))
        if self._keep and folder.config.exists():
            for file in folder.checkpoints:
                if file.stem not in self._keep:
                    file.unlink(missing_ok=True)
            shutil.rmtree(self.kept_folder(job), ignore_errors=True)  # of an earlier record, which is gone
            self._kept.mkdir(exist_ok=True)
            folder.path.rename(self.kept_folder(job))
        self._remove(folder)

    def _remove(self, folder: RunFolder) -> None:
        shutil.rmtree(folder.path, ignore_errors=True)
        with suppress(OSError):  # it still holds other runs
            folder.path.parent.rmdir()

    def _post_mortem(self, job: Job) -> Path:
        return self._diverged / f"{job.slug}.ckpt"

    def _write_failures(self) -> None:
        if self._failed:
            rewrite_records(self._failures, self._failed.values())
        else:
            self._failures.unlink(missing_ok=True)
