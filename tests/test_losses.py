import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import tensor
from torch.nn.functional import softplus

from afield.losses import (
    class_shortage,
    dual_ranking_entropy,
    entropy,
    expert_consistency,
    moment_distance,
    ranking_entropy_minus,
    ranking_entropy_plus,
    unranked_entropy,
)

quick = settings(deadline=None, max_examples=25)


@pytest.fixture(autouse=True)
def seed_torch():
    torch.manual_seed(0)


def two_points(mean, deviation):
    """Two samples, mean + deviation and mean - deviation: their moments are exactly mean and deviation squared."""
    mean, deviation = tensor(mean, dtype=torch.float64), tensor(deviation, dtype=torch.float64)
    return torch.stack((mean + deviation, mean - deviation))


# Means 5 apart, variances (0, 4) and (9, 4) 9 apart.
SOURCES = (two_points([0.0, 0.0], [0.0, 2.0]), two_points([3.0, 4.0], [3.0, 2.0]))
# Means 3 and 4 from the sources', variance (0, 16): 12 and 15 from theirs.
TARGET = two_points([3.0, 0.0], [0.0, 4.0])


def constants(*values):
    """One-dimensional domains of three equal samples each, so that only means differ."""
    return tensor(values, dtype=torch.float64).view(-1, 1, 1).expand(-1, 3, 1)


def logits(*probabilities):
    return tensor(probabilities, dtype=torch.float64).log()


def entropy_of(*probabilities):
    return -sum(p * math.log(p) for p in probabilities)


def test_distance_in_dg_is_the_mean_over_source_pairs_of_mean_and_variance_distances():
    assert moment_distance(torch.stack(SOURCES), has_target=False).item() == pytest.approx(5 + 9)


def test_a_target_adds_its_mean_distance_to_the_sources():
    added = (3 + 4) / 2 + (12 + 15) / 2
    assert moment_distance(torch.stack((*SOURCES, TARGET)), has_target=True).item() == pytest.approx(5 + 9 + added)


def test_source_and_pair_terms_are_averaged_separately():
    pairs = (1 + 3 + 6 + 2 + 5 + 3) / 6
    to_target = (10 + 9 + 7 + 4) / 4
    assert moment_distance(constants(0, 1, 3, 6), has_target=False).item() == pytest.approx(pairs)
    assert moment_distance(constants(0, 1, 3, 6, 10), has_target=True).item() == pytest.approx(pairs + to_target)


def test_a_far_target_enters_uda_by_its_distance_alone():
    near, far = (moment_distance(constants(0, 1, t), has_target=True).item() for t in (2, 1002))
    assert far - near == pytest.approx(1000)


def test_without_a_target_one_source_has_nothing_to_be_far_from():
    assert moment_distance(constants(7), has_target=False) == 0


def test_distance_of_large_gaussian_samples_nears_that_of_their_moments():
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(3, 100_000, 2, generator=generator, dtype=torch.float64)
    means = tensor([[0.0, 0.0], [3.0, 4.0], [3.0, 0.0]], dtype=torch.float64)
    deviations = tensor([[1.0, 2.0], [3.0, 2.0], [1.0, 1.0]], dtype=torch.float64)
    features = means[:, None] + deviations[:, None] * noise
    expected = 5 + (3 + 4) / 2 + 8 + (3 + math.hypot(8, 3)) / 2
    assert moment_distance(features, has_target=True).item() == pytest.approx(expected, abs=0.2)


def test_equal_domains_are_at_distance_zero_with_a_finite_gradient():
    features = torch.randn(1, 4, 5).expand(3, 4, 5).clone().requires_grad_()
    distance = moment_distance(features, has_target=True)
    distance.backward()
    assert distance == 0
    assert features.grad.isfinite().all()


@quick
@given(st.integers(2, 5).flatmap(lambda n: st.permutations(range(n))), st.booleans(), st.integers(0, 2**31))
def test_the_order_of_sources_does_not_matter(order, has_target, seed):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(len(order) + has_target, 4, 3, generator=generator, dtype=torch.float64)
    shuffled = torch.cat((features[list(order)], features[len(order) :]))
    torch.testing.assert_close(moment_distance(shuffled, has_target), moment_distance(features, has_target))


def test_norms_are_not_squared():
    means_only, variances_only = constants(0, 1, 5), torch.stack((SOURCES[0], two_points([0.0, 0.0], [3.0, 1.0])))
    for factor in (0.5, 2.0, 10.0):
        grown = moment_distance(factor * means_only, has_target=True)
        torch.testing.assert_close(grown, factor * moment_distance(means_only, has_target=True))
        # A variance grows with the square of the features, its distance with the first power of the variance.
        grown = moment_distance(factor * variances_only, has_target=False)
        torch.testing.assert_close(grown, factor**2 * moment_distance(variances_only, has_target=False))


def test_moving_domains_apart_raises_the_distance_and_the_gradient_pulls_them_together():
    features = constants(0, 4).clone().requires_grad_()
    moment_distance(features, has_target=False).backward()
    assert (features.grad[0] < 0).all() and (features.grad[1] > 0).all()


@pytest.mark.parametrize(
    ("given_in", "computed_in"),
    [(torch.bfloat16, torch.float32), (torch.float16, torch.float32), (torch.float64, torch.float64)],
)
def test_losses_are_computed_in_float32_or_better(given_in, computed_in):
    values = torch.randn(3, 4, 5).to(given_in)
    assert moment_distance(values, has_target=True).dtype == computed_in
    assert dual_ranking_entropy(*values).dtype == computed_in
    assert unranked_entropy(values[0], values[1]).dtype == computed_in
    assert expert_consistency(values[0], values[1]).dtype == computed_in


def test_entropy_is_in_nats_and_a_value_for_each_row():
    rows = entropy(logits([0.5, 0.25, 0.25], [0.8, 0.1, 0.1]))
    assert rows.tolist() == pytest.approx([1.5 * math.log(2), entropy_of(0.8, 0.1, 0.1)])


@pytest.mark.parametrize("classes", [2, 10, 345])
def test_entropy_of_the_uniform_prediction_is_the_log_of_the_number_of_classes(classes):
    assert entropy(torch.full((1, classes), 3.0)).item() == pytest.approx(math.log(classes), rel=1e-5)


@quick
@given(st.lists(st.floats(-1e4, 1e4), min_size=2, max_size=20))
def test_entropy_lies_between_zero_and_the_log_of_the_number_of_classes(row):
    value = entropy(tensor([row], dtype=torch.float64)).item()
    assert 0 <= value <= math.log(len(row)) + 1e-9


SHARP, MIDDLE, BLURRY = ([0.9, 0.1], [0.7, 0.3], [0.5, 0.5])


def test_each_half_has_the_value_and_the_sign_of_its_formula():
    sharp, middle, blurry = (entropy_of(*p) for p in (SHARP, MIDDLE, BLURRY))
    plus = ranking_entropy_plus(enhanced=logits(SHARP), reference=logits(MIDDLE)).item()
    minus = ranking_entropy_minus(reference=logits(MIDDLE), contaminated=logits(BLURRY)).item()
    assert plus == pytest.approx(math.log1p(math.exp(sharp - middle)))
    assert minus == pytest.approx(math.log1p(math.exp(middle - blurry)))
    # Ranked rightly: below softplus(0). The wrong way round: above it.
    assert plus < math.log(2) < ranking_entropy_plus(logits(MIDDLE), logits(SHARP)).item()
    assert minus < math.log(2) < ranking_entropy_minus(logits(BLURRY), logits(MIDDLE)).item()
    both = dual_ranking_entropy(enhanced=logits(SHARP), reference=logits(MIDDLE), contaminated=logits(BLURRY))
    assert both.item() == pytest.approx(plus + minus)


def test_without_ranking_the_two_entropies_are_subtracted():
    value = unranked_entropy(enhanced=logits(SHARP), contaminated=logits(BLURRY)).item()
    assert value == pytest.approx(entropy_of(*SHARP) - entropy_of(*BLURRY))
    assert value < 0


def test_ranking_is_averaged_over_samples_after_the_softplus():
    enhanced, reference = logits(SHARP, BLURRY), logits(BLURRY, SHARP)
    gap = tensor(entropy_of(*BLURRY) - entropy_of(*SHARP), dtype=torch.float64)
    expected = (softplus(-gap) + softplus(gap)) / 2
    torch.testing.assert_close(ranking_entropy_plus(enhanced, reference), expected)
    torch.testing.assert_close(ranking_entropy_minus(enhanced, reference), expected)


def test_equal_predictions_cost_log_two_per_half():
    same = torch.randn(6, 5, dtype=torch.float64)
    assert dual_ranking_entropy(same, same, same).item() == pytest.approx(2 * math.log(2))
    assert unranked_entropy(same, same).item() == 0


@quick
@given(st.floats(1.05, 4), st.integers(0, 2**31))
def test_sharper_enhanced_and_blurrier_contaminated_predictions_cost_less(factor, seed):
    scores = torch.randn(4, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    reference = torch.zeros(4, 5, dtype=torch.float64)
    assert ranking_entropy_plus(factor * scores, reference) < ranking_entropy_plus(scores, reference)
    assert ranking_entropy_minus(scores, scores / factor) < ranking_entropy_minus(scores, scores)


def test_consistency_sums_over_classes_and_averages_over_samples():
    student, teacher = logits([0.5, 0.3, 0.2], [0.2, 0.2, 0.6]), logits([0.7, 0.2, 0.1], [0.2, 0.2, 0.6])
    assert expert_consistency(student, teacher).item() == pytest.approx((0.2 + 0.1 + 0.1 + 0) / 2)


@quick
@given(st.lists(st.tuples(st.floats(-50, 50), st.floats(-50, 50)), min_size=2, max_size=10))
def test_consistency_lies_between_zero_for_agreement_and_two_for_contradiction(pairs):
    student, teacher = tensor(pairs, dtype=torch.float64).T[:, None]
    assert 0 <= expert_consistency(student, teacher) <= 2 + 1e-9
    assert expert_consistency(student, student + 3) < 1e-9


def test_certain_predictions_of_different_classes_are_at_distance_two():
    assert expert_consistency(tensor([[100.0, 0.0]]), tensor([[0.0, 100.0]])).item() == pytest.approx(2)


def test_the_expert_teaches_and_is_not_taught():
    student, teacher = torch.randn(4, 3, requires_grad=True), torch.randn(4, 3, requires_grad=True)
    expert_consistency(student, teacher).backward()
    assert student.grad.abs().sum() > 0
    assert teacher.grad is None


def test_class_shortage_is_nothing_while_every_class_has_half_of_an_equal_share():
    certain = 50 * torch.eye(4, dtype=torch.double)
    assert class_shortage(certain).item() == 0
    assert class_shortage(certain[[0] * 5 + [1, 2, 3]]).item() == pytest.approx(0, abs=1e-9)  # an eighth each
    assert class_shortage(torch.zeros(3, 4)).item() == 0
    shares = torch.tensor([[0.7, 0.2, 0.05, 0.05]], dtype=torch.double)
    assert class_shortage(shares.log()).item() == pytest.approx(2 / 4 * math.log(0.125 / 0.05))


def test_class_shortage_gives_missing_classes_more_and_leaves_the_others_order_alone():
    scores = torch.tensor([[6.0, 3.0, 0.0], [6.0, 0.0, 0.0]], requires_grad=True)
    class_shortage(scores).backward()
    assert (scores.grad[:, 0] > 0).all()
    assert scores.grad[:, 2].sum() < 0
    assert class_shortage(scores[:1].expand(8, -1)) > 0
