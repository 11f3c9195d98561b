"""The loop and what it keeps: options, schedules, evaluation, checkpoints, a run's folder."""

from afield.training.checkpoint import Checkpoint, load_checkpoint
from afield.training.evaluation import Evaluator
from afield.training.folder import RunFolder
from afield.training.loop import Loop, Plan, best_device, isolated_generators, make_fabric
from afield.training.options import TrainingOptions

__all__ = [
    "Checkpoint",
    "Evaluator",
    "Loop",
    "Plan",
    "RunFolder",
    "TrainingOptions",
    "best_device",
    "isolated_generators",
    "load_checkpoint",
    "make_fabric",
]
