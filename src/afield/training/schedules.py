"""Learning rate and adaptation weight as pure functions of the step: a resumed run needs no state for them.

Each phase of a method goes through the whole schedule and the whole ramp.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from afield.config.training import TrainingOptions
from afield.errors import AfieldError


def phase_starts(options: TrainingOptions, phases: Sequence[float]) -> list[int]:
    """The first step of every phase; `phases` are the shares of training at which the second and later ones begin.

    >>> phase_starts(TrainingOptions(steps=5), (0.5,))
    [0, 3]
    """
    return [0, *(math.ceil(share * options.steps) for share in phases)]


def check_warmup(options: TrainingOptions, phases: Sequence[float]) -> None:
    """Raise if warm-up takes as long as a phase: the learning rate would never reach its full value in it."""
    shortest = min(end - start for start, end in pairwise([*phase_starts(options, phases), options.steps]))
    if options.warmup_steps >= max(shortest, 1):
        raise AfieldError(
            f"warmup_steps ({options.warmup_steps}) must be smaller than any of the method's {len(phases) + 1} phases; "
            f"the shortest has {shortest} of {options.steps} steps"
        )


def within_phase(options: TrainingOptions, step: int, phases: Sequence[float]) -> tuple[int, int, int]:
    """The phase a step belongs to, how many steps of that phase come before it, and how many the phase has in all."""
    starts = phase_starts(options, phases)
    phase = bisect_right(starts, step) - 1
    return phase, step - starts[phase], [*starts, options.steps][phase + 1] - starts[phase]


def learning_rate(options: TrainingOptions, step: int, phases: Sequence[float] = ()) -> float:
    """The rate of step 0, 1, ..., steps - 1: a linear warm-up, then constant or half a cosine down to 0."""
    _, done, steps = within_phase(options, step, phases)
    if done < options.warmup_steps:
        return options.lr * (done + 1) / options.warmup_steps
    if options.schedule == "constant":
        return options.lr
    progress = (done - options.warmup_steps) / (steps - options.warmup_steps)
    return options.lr * 0.5 * (1 + math.cos(math.pi * progress))


def adaptation_weight(options: TrainingOptions, step: int, phases: Sequence[float] = ()) -> float:
    """What the ramped losses are multiplied by: 2 / (1 + exp(-10 p)) - 1 with p the share of the phase done."""
    if options.ramp == "constant":
        return 1.0
    _, done, steps = within_phase(options, step, phases)
    return 2 / (1 + math.exp(-10 * done / steps)) - 1
