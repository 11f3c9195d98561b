"""Fused batch norm, pooling and ReLU: as PyTorch's own, on a GPU or else in Triton's interpreter."""

import copy
import math

import pytest
import timm
import torch
from timm.layers import BatchNormAct2d
from torch import nn
from torch.nn import functional as F

from afield.kernels import kernels_in_networks
from afield.networks import fused
from afield.networks.depthwise import fuse_depthwise
from afield.networks.fuse_norms import fuse_norms
from afield.networks.fused import RELU, FusedBatchNorm, fused_norm
from support.interpreting import INTERPRETED, pass_in_interpreter

DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"
GPU = DEVICE == "cuda"

needs_kernels = pytest.mark.skipif(
    fused.kernels is None or not (GPU or INTERPRETED), reason="no GPU: the interpreter's test runs this one"
)
needs_gpu = pytest.mark.skipif(fused.kernels is None or not GPU, reason="needs a GPU and Triton")
pooled_or_not = pytest.mark.parametrize("pool", [True, False], ids=["pooled", "flat"])


@pytest.fixture(autouse=True)
def kernels_wanted():
    """As in a step that is recorded."""
    with kernels_in_networks(True):
        yield


def plain_norm(x, weight, bias, running_mean, running_var, momentum, eps, pool, clip=RELU):
    x = F.batch_norm(x, running_mean, running_var, weight, bias, True, momentum, eps)
    return F.hardtanh(F.max_pool2d(x, 3, stride=2, padding=1) if pool else x, *clip)


def noise(shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def outcome(norm, x, dtype, pool):
    """Everything a training step sees of a norm with weights of either sign, for x in this type; in float64."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    x = x.to(DEVICE, dtype).contiguous(memory_format=torch.channels_last).requires_grad_()
    weight, bias, mean = (noise(x.shape[1], seed).to(DEVICE, wide) for seed in (1, 2, 3))
    leaves, var = (x, weight.requires_grad_(), bias.requires_grad_()), mean.abs() + 1
    y = norm(*leaves, mean, var, 0.2, 1e-5, pool)
    slopes = torch.autograd.grad(y, leaves, noise(y.shape, 4).bfloat16().to(DEVICE, dtype))
    names = ("output", "running mean", "running variance", "slope of x", "slope of the weight", "slope of the bias")
    return {name: value.detach().double().cpu() for name, value in zip(names, (y, mean, var, *slopes), strict=True)}


def assert_agree(found, wanted, tolerance):
    for name, value in wanted.items():
        allowed = tolerance if name in ("output", "slope of x") else 1e-5  # the others are float32 in any case
        torch.testing.assert_close(
            found[name], value, rtol=allowed, atol=allowed, msg=lambda text, name=name: f"{name}: {text}"
        )


@needs_kernels
@pooled_or_not
@pytest.mark.parametrize("shape", [(2, 8, 7, 9), (3, 24, 4, 6), (2, 64, 5, 8), (1, 5, 1, 3)], ids=str)
def test_float32_agrees_with_pytorch_in_float64(shape, pool):
    x = 2 * noise(shape) + 3
    assert_agree(outcome(fused_norm, x, torch.float32, pool), outcome(plain_norm, x, torch.float64, pool), 1e-5)


@needs_kernels
@pooled_or_not
@pytest.mark.parametrize("clip", [(0.0, 0.5), (-math.inf, math.inf)], ids=["both ends", "nothing"])
def test_what_clips_and_what_clips_nothing_agree(clip, pool):
    x = 2 * noise((2, 144, 7, 5)) + 3  # three blocks of channels, the last one not full
    found = outcome(lambda *given: fused_norm(*given, clip=clip), x, torch.float32, pool)
    assert_agree(found, outcome(lambda *given: plain_norm(*given, clip=clip), x, torch.float64, pool), 2e-5)


@needs_kernels
@pooled_or_not
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_short_type_costs_no_more_than_its_rounding(dtype, pool):
    x = (2 * noise((2, 8, 7, 9)) + 3).to(dtype)
    wanted = outcome(plain_norm, x, torch.float64, pool)
    assert_agree(outcome(fused_norm, x, dtype, pool), wanted, torch.finfo(dtype).eps)


@needs_kernels
@pooled_or_not
def test_sums_over_many_programs_agree(pool, monkeypatch):
    monkeypatch.setattr(fused, "PROGRAMS", 3)
    x = 2 * noise((3, 64, 11, 13)) + 3  # three shares of the rows, the last one short
    assert_agree(outcome(fused_norm, x, torch.float32, pool), outcome(plain_norm, x, torch.float64, pool), 1e-5)


@needs_kernels
def test_the_first_of_equal_pixels_gets_the_gradient():
    few = torch.randint(0, 3, (2, 8, 6, 7), generator=torch.Generator().manual_seed(0)).float()
    for x in (few, torch.full((2, 8, 6, 7), 0.5)):
        found, wanted = outcome(fused_norm, x, torch.float32, True), outcome(plain_norm, x, torch.float64, True)
        torch.testing.assert_close(found["output"], wanted["output"], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found["slope of x"], wanted["slope of x"], rtol=1e-5, atol=1e-5)


@needs_kernels
def test_a_large_mean_does_not_drown_the_variance():
    x = noise((4, 8, 8, 8)) + 1000
    found, wanted = outcome(fused_norm, x, torch.float32, False), outcome(plain_norm, x, torch.float64, False)
    torch.testing.assert_close(found["running variance"], wanted["running variance"], rtol=1e-5, atol=0)


@needs_kernels
@pooled_or_not
def test_what_is_not_a_number_stays_so(pool):
    x = noise((2, 8, 4, 4))
    x[1, 3, 2, 2] = float("nan")
    found, wanted = outcome(fused_norm, x, torch.float32, pool), outcome(plain_norm, x, torch.float32, pool)
    assert torch.equal(found["output"].isnan(), wanted["output"].isnan())


@needs_kernels
def test_a_map_in_another_order_and_a_slope_without_strides_are_taken():
    x = noise((2, 8, 6, 6)).to(DEVICE).requires_grad_()
    weight, bias = torch.ones(8, device=DEVICE), torch.zeros(8, device=DEVICE)
    slopes = []
    for norm in (fused_norm, plain_norm):
        mean = norm(x, weight, bias, bias.clone(), weight.clone(), 0.1, 1e-5, True).mean((2, 3))
        slopes += torch.autograd.grad(mean.square().sum(), x)
    torch.testing.assert_close(*slopes, rtol=1e-4, atol=1e-5)


@needs_kernels
@pooled_or_not
def test_the_module_is_batch_norm_then_pool_then_relu(pool, monkeypatch):
    if INTERPRETED:
        monkeypatch.setattr(FusedBatchNorm, "_fusible", lambda self, x, images: self.training)
    check_module(pool)


@pooled_or_not
def test_without_kernels_the_module_is_batch_norm_then_pool_then_relu(pool, monkeypatch):
    monkeypatch.setattr(FusedBatchNorm, "_fusible", lambda self, x, images: False)
    check_module(pool)


def check_module(pool):
    ours, norm = FusedBatchNorm(8, pool).to(DEVICE), nn.BatchNorm2d(8).to(DEVICE)
    theirs = nn.Sequential(norm, nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1) if pool else nn.Identity())
    for seed in range(3):
        x = noise((2, 8, 6, 7), seed).to(DEVICE)
        torch.testing.assert_close(ours(x), theirs(x))
    assert ours.state_dict().keys() == norm.state_dict().keys()
    assert ours.num_batches_tracked == 3
    torch.testing.assert_close(ours.state_dict(), norm.state_dict())
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x))


@pytest.mark.parametrize("name", ["resnet18", "mobilenetv2_100", "tf_efficientnet_lite0"])
def test_a_timm_network_with_fused_layers_is_the_network(name):
    torch.manual_seed(0)
    plain = timm.create_model(name, num_classes=0).double()
    ours = copy.deepcopy(plain)
    fuse_norms(ours)
    fuse_depthwise(ours)
    assert not any(type(layer) in (nn.BatchNorm2d, BatchNormAct2d) for layer in ours.modules())
    assert ours.state_dict().keys() == plain.state_dict().keys()
    x = noise((3, 3, 40, 40)).double()
    for network in (plain, ours):
        network(x).square().sum().backward()
    torch.testing.assert_close(ours.state_dict(), plain.state_dict())
    slopes = ({key: value.grad for key, value in network.named_parameters()} for network in (ours, plain))
    torch.testing.assert_close(*slopes)
    torch.testing.assert_close(ours.eval()(x), plain.eval()(x))


def test_layers_that_do_something_else_stay_what_they_are():
    dropping = BatchNormAct2d(4, drop_layer=nn.Dropout2d)
    other = BatchNormAct2d(4, act_layer=nn.SiLU)
    bare = nn.BatchNorm2d(4, affine=False)
    network = nn.Sequential(dropping, other, bare, nn.BatchNorm1d(4))
    fuse_norms(network)
    assert list(network)[:3] == [dropping, other, bare] and type(network[3]) is nn.BatchNorm1d


@needs_kernels
@pooled_or_not
def test_stretches_of_images_are_normalised_as_one_after_the_other(pool):
    sizes, x = (3, 1, 2), 2 * noise((6, 24, 7, 5)) + 3

    def in_turn(x, *state):
        return torch.cat([plain_norm(part, *state) for part in torch.split(x, sizes)])

    found = outcome(lambda *given: fused_norm(*given, sizes), x, torch.float32, pool)
    assert_agree(found, outcome(in_turn, x, torch.float64, pool), 1e-5)


@needs_gpu
@pooled_or_not
def test_a_recorded_step_repeats_the_eager_one_to_the_bit(pool):
    eager = FusedBatchNorm(64, pool).cuda()
    recorded = copy.deepcopy(eager)
    batches = [noise((16, 64, 32, 32), seed).cuda().bfloat16() for seed in range(4)]
    x = batches[0].contiguous(memory_format=torch.channels_last).requires_grad_()

    def step(module, x):
        y = module(x)
        return y, *torch.autograd.grad((y.float() * y.float()).sum(), (x, module.weight, module.bias))

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step(recorded, x)
    torch.cuda.current_stream().wait_stream(stream)
    recorded.load_state_dict(eager.state_dict())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = step(recorded, x)
    for batch in batches:
        with torch.no_grad():
            x.copy_(batch)
        graph.replay()
        wanted = step(eager, batch.contiguous(memory_format=torch.channels_last).requires_grad_())
        assert all(torch.equal(one, other) for one, other in zip(kept, wanted, strict=True))
        assert all(torch.equal(one, other) for one, other in zip(recorded.buffers(), eager.buffers(), strict=True))


@pytest.mark.skipif(INTERPRETED or fused.kernels is None, reason="needs Triton; runs the tests above")
def test_the_kernels_agree_in_tritons_interpreter():
    pass_in_interpreter(__file__)
