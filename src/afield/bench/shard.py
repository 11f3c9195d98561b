"""Shards: the jobs of a plan divided among processes that do not know of each other, such as those of a cluster."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from afield.config.plan import Job
from afield.errors import AfieldError


@dataclass(frozen=True)
class Shard:
    """One of several equal parts of a plan: every `count`-th of its jobs, from the `number`-th."""

    number: int
    count: int

    def of(self, jobs: Sequence[Job]) -> list[Job]:
        """Its jobs, out of all jobs, recorded or not: so no job is in two shards, whenever each of them is started."""
        return list(jobs[self.number - 1 :: self.count])

    @property
    def folder(self) -> str:
        """Its folder inside that of the benchmark. `record_files` finds the records in it."""
        return f"shard-{self.number}-of-{self.count}"

    def divides_like(self, folder: str) -> bool:
        """Whether a shard's folder is of the same division, so that the two shards share no job."""
        return folder.endswith(f"-of-{self.count}")

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def parse_shard(text: str) -> Shard:
    """The shard that a text such as 3/8 names."""
    found = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text.strip())
    shard = Shard(*map(int, found.groups())) if found else None
    if shard is None or not 1 <= shard.number <= shard.count:
        raise AfieldError(f"a shard is a number of so many, such as 3/8, not '{text}'")
    return shard
