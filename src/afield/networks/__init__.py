"""Backbones by name, gates, pooling and classifiers."""

from afield.networks.backbones import build_backbone, check_backbone, map_shape, normalisation
from afield.networks.gates import (
    ChannelGate,
    ConvolutionSelection,
    Gate,
    GatedSelection,
    GateKind,
    SpatialGate,
    weighted,
)
from afield.networks.heads import Classifier, Experts, Pool, classify_all, classify_aside
from afield.networks.options import DIGIT_NETWORK, NetworkOptions

__all__ = [
    "DIGIT_NETWORK",
    "ChannelGate",
    "Classifier",
    "ConvolutionSelection",
    "Experts",
    "Gate",
    "GateKind",
    "GatedSelection",
    "NetworkOptions",
    "Pool",
    "SpatialGate",
    "build_backbone",
    "check_backbone",
    "classify_all",
    "classify_aside",
    "map_shape",
    "normalisation",
    "weighted",
]
