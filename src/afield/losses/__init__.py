"""One formula a file: a function and a thin module around it."""

from afield.losses.consistency import ExpertConsistency, expert_consistency
from afield.losses.contrastive import ContrastiveAlignment, contrastive_alignment
from afield.losses.coral import CoralDistance, coral_distance
from afield.losses.discrepancy import ClassifierDiscrepancy, classifier_discrepancy
from afield.losses.mmd import (
    JointSquaredMMD,
    SquaredMMD,
    gaussian_kernel,
    joint_squared_mmd,
    squared_mmd,
    squared_mmd_among,
)
from afield.losses.moment_matching import RawMomentDistance, raw_moment_distance
from afield.losses.moments import MomentDistance, moment_distance
from afield.losses.ranking_entropy import (
    DualRankingEntropy,
    class_imbalance,
    dual_ranking_entropy,
    entropy,
    ranking_entropy_minus,
    ranking_entropy_plus,
    unranked_entropy,
)

__all__ = [
    "ClassifierDiscrepancy",
    "ContrastiveAlignment",
    "CoralDistance",
    "DualRankingEntropy",
    "ExpertConsistency",
    "JointSquaredMMD",
    "MomentDistance",
    "RawMomentDistance",
    "SquaredMMD",
    "class_imbalance",
    "classifier_discrepancy",
    "contrastive_alignment",
    "coral_distance",
    "dual_ranking_entropy",
    "entropy",
    "expert_consistency",
    "gaussian_kernel",
    "joint_squared_mmd",
    "moment_distance",
    "ranking_entropy_minus",
    "ranking_entropy_plus",
    "raw_moment_distance",
    "squared_mmd",
    "squared_mmd_among",
    "unranked_entropy",
]
