"""The losses: one formula per file, as functions."""

from afield.losses.class_confusion import class_confusion
from afield.losses.consistency import expert_consistency
from afield.losses.contrastive import contrastive_alignment
from afield.losses.coral import coral_distance
from afield.losses.discrepancy import classifier_discrepancy
from afield.losses.entropy import class_shortage, entropy
from afield.losses.mmd import gaussian_kernel, joint_squared_mmd, squared_mmd, squared_mmd_among
from afield.losses.moment_matching import raw_moment_distance
from afield.losses.moments import direction_distance, directions, moment_distance
from afield.losses.prototypes import prototype_loss
from afield.losses.ranking_entropy import (
    dual_ranking_entropy,
    ranking_entropy_minus,
    ranking_entropy_plus,
    unranked_entropy,
)

__all__ = [
    "class_confusion",
    "class_shortage",
    "classifier_discrepancy",
    "contrastive_alignment",
    "coral_distance",
    "direction_distance",
    "directions",
    "dual_ranking_entropy",
    "entropy",
    "expert_consistency",
    "gaussian_kernel",
    "joint_squared_mmd",
    "moment_distance",
    "prototype_loss",
    "ranking_entropy_minus",
    "ranking_entropy_plus",
    "raw_moment_distance",
    "squared_mmd",
    "squared_mmd_among",
    "unranked_entropy",
]
