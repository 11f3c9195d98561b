"""Batch norm of timm's networks, done by the kernels of `fused.py`."""

from timm.layers.norm_act import BatchNormAct2d
from torch import nn

from afield.networks.fused import CLIPS, NOTHING, Clip, FusedBatchNorm


def fuse_norms(network: nn.Module) -> None:
    """Let batch norm of maps inside a network be done by the kernels, with the ReLU or ReLU6 that timm has in it.

    Layers keep their names and their tensors; those that do something else besides stay what they are.
    """
    for parent in list(network.modules()):
        for name, layer in parent.named_children():
            if (clip := _clip_of(layer)) is not None:
                setattr(parent, name, _as_fused(layer, clip))


def _clip_of(layer: nn.Module) -> Clip | None:
    """What a layer of batch norm does after it, as a clip; None for a layer that is anything else."""
    if not (type(layer) in (nn.BatchNorm2d, BatchNormAct2d) and layer.affine and layer.track_running_stats):
        return None
    if type(layer) is nn.BatchNorm2d:
        return NOTHING
    return CLIPS.get(type(layer.act)) if isinstance(layer.drop, nn.Identity) else None


def _as_fused(layer: nn.Module, clip: Clip) -> FusedBatchNorm:
    assert isinstance(layer, nn.BatchNorm2d)
    fused = FusedBatchNorm(layer.num_features, clip=clip, eps=layer.eps, momentum=layer.momentum)
    for name, tensor in (*layer.named_parameters(), *layer.named_buffers()):
        setattr(fused, name, tensor)
    return fused.train(layer.training)
