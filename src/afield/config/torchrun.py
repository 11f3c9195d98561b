"""What torchrun tells the processes that it starts, in their environment. Nothing here imports torch."""

import os
from dataclasses import dataclass

from afield.config.layers import Values, merge
from afield.errors import AfieldError

MARK = "TORCHELASTIC_RUN_ID"


@dataclass(frozen=True)
class Torchrun:
    """Which of its processes this is, how many there are, and how many on a machine."""

    rank: int
    processes: int
    devices: int
    restarts: int
    """How often torchrun has started them anew, after one was lost."""

    @property
    def nodes(self) -> int:
        """How many machines there are."""
        if self.processes % self.devices:
            raise AfieldError(
                f"torchrun has started {self.processes} processes, {self.devices} of them here: all machines must have "
                "as many"
            )
        return self.processes // self.devices

    def layer(self, given: list[Values]) -> Values:
        """The layer of a config with these numbers. Raise if the user's layers have others."""
        there, asked = {"devices": self.devices, "nodes": self.nodes}, merge(*given)["training"]
        for key, count in there.items():
            if asked.get(key, count) != count:
                raise AfieldError(f"config key 'training.{key}': {asked[key]}, and torchrun has started {count}")
        return {"training": there}


def torchrun() -> Torchrun | None:
    """What torchrun has told this process; None if it has not started it."""
    if MARK not in os.environ:
        return None
    try:
        rank, processes, devices, restarts = (
            int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")
        )
    except (KeyError, ValueError) as error:
        raise AfieldError(f"torchrun's environment is not whole: {error}") from error
    return Torchrun(rank, processes, devices, restarts)


def leads() -> bool:
    """Whether this process prints for all that torchrun has started; always true without torchrun."""
    world = torchrun()
    return world is None or world.rank == 0
