"""Learning rate and adaptation weight as pure functions of the step: a resumed run needs no state for them."""

import math

from afield.training.options import TrainingOptions


def learning_rate(options: TrainingOptions, step: int) -> float:
    """The rate of step 0, 1, ..., steps - 1: a linear warm-up, then constant or half a cosine down to 0."""
    if step < options.warmup_steps:
        return options.lr * (step + 1) / options.warmup_steps
    if options.schedule == "constant":
        return options.lr
    progress = (step - options.warmup_steps) / (options.steps - options.warmup_steps)
    return options.lr * 0.5 * (1 + math.cos(math.pi * progress))


def adaptation_weight(options: TrainingOptions, step: int) -> float:
    """What the ramped losses are multiplied by: 2 / (1 + exp(-10 p)) - 1 with p the share of training done."""
    if options.ramp == "constant":
        return 1.0
    return 2 / (1 + math.exp(-10 * step / options.steps)) - 1
