"""Backbones by name, gates, pooling, classifiers and discriminators."""

from afield.config.network import DIGIT_NETWORK, NetworkOptions
from afield.networks.adversarial import Discriminator, reverse_gradient
from afield.networks.backbones import build_backbone, check_backbone, map_shape, normalisation
from afield.networks.bare import bare_backbones
from afield.networks.batch_norm import Layout, arrange_batch_norm, hold_still, let_go, norms_of, stands_still
from afield.networks.ensemble import Ensemble, mean_prediction
from afield.networks.gates import (
    ChannelGate,
    ConvolutionSelection,
    Gate,
    GatedSelection,
    GateKind,
    SpatialGate,
    as_convolutions,
)
from afield.networks.heads import Classifier, Experts, Pool, classify_all, run_aside
from afield.networks.joint import MultilinearMap, RandomisedMap, joint_map
from afield.networks.rows import all_rows, own_rows, whole_count
from afield.networks.sharing import Sharing
from afield.networks.stages import early_stages

__all__ = [
    "DIGIT_NETWORK",
    "ChannelGate",
    "Classifier",
    "ConvolutionSelection",
    "Discriminator",
    "Ensemble",
    "Experts",
    "Gate",
    "GateKind",
    "GatedSelection",
    "Layout",
    "MultilinearMap",
    "NetworkOptions",
    "Pool",
    "RandomisedMap",
    "Sharing",
    "SpatialGate",
    "all_rows",
    "arrange_batch_norm",
    "as_convolutions",
    "bare_backbones",
    "build_backbone",
    "check_backbone",
    "classify_all",
    "early_stages",
    "hold_still",
    "joint_map",
    "let_go",
    "map_shape",
    "mean_prediction",
    "normalisation",
    "norms_of",
    "own_rows",
    "reverse_gradient",
    "run_aside",
    "stands_still",
    "whole_count",
]
