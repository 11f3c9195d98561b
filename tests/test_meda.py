"""MEDA: the method on a baseline's features."""

import numpy as np
import pytest
import torch
from torch import nn

from afield import load
from afield.closed_form import solve_meda
from afield.data.batches import Batch, BatchStream
from afield.data.preprocessing import Preprocessing
from afield.data.task import make_task
from afield.methods.create import create_method
from afield.results.table import make_table
from afield.training.checkpoint import load_checkpoint

FEW = {"method.samples": 20}
NAMES = ("meda", "baseline")


# The method.


def make_meda(samples=6, sources=2, **options):
    torch.manual_seed(0)
    shape = {"num_classes": 3, "num_sources": sources, "network": {"width": 8}}
    return create_method("meda", **shape, samples=samples, dimension=3, neighbours=3, **options)


def images_of(count, sources=2):
    torch.manual_seed(1)
    return Batch(torch.randn((sources + 1) * count, 3, 32, 32), torch.arange(sources * count) % 3, sources)


def test_what_the_method_says_is_what_was_solved_for():
    method, batch = make_meda(), images_of(6)
    own = method.eval()(batch.images)  # before it is fitted
    method.before_evaluation(lambda count: batch)
    assert not method.training
    with torch.no_grad():
        vectors = method.pool(method.backbone(batch.images))
        np.testing.assert_allclose(own.detach(), method.classifier(vectors), atol=1e-6)
        f, seen = method.kernels(vectors), method.inspect(batch.images)
    solution = solve_meda(
        vectors[:12].double().numpy(), batch.labels.numpy(), vectors[12:].double().numpy(), 3, dimension=3, neighbours=3
    )
    np.testing.assert_allclose(f, solution.scores(vectors.double().numpy()), atol=1e-4)
    assert (f[12:].argmax(dim=1).numpy() == solution.target_labels).all()
    torch.testing.assert_close(seen.scores.softmax(dim=1), f.clamp_min(1e-6) / f.clamp_min(1e-6).sum(1, keepdim=True))
    torch.testing.assert_close(seen.views["network"], method.classifier(vectors))
    torch.testing.assert_close(method(batch.images), seen.scores)


def test_the_first_labels_of_the_target_are_the_networks_own():
    method, batch = make_meda(iterations=1), images_of(6)
    torch.nn.init.zeros_(method.classifier[-1].weight)
    with torch.no_grad():
        method.classifier[-1].bias.copy_(torch.tensor([0.0, 9.0, 0.0]))  # it says class 1, whatever it sees
    method.eval().before_evaluation(lambda count: batch)
    with torch.no_grad():
        vectors = method.pool(method.backbone(batch.images)).double().numpy()
    given = vectors[:12], batch.labels.numpy(), vectors[12:], 3
    options = {"dimension": 3, "neighbours": 3, "iterations": 1}
    expected = solve_meda(*given, first=np.ones(6, dtype=np.int64), **options)
    np.testing.assert_allclose(method.coefficients, expected.coefficients, atol=1e-4)
    other = solve_meda(*given, first=np.zeros(6, dtype=np.int64), **options)
    assert np.abs(expected.coefficients - other.coefficients).max() > 1e-2


def test_fewer_images_than_asked_for_change_nothing():
    whole, padded, batch = make_meda(6), make_meda(9), images_of(6)
    for method in (whole, padded):
        method.before_evaluation(lambda count: batch)
        method.eval()
    assert (padded.coefficients[18:] == 0).all()
    torch.testing.assert_close(padded(batch.images), whole(batch.images))
    padded.before_evaluation(lambda count: images_of(4))
    assert (padded.coefficients[12:] == 0).all()  # nothing of the former solution is left


def test_fitting_leaves_the_network_as_it_is_and_uses_its_running_statistics():
    method, batch = make_meda(), images_of(6)
    before = {name: value.clone() for name, value in method.state_dict().items()}
    method.before_evaluation(lambda count: batch)
    assert method.training
    kept = {n for n, value in method.state_dict().items() if torch.equal(value, before[n])}
    assert before.keys() - kept == {"solved", "centre", "projection", "anchors", "coefficients"}


def test_still_batches_are_the_same_at_every_step(toy):
    task, _ = make_task(toy, "uda", "night")
    stream = BatchStream(task, 4, Preprocessing(16, (0.5,) * 3, (0.5,) * 3), torch.device("cpu"), seed=0)
    first = stream.still(10)
    following = [stream.next() for _ in range(30)][-1]
    again = stream.still(10)
    assert torch.equal(first.images, again.images)
    assert torch.equal(first.labels, again.labels)
    assert (len(first.images), first.per_domain, first.num_sources) == (40, 10, 3)
    assert len(stream.still(1000).images) == 4 * 24  # the smallest domain's
    known = {image.tobytes() for image in toy["day"].train.images.array}
    images = ((first.images[:10] * 0.5 + 0.5) * 255).round().byte().permute(0, 2, 3, 1).numpy()
    assert {image.tobytes() for image in images} <= known
    # Asking for it does not disturb the stream.
    other = BatchStream(task, 4, Preprocessing(16, (0.5,) * 3, (0.5,) * 3), torch.device("cpu"), seed=0)
    assert torch.equal([other.next() for _ in range(30)][-1].images, following.images)


# In the loop.


def test_the_network_is_trained_as_the_baseline(train_toy, tmp_path):
    meda, baseline = (train_toy(tmp_path / name, name, settings=FEW if name == "meda" else {}) for name in NAMES)
    state, expected = (load_checkpoint(run.checkpoint).state["model"] for run in (meda, baseline))
    assert expected.keys() < state.keys()
    assert all(torch.equal(state[name], value) for name, value in expected.items())
    for line, other in zip(meda.records, baseline.records, strict=True):
        if line["event"] == "evaluation":
            assert line["target"]["night"]["views"]["network"] == other["target"]["night"]["accuracy"]
            assert line["losses"] == other["losses"]
    model = load(meda.checkpoint)
    assert bool(model.method.solved)
    assert model.predict_proba(np.zeros((2, 16, 16, 3), np.uint8)).sum(dim=1).tolist() == pytest.approx([1, 1])


def test_a_run_of_meda_is_a_row_of_a_table(train_toy, tmp_path):
    run = train_toy(tmp_path / "run", "meda", settings=FEW)
    assert [row.name.split()[0] for row in make_table([run.folder]).rows] == ["meda"]


# Learning.


def clusters(offset, count, seed):
    """Three classes of 8-vectors; a domain adds an offset of its own to all of them."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, count)
    points = 2 * np.eye(3, 8)[labels] + offset + 0.5 * rng.normal(size=(count, 8))
    return torch.tensor(points, dtype=torch.float32), torch.tensor(labels)


def accuracies(seed):
    """On a target that is moved towards one of the classes: of the trained network, and of MEDA on its features."""
    torch.manual_seed(seed)
    axes = np.eye(8)
    offsets = 0 * axes[3], 0.5 * axes[4], 2 * (axes[0] + axes[5])
    domains = [clusters(offset, 300, 10 * seed + place) for place, offset in enumerate(offsets)]
    method = create_method("meda", num_classes=3, num_sources=2, network={"width": 8}, samples=100)
    method.backbone = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
    method.pool = nn.Identity()
    optimiser = torch.optim.SGD(method.parameters(), lr=0.1, momentum=0.9)

    def draw(picks):
        points = torch.cat([points[picks] for points, _ in domains])
        return Batch(points, torch.cat([labels[picks] for _, labels in domains[:-1]]), 2)

    for _ in range(100):
        optimiser.zero_grad()
        method.losses(draw(torch.randint(300, (32,))))["classification"].backward()
        optimiser.step()
    points, truth = clusters(offsets[-1], 500, 99)
    results = []
    for _ in range(2):
        with torch.no_grad():
            results.append((method.eval()(points).argmax(dim=1) == truth).float().mean().item())
        method.before_evaluation(lambda count: draw(torch.arange(100)))
    return results


def test_it_adapts_to_an_offset_that_the_baseline_does_not_know():
    # Over eight seeds the gain was 0.29, and at least 0.15 in each.
    baseline, adapted = np.mean([accuracies(seed) for seed in range(4)], axis=0)
    assert adapted > baseline + 0.15
