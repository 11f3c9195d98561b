"""Learning rate and adaptation weight as pure functions of the step, so that a resumed run needs no state for them.

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


def check_schedule(options: TrainingOptions, phases: Sequence[float]) -> None:
    """Raise unless every phase sees the whole of the schedule: the full rate after warm-up, and every milestone."""
    shortest = min(end - start for start, end in pairwise([*phase_starts(options, phases), options.steps]))
    if options.warmup_steps >= max(shortest, 1):
        raise AfieldError(
            f"warmup_steps ({options.warmup_steps}) must be smaller than any of the method's {len(phases) + 1} phases; "
            f"the shortest has {shortest} of {options.steps} steps"
        )
    if options.milestones and options.milestones[-1] >= shortest:
        raise AfieldError(
            f"milestone {options.milestones[-1]} does not come within the shortest of the method's {len(phases) + 1} "
            f"phases, which has {shortest} of {options.steps} steps"
        )
    if options.milestones and options.milestones[0] < options.warmup_steps:
        raise AfieldError(f"milestone {options.milestones[0]} comes before warmup_steps ({options.warmup_steps}) end")


def within_phase(options: TrainingOptions, step: int, phases: Sequence[float]) -> tuple[int, int, int]:
    """The phase a step belongs to, how many steps of that phase come before it, and how many the phase has in all."""
    starts = phase_starts(options, phases)
    phase = bisect_right(starts, step) - 1
    return phase, step - starts[phase], [*starts, options.steps][phase + 1] - starts[phase]


def learning_rate(options: TrainingOptions, step: int, phases: Sequence[float] = ()) -> float:
    """The rate of step 0, 1, ..., steps - 1: a linear warm-up, then what `schedule` says.

    With p the share done of what follows warm-up, `cosine` is lr (1 + cos(pi p)) / 2, and `inverse` lr (1 + 10 p)^-0.75
    (Ganin et al. 2016, section 5.2.2); `steps` is lr gamma^k after k of the milestones.

    >>> [learning_rate(TrainingOptions(steps=4, lr=1.0), step) for step in (0, 2)]
    [1.0, 0.5]
    >>> options = TrainingOptions(steps=2, lr=1.0, schedule="inverse")
    >>> learning_rate(options, 0), learning_rate(options, 1) == 6**-0.75
    (1.0, True)
    >>> options = TrainingOptions(steps=8, lr=1.0, schedule="steps", milestones=(2, 3), gamma=0.5)
    >>> [learning_rate(options, step) for step in range(5)]
    [1.0, 1.0, 0.5, 0.25, 0.25]
    """
    _, done, steps = within_phase(options, step, phases)
    if done < options.warmup_steps:
        return options.lr * (done + 1) / options.warmup_steps
    progress = (done - options.warmup_steps) / (steps - options.warmup_steps)
    match options.schedule:
        case "constant":
            return options.lr
        case "cosine":
            return options.lr * 0.5 * (1 + math.cos(math.pi * progress))
        case "inverse":
            return float(options.lr * (1 + 10 * progress) ** -0.75)
        case "steps":
            return float(options.lr * options.gamma ** bisect_right(options.milestones, done))


def adaptation_weight(options: TrainingOptions, step: int, phases: Sequence[float] = ()) -> float:
    """What the ramped losses are multiplied by: 2 / (1 + exp(-10 p)) - 1 with p the share of the phase done."""
    if options.ramp == "constant":
        return 1.0
    _, done, steps = within_phase(options, step, phases)
    return 2 / (1 + math.exp(-10 * done / steps)) - 1
