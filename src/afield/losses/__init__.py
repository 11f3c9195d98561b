"""One formula a file: a function and a thin module around it."""

from afield.losses.consistency import ExpertConsistency, expert_consistency
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
    "DualRankingEntropy",
    "ExpertConsistency",
    "MomentDistance",
    "class_imbalance",
    "dual_ranking_entropy",
    "entropy",
    "expert_consistency",
    "moment_distance",
    "ranking_entropy_minus",
    "ranking_entropy_plus",
    "unranked_entropy",
]
