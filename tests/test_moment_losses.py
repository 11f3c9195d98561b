"""MMD, joint MMD and CORAL: on Gaussians, and against their definitions."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import tensor

from afield.losses import (
    coral_distance,
    gaussian_kernel,
    joint_squared_mmd,
    squared_mmd,
    squared_mmd_among,
)
from support.comparing import normal, same

quick = settings(deadline=None, max_examples=25)


@pytest.fixture(autouse=True)
def seed_torch():
    torch.manual_seed(0)


# ---- MMD ----


def kernel_by_hand(x, y, widths):
    """Pair by pair, from the definition."""
    distance = (x[:, None] - y[None]).square().sum(dim=-1)
    return sum(torch.exp(-distance / width) for width in widths)


def widths_by_hand(samples, kernels, step):
    pairs = [(a - b).square().sum() for a, b in itertools.combinations(samples.detach(), 2)]
    middle = sum(pairs) / len(pairs)
    return [middle * step ** (number - (kernels - 1) / 2) for number in range(kernels)]


@pytest.mark.parametrize(("kernels", "step"), [(1, 2.0), (2, 3.0), (5, 2.0)])
def test_the_kernels_lie_about_the_mean_squared_distance_of_two_samples(kernels, step):
    samples = 3 + 2 * normal(6, 4)
    widths = widths_by_hand(samples, kernels, step)
    same(gaussian_kernel(samples, kernels, step), kernel_by_hand(samples, samples, widths))
    assert math.prod(widths) == pytest.approx(math.prod(widths_by_hand(samples, 1, step)) ** kernels)


def test_a_given_width_is_the_middle_one_whatever_the_samples():
    samples = 3 + 2 * normal(6, 4)
    same(gaussian_kernel(samples, 1, width=1.68), kernel_by_hand(samples, samples, [1.68]))
    same(gaussian_kernel(samples, 3, 2.0, width=1.68), kernel_by_hand(samples, samples, [0.84, 1.68, 3.36]))


def test_kernels_are_summed_not_averaged():
    # Of samples that are far nearer to each other than the widths, k is 1 - |x - y|^2 (1/w_1 + ... + 1/w_5).
    samples = 0.01 * normal(6, 4)
    slopes = [(gaussian_kernel(samples, count, width=1.0) - count)[0, 1] for count in (1, 5)]
    assert slopes[1] / slopes[0] == pytest.approx(4 + 2 + 1 + 1 / 2 + 1 / 4, rel=0.01)
    assert torch.equal(gaussian_kernel(samples).diagonal(), torch.full((6,), 5.0, dtype=torch.float64))


def test_mmd_is_that_of_its_definition_and_its_width_is_no_variable():
    source, target = normal(5, 3).requires_grad_(), (1 + normal(7, 3)).requires_grad_()
    widths = widths_by_hand(torch.cat((source, target)), 5, 2.0)
    within = kernel_by_hand(source, source, widths).mean() + kernel_by_hand(target, target, widths).mean()
    expected = within - 2 * kernel_by_hand(source, target, widths).mean()
    actual = squared_mmd(source, target)
    same(actual, expected)
    same(torch.autograd.grad(actual, (source, target)), torch.autograd.grad(expected, (source, target)))


@pytest.mark.parametrize("kernels", [1, 5])
def test_mmd_of_two_gaussians_is_the_closed_form_and_the_bias_of_the_estimate(kernels):
    # x - y ~ N(m, v I), so that E exp(-|x - y|^2 / w) = (w / (w + 2 v))^(d/2) exp(-|m|^2 / (w + 2 v)).
    dim, count, mean, spread = 2, 800, 1.5, 2.0
    source, target = normal(count, dim), spread * normal(count, dim)
    target[:, 0] += mean
    middle = 2 * (dim * (1 + spread**2) / 2 + mean**2 / 4)  # twice the variance of the mixture of both

    def expected_kernel(m, v):
        widths = [middle * 2 ** (number - (kernels - 1) / 2) for number in range(kernels)]
        return sum((w / (w + 2 * v)) ** (dim / 2) * math.exp(-(m**2) / (w + 2 * v)) for w in widths)

    of_source, of_target = expected_kernel(0, 2), expected_kernel(0, 2 * spread**2)
    population = of_source + of_target - 2 * expected_kernel(mean, 1 + spread**2)
    bias = (2 * kernels - of_source - of_target) / count
    assert squared_mmd(source, target, kernels).item() == pytest.approx(population + bias, rel=0.1)


def test_two_samples_of_one_distribution_are_as_far_apart_as_the_bias_says():
    size, kernel = 32, 0.5  # d = 2 and v = 2: the width is 4, and E k = 4 / (4 + 2 v)
    values = [squared_mmd(*normal(2, size, 2), kernels=1) for _ in range(300)]
    # The width is the batch's own, not quite 4; hence the tolerance.
    assert torch.stack(values).mean().item() == pytest.approx(2 / size * (1 - kernel), rel=0.05)


@quick
@given(st.integers(0, 2**31), st.integers(2, 6), st.integers(2, 6))
def test_mmd_is_symmetric_never_negative_and_indifferent_to_place_turn_and_scale(seed, n, m):
    torch.manual_seed(seed)
    source, target = normal(n, 3), normal(m, 3) * 2 + 1
    value = squared_mmd(source, target)
    assert value >= -1e-12
    same(squared_mmd(target, source), value)
    same(squared_mmd(source.flip(0), target), value)
    turn = torch.linalg.qr(normal(3, 3)).Q
    same(squared_mmd(5 * source @ turn - 7, 5 * target @ turn - 7), value)
    assert abs(squared_mmd(source, source)) < 1e-12


def test_mmd_grows_with_the_shift():
    sample = normal(20, 2)
    values = [squared_mmd(sample, sample + shift).item() for shift in (0.0, 0.5, 1.0, 2.0)]
    assert values == sorted(values)


def test_equal_samples_have_a_finite_gradient():
    points = torch.ones(4, 2, requires_grad=True)
    (gradient,) = torch.autograd.grad(squared_mmd(points, points[:2] + 0), points)
    assert gradient.isfinite().all()


def test_joint_mmd_of_one_layer_is_mmd():
    source, target = normal(5, 3), normal(4, 3) + 1
    kernel = gaussian_kernel(torch.cat((source, target)))
    same(joint_squared_mmd([kernel], 5), squared_mmd(source, target))
    # A layer that says the same of all samples adds nothing.
    silent = gaussian_kernel(torch.ones(9, 2).double(), 1)
    same(joint_squared_mmd([kernel, silent], 5), squared_mmd(source, target))


def test_joint_mmd_multiplies_the_layers_kernels():
    layers = [normal(9, 3), torch.cat((normal(5, 2), normal(4, 2) + 1))]
    features, others = gaussian_kernel(layers[0], 3, 2.0), gaussian_kernel(layers[1], 1, width=1.68)
    kernel = features * others
    expected = kernel[:5, :5].mean() + kernel[5:, 5:].mean() - 2 * kernel[:5, 5:].mean()
    same(joint_squared_mmd([features, others], 5), expected)


def test_joint_mmd_sees_what_the_layers_have_together_and_neither_has_alone():
    signs = tensor([[-1.0], [-1.0], [1.0], [1.0]])
    same_sign, other_sign = torch.cat((signs, signs)), torch.cat((signs, -signs))
    kernels = gaussian_kernel(same_sign), gaussian_kernel(other_sign)
    assert all(abs(joint_squared_mmd([kernel], 4)) < 1e-6 for kernel in kernels)
    assert joint_squared_mmd(kernels, 4) > 0.1


def test_mmd_among_domains_is_twice_their_variance_in_the_kernels_space():
    domains = normal(4, 3, 2) + torch.arange(4).view(-1, 1, 1)
    kernel = gaussian_kernel(domains.flatten(0, 1)).view(4, 3, 4, 3) / 5  # a mean, as in MMD-AAE
    inner = kernel.mean(dim=(1, 3))
    pairs = [inner[i, i] + inner[j, j] - 2 * inner[i, j] for i in range(4) for j in range(4)]
    variance = sum(inner[i, i] - 2 * inner[i].mean() + inner.mean() for i in range(4)) / 4
    same(squared_mmd_among(domains), sum(pairs) / 16)
    same(squared_mmd_among(domains), 2 * variance)
    same(squared_mmd_among(domains[:2]), squared_mmd(*domains[:2]) / 5 / 2)
    assert abs(squared_mmd_among(domains[:1].expand(4, -1, -1))) < 1e-12


# ---- CORAL ----


@pytest.mark.parametrize("count", [2, 3, 5])
def test_coral_is_the_mean_over_pairs_of_the_papers_distance(count):
    domains = normal(count, 6, 4) * torch.arange(1, count + 1).view(-1, 1, 1)
    covariances = [torch.cov(domain.T) for domain in domains]
    pairs = [(a - b).square().sum() / (4 * 4**2) for a, b in itertools.combinations(covariances, 2)]
    same(coral_distance(domains), sum(pairs) / len(pairs))


def test_coral_of_two_gaussians_is_the_distance_of_their_covariances():
    factor = tensor([[1.0, 0.0], [1.0, 2.0]], dtype=torch.float64)  # covariance [[1, 1], [1, 5]]
    domains = torch.stack((normal(20000, 2), normal(20000, 2) @ factor.T))
    assert coral_distance(domains).item() == pytest.approx((0 + 1 + 1 + 16) / (4 * 2**2), rel=0.05)


def test_coral_is_blind_to_means_and_of_one_domain_is_nothing():
    domains = normal(2, 5, 3)
    shifted = domains + tensor([[[0.0]], [[9.0]]])
    same(coral_distance(shifted), coral_distance(domains))
    assert coral_distance(domains[:1]) == 0
    assert coral_distance(domains) > 0


def test_autocast_changes_nothing():
    source, target = torch.randn(2, 6, 5)

    def distances():
        both = torch.stack((source, target))
        kernels = gaussian_kernel(both.flatten(0, 1)), gaussian_kernel(both.flatten(0, 1)[:, :2], 1, width=1.68)
        joint = joint_squared_mmd(kernels, len(source))
        return squared_mmd(source, target), joint, squared_mmd_among(both), coral_distance(both)

    with torch.autocast("cpu", torch.bfloat16):
        low = distances()
    same(low, distances())
