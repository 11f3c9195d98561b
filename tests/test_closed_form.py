"""MEDA's closed form: the geodesic flow kernel, the optimality of the solution, and mu."""

import numpy as np
import pytest
from scipy.linalg import subspace_angles
from scipy.stats import norm

from afield.closed_form import a_distance, geodesic_flow_kernel, principal_subspace, solve_meda
from afield.closed_form.meda import balance, contrasts, kernel, laplacian


def orthonormal(rng, rows, columns):
    return np.linalg.qr(rng.normal(size=(rows, columns)))[0]


@pytest.fixture
def rng():
    return np.random.default_rng(0)


# The geodesic flow kernel.


@pytest.mark.parametrize(("rows", "columns"), [(12, 3), (12, 6), (7, 5)])
def test_the_flow_kernel_is_symmetric_positive_and_the_same_both_ways(rng, rows, columns):
    one, other = orthonormal(rng, rows, columns), orthonormal(rng, rows, columns)
    G = geodesic_flow_kernel(one, other)
    np.testing.assert_allclose(G, G.T, atol=1e-12)
    assert np.linalg.eigvalsh(G).min() > -1e-12
    assert np.linalg.eigvalsh(G).max() <= 1 + 1e-12
    assert np.trace(G) == pytest.approx(columns)  # each of the way's subspaces has this many dimensions
    np.testing.assert_allclose(geodesic_flow_kernel(other, one), G, atol=1e-10)
    rotation = orthonormal(rng, columns, columns)
    np.testing.assert_allclose(geodesic_flow_kernel(one @ rotation, other), G, atol=1e-10)  # no matter which basis


def test_of_equal_subspaces_it_is_the_projection_onto_them(rng):
    one = orthonormal(rng, 9, 4)
    X = rng.normal(size=(5, 9))
    for other in (one, one @ orthonormal(rng, 4, 4)):
        G = geodesic_flow_kernel(one, other)
        np.testing.assert_allclose(X @ G @ X.T, (X @ one) @ (X @ one).T, atol=1e-10)


def test_it_is_the_mean_over_the_way_from_one_subspace_to_the_other(rng):
    # In a plane the way is a rotation by the angle between two lines.
    angle = 0.8
    ways = [np.array([np.cos(t * angle), np.sin(t * angle)]) for t in (np.arange(1000) + 0.5) / 1000]
    ends = np.array([[1.0], [0.0]]), np.array([[np.cos(angle)], [np.sin(angle)]])
    np.testing.assert_allclose(geodesic_flow_kernel(*ends), np.mean([np.outer(w, w) for w in ways], axis=0), atol=1e-6)
    # Three planes in orthogonal pairs of axes turn independently, by principal angles of their own.
    angles = np.array([0.0, 0.5, np.pi / 2])
    start, end = np.eye(6)[:, :3], np.concatenate((np.diag(np.cos(angles)), np.diag(np.sin(angles))))
    np.testing.assert_allclose(np.sort(subspace_angles(start, end)), angles, atol=1e-7)
    G = geodesic_flow_kernel(start, end)
    for axis, angle in enumerate(angles):
        ways = [np.array([np.cos(t * angle), np.sin(t * angle)]) for t in (np.arange(1000) + 0.5) / 1000]
        expected = np.mean([np.outer(w, w) for w in ways], axis=0)
        np.testing.assert_allclose(G[np.ix_([axis, axis + 3], [axis, axis + 3])], expected, atol=1e-6)


def test_principal_directions_are_those_of_largest_variance(rng):
    features = 5 + rng.normal(size=(500, 4)) * [1, 10, 3, 0.1]
    P = principal_subspace(features, 2)
    np.testing.assert_allclose(np.abs(P), [[0, 0], [1, 0], [0, 1], [0, 0]], atol=0.1)
    np.testing.assert_allclose(P.T @ P, np.eye(2), atol=1e-12)


# The closed form.


def shifted(rng, n=90, m=40, classes=3, width=12, shift=1.5):
    """Clusters of three classes; the target's are moved, all in one direction."""
    centres = 2 * orthonormal(rng, width, classes).T
    direction = shift * orthonormal(rng, width, 1).T
    labels, truth = rng.permutation(np.arange(n) % classes), rng.permutation(np.arange(m) % classes)
    source, target = (centres[y] + 0.5 * rng.normal(size=(len(y), width)) for y in (labels, truth))
    return source, labels, target + direction, truth


def written_out(solution, labels, num_classes, *, ridge, alignment, smoothness, neighbours, classes):
    """The objective of MEDA as a function of beta, term by term, with M written as sums over classes."""
    n, Z = len(labels), solution.anchors
    m, K = len(Z) - n, np.exp(-(((Z[:, None] - Z[None]) ** 2).sum(axis=2)) / 2)
    Y = np.eye(num_classes)[labels]
    L = laplacian(Z, neighbours).toarray()
    M = (1 - solution.mu) * np.outer(e := np.r_[np.full(n, 1 / n), np.full(m, -1 / m)], e)
    for c in range(num_classes):
        ours, theirs = labels == c, classes == c
        e = np.r_[ours / ours.sum(), -(theirs / theirs.sum())]
        M += solution.mu * np.outer(e, e)
    M /= np.linalg.norm(M)

    def objective(beta):
        f = K @ beta
        loss, norm = ((Y - f[:n]) ** 2).sum(), np.trace(beta.T @ K @ beta)
        return loss + ridge * norm + alignment * np.trace(f.T @ M @ f) + smoothness * np.trace(f.T @ L @ f)

    return objective


def of_both_domains(solution):
    """f of the features it was solved for, of the source first."""
    return kernel(solution.anchors, solution.anchors) @ solution.coefficients


def test_the_solution_satisfies_its_optimality_condition(rng):
    source, labels, target, _ = shifted(rng)
    weights = {"ridge": 0.1, "alignment": 10.0, "smoothness": 1.0, "neighbours": 10}
    before, solution = (solve_meda(source, labels, target, 3, dimension=4, iterations=t, **weights) for t in (1, 2))
    # Of the second iteration, whose M is made from the first one's classes.
    objective = written_out(solution, labels, 3, classes=before.target_labels, **weights)
    least = objective(solution.coefficients)
    step = 1e-4
    for _ in range(20):  # the derivative in any direction is zero, and the objective larger on both sides
        direction = rng.normal(size=solution.coefficients.shape)
        ahead, behind = (objective(solution.coefficients + s * direction) for s in (step, -step))
        assert min(ahead, behind) > least
        assert abs(ahead - behind) < 1e-3 * (ahead + behind - 2 * least)


def test_without_alignment_and_smoothness_it_is_kernel_ridge_regression_on_the_sources(rng):
    source, labels, target, _ = shifted(rng)
    solution = solve_meda(source, labels, target, 3, dimension=4, alignment=0.0, smoothness=0.0)
    K, n = kernel(solution.anchors, solution.anchors), len(source)
    expected = np.linalg.solve(K[:n, :n] + 0.1 * np.eye(n), np.eye(3)[labels])
    np.testing.assert_allclose(solution.coefficients[:n], expected, atol=1e-8)
    np.testing.assert_allclose(solution.coefficients[n:], 0, atol=1e-8)


def test_alignment_brings_the_means_of_the_classifier_together(rng):
    source, labels, target, _ = shifted(rng)
    gaps = []
    for alignment in (0.0, 1.0, 100.0):
        solution = solve_meda(source, labels, target, 3, dimension=4, alignment=alignment)
        E = contrasts(labels, solution.target_labels, solution.mu)
        gaps.append(np.linalg.norm(E.T @ of_both_domains(solution)))
    assert gaps[0] > gaps[1] > gaps[2]


def test_smoothness_brings_neighbours_together(rng):
    source, labels, target, _ = shifted(rng)
    rough, smooth = (solve_meda(source, labels, target, 3, dimension=4, smoothness=s) for s in (0.0, 10.0))
    L = laplacian(rough.anchors, 10)
    unevenness = [np.trace(f.T @ (L @ f)) / (f**2).sum() for f in map(of_both_domains, (rough, smooth))]
    assert unevenness[1] < unevenness[0]


def test_scores_of_the_anchors_are_the_classes_it_gave_them(rng):
    source, labels, target, truth = shifted(rng)
    solution = solve_meda(source, labels, target, 3, dimension=4)
    assert (solution.scores(target).argmax(axis=1) == solution.target_labels).all()
    assert (solution.target_labels == truth).mean() > 0.9
    np.testing.assert_allclose(np.linalg.norm(solution.anchors, axis=1), 1)


def test_either_domain_is_seen_relative_to_its_own_mean_and_deviation(rng):
    source, labels, target, _ = shifted(rng)
    plain = solve_meda(source, labels, target, 3, dimension=4)
    width = source.shape[1]
    (a, b), (c, d) = ((rng.uniform(0.1, 10, width), 5 * rng.normal(size=width)) for _ in range(2))
    stretched = solve_meda(a * source + b, labels, c * target + d, 3, dimension=4)
    np.testing.assert_allclose(of_both_domains(stretched), of_both_domains(plain), atol=1e-6)
    new = target + 0.1 * rng.normal(size=target.shape)
    np.testing.assert_allclose(stretched.scores(c * new + d), plain.scores(new), atol=1e-6)
    np.testing.assert_allclose(plain.scores(target), of_both_domains(plain)[len(source) :], atol=1e-8)


def test_a_feature_that_never_changes_changes_nothing(rng):
    source, labels, target, _ = shifted(rng)
    plain = solve_meda(source, labels, target, 3, dimension=4)
    silent = [np.concatenate((features, np.full((len(features), 1), 0.3)), axis=1) for features in (source, target)]
    solution = solve_meda(silent[0], labels, silent[1], 3, dimension=4)
    np.testing.assert_allclose(solution.scores(silent[1]), plain.scores(target), atol=1e-6)


def test_the_order_of_the_features_does_not_matter(rng):
    source, labels, target, truth = shifted(rng)
    target += 1.5 * np.eye(target.shape[1])[truth]  # each class its own way, which standardising does not undo
    order = rng.permutation(len(source))
    one = solve_meda(source, labels, target, 3, dimension=4, iterations=1)
    other = solve_meda(source[order], labels[order], target, 3, dimension=4, iterations=1)
    # Only mu, whose halves follow the order, may differ, and that a little.
    assert other.mu == pytest.approx(one.mu, abs=0.1)
    np.testing.assert_allclose(other.scores(target), one.scores(target), atol=0.05)


def test_the_laplacian_is_that_of_a_graph(rng):
    z = rng.normal(size=(30, 5)) + 2
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    L = laplacian(z, 4).toarray()
    np.testing.assert_allclose(L, L.T)
    np.testing.assert_allclose(np.diag(L), 1)
    values = np.linalg.eigvalsh(L)
    assert values.min() == pytest.approx(0, abs=1e-10)
    assert values.max() <= 2
    nearest = (-(z @ z.T)).argsort(axis=1)[:, 1:5]
    linked = np.zeros((30, 30), bool)
    linked[np.arange(30)[:, None], nearest] = True
    assert ((L != 0) == (linked | linked.T | np.eye(30, dtype=bool))).all()


# mu.


def test_the_a_distance_is_2_of_what_lies_apart_and_0_of_what_is_mixed(rng):
    one = rng.normal(size=(400, 3))
    assert a_distance(one, rng.normal(size=(100, 3)) + 20) == 2
    assert a_distance(one, rng.normal(size=(100, 3))) < 0.3  # though guessing "source" is right for four of five


def test_the_a_distance_of_two_gaussians_is_known(rng):
    # The best threshold between N(0, 1) and N(2, 1) errs as often on both: Phi(-1).
    distance = a_distance(rng.normal(size=(8000, 1)), rng.normal(size=(800, 1)) + 2)
    assert distance == pytest.approx(2 * (1 - 2 * norm.cdf(-1)), abs=0.05)
    # Half of the source lies where the target does: called target, it errs on half of one domain and none of the other.
    one, other = np.repeat((0.0, 2.0), 200)[:, None], np.full((100, 1), 2.0)
    assert a_distance(one[rng.permutation(400)], other) == pytest.approx(2 * (1 - 2 * 0.25), abs=0.05)


def test_the_a_distance_is_not_that_of_what_was_learned_by_heart(rng):
    one, other = rng.normal(size=(2, 40, 60))  # fewer than there are coordinates
    assert a_distance(one, other) < 1


def test_mu_is_the_conditional_distributions_share_of_the_distances(rng):
    labels = np.repeat((0, 1), 100)
    source = rng.normal(size=(200, 2)) + 8 * labels[:, None]
    far, near = source + np.array([100, 0]), rng.normal(size=(200, 2)) + 8 * labels[:, None]
    apart = [a_distance(source, target) for target in (far, near)]
    assert balance(apart[0], source, labels, far, labels) == pytest.approx((2 + 2) / (2 + 2 + 2))
    assert 0 <= balance(apart[1], source, labels, near, labels) <= 1
    assert balance(0.0, source, labels, source, labels) == 0.5  # nothing to tell apart
    assert balance(1.0, source, labels, far, np.full(200, 2)) == 0  # no class in common
    # Domains that differ only in which class lies where: the same as a whole, apart class by class.
    swapped = np.repeat((1, 0), 100)
    assert balance(apart[1], source, labels, near, swapped) > 0.9


@pytest.mark.parametrize("shift", [0.0, 0.5, 5.0])
def test_mu_lies_between_0_and_1(rng, shift):
    source, labels, target, _ = shifted(rng, shift=shift)
    assert 0 <= solve_meda(source, labels, target, 3, dimension=4).mu <= 1


def test_a_class_that_the_target_lacks_is_left_out():
    labels, classes = np.array([0, 0, 1, 1, 2, 2]), np.array([0, 0, 0, 1])
    E = contrasts(labels, classes, 0.5)
    assert E.shape == (10, 2)  # all, and class 0: of class 1 there is one alone, of class 2 none
    np.testing.assert_allclose(E[:, 1] / np.sqrt(0.5), [0.5, 0.5, 0, 0, 0, 0, -1 / 3, -1 / 3, -1 / 3, 0])
    np.testing.assert_allclose(E.sum(axis=0), 0, atol=1e-12)
