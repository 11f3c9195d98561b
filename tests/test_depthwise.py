"""Depthwise convolutions by our kernels: as PyTorch's own, on a GPU or else in Triton's interpreter."""

import pytest
import torch
from timm.layers import Conv2dSame
from torch import nn
from torch.nn import functional as F

from afield.kernels import kernels_in_networks
from afield.networks import depthwise as module
from afield.networks.depthwise import DepthwisePass, depthwise, fuse_depthwise
from support.interpreting import INTERPRETED, pass_in_interpreter

DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"

GPU = DEVICE == "cuda"

needs_kernels = pytest.mark.skipif(
    module.kernels is None or not (GPU or INTERPRETED), reason="no GPU: the interpreter's test runs this one"
)


@pytest.fixture(autouse=True)
def kernels_wanted():
    """As in a step that is recorded."""
    with kernels_in_networks(True):
        yield


def layer_of(channels, side, stride, same):
    torch.manual_seed(0)
    if same:
        return Conv2dSame(channels, channels, side, stride, groups=channels, bias=False)
    return nn.Conv2d(channels, channels, side, stride, side // 2, groups=channels, bias=False)


def noise(shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def outcome(layer, x):
    """The layer's output, and the gradients of x and of its weight, in float64."""
    layer, x = layer.to(DEVICE), x.to(DEVICE).requires_grad_()
    y = layer(x)
    slopes = torch.autograd.grad(y, (x, layer.weight), noise(y.shape, 1).bfloat16().to(DEVICE, y.dtype))
    return [value.detach().double().cpu() for value in (y, *slopes)]


@needs_kernels
@pytest.mark.parametrize("same", [False, True], ids=["padding around", "TensorFlow's padding"])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("side", [3, 5])
@pytest.mark.parametrize("shape", [(2, 8, 7, 10), (3, 40, 6, 5), (1, 144, 2, 3)], ids=str)
def test_outputs_and_gradients_agree_with_pytorch_in_float64(shape, side, stride, same, monkeypatch):
    if INTERPRETED:
        monkeypatch.setattr(DepthwisePass, "_usable", lambda self, x: x.dtype == torch.float32)
    wanted = outcome(layer_of(shape[1], side, stride, same).double(), noise(shape).double())
    ours = layer_of(shape[1], side, stride, same)
    fuse_depthwise(ours)
    for found, value in zip(outcome(ours, noise(shape)), wanted, strict=True):
        torch.testing.assert_close(found, value, rtol=1e-5, atol=1e-5)


@needs_kernels
def test_a_gradient_over_many_programs_agrees(monkeypatch):
    monkeypatch.setattr(module, "PROGRAMS", 12)
    x, weight = noise((3, 64, 13, 11)).to(DEVICE), noise((64, 1, 5, 5), 2).to(DEVICE).requires_grad_()
    slopes = []
    for y in (depthwise(x, weight, 2, (2, 2), (7, 6)), F.conv2d(x, weight, None, 2, 2, groups=64)):
        slopes += torch.autograd.grad(y, weight, noise(y.shape, 1).to(DEVICE))
    torch.testing.assert_close(*slopes, rtol=1e-4, atol=1e-4)


@needs_kernels
def test_a_short_type_costs_no_more_than_its_rounding():
    x, weight = noise((2, 32, 9, 9)).bfloat16().to(DEVICE), noise((32, 1, 3, 3), 2).bfloat16().to(DEVICE)
    found = depthwise(x, weight.float(), 1, (1, 1), (9, 9))
    assert found.dtype == torch.bfloat16
    wanted = F.conv2d(x.double(), weight.double(), None, 1, 1, groups=32)
    torch.testing.assert_close(found.double(), wanted, rtol=2**-7, atol=2**-7)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 4, 3, padding=1),
        nn.Conv2d(4, 4, 3, padding=1, groups=4),  # it has a bias
        nn.Conv2d(4, 8, 3, padding=1, groups=4, bias=False),
        nn.Conv2d(4, 4, 3, padding=0, groups=4, bias=False),
        nn.Conv2d(4, 4, 7, padding=3, groups=4, bias=False),
        nn.Conv2d(4, 4, 3, padding=2, dilation=2, groups=4, bias=False),
    ],
    ids=str,
)
def test_a_layer_that_the_kernels_do_not_know_is_left_alone(layer):
    fuse_depthwise(layer)
    assert "forward" not in vars(layer)


@pytest.mark.skipif(INTERPRETED or module.kernels is None, reason="needs Triton; runs the tests above")
def test_the_kernels_agree_in_tritons_interpreter():
    pass_in_interpreter(__file__)
