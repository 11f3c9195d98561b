"""Several batches per step: their gradients are averaged, in every update of a step, and nothing else changes."""

from copy import deepcopy

import pytest
import torch

import afield
from afield.data import batches as arrivals
from afield.data.batches import Batch, BatchStream
from afield.data.preprocessing import Preprocessing
from afield.data.task import make_task
from afield.results.records import evaluations
from support.recipes import SOURCES, Small, build, make_batches, make_step, weights
from support.resuming import Killed, assert_equal_runs, every, kill_before_step

CODES = [name for name in afield.list_methods() if not (name.startswith("far-") or name.endswith("-paper"))]
RECIPE = {"lr": 0.05, "weight_decay": 0.01, "clip_norm": 0.5, "schedule": "constant"}


def joined(one, other):
    """One batch of the images of two, domain by domain."""
    images, labels = (
        torch.cat([torch.cat(pair) for pair in zip(one.by_domain(a), other.by_domain(b), strict=True)])
        for a, b in ((one.images, other.images), (one.labels, other.labels))
    )
    return Batch(images, labels, SOURCES)


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_two_batches_per_step_are_one_batch_of_twice_the_size(optimiser):
    one, batches = build(), make_batches(20)
    other = deepcopy(one)
    twice = make_step(one, batches, accumulate=2, optimiser=optimiser, **RECIPE)
    pairs = [joined(*batches[start : start + 2]) for start in range(0, 20, 2)]
    whole = make_step(other, pairs, optimiser=optimiser, **RECIPE)
    for number in range(10):
        assert twice.taken == number
        twice()
        whole()
        torch.testing.assert_close(twice.losses, whole.losses, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(weights(one), weights(other), rtol=1e-6, atol=1e-6)


class ThreeUpdates(Small):
    """Each update on what the one before has left, the second of the classifier alone; some code after the last."""

    ended = 0

    def updates(self, batch):
        F = self.backbone(batch.images)
        yield self.losses_of(F, batch)
        scores = self.classifier(self.pool(self.backbone(batch.images).detach()))
        yield {"sharp": scores.square().mean()}
        yield {"bent": self.backbone(batch.images).square().mean()}
        self.ended += 1


def test_each_of_several_updates_is_on_the_mean_gradient_of_all_batches():
    ours, batches = build(ThreeUpdates), make_batches(12)
    theirs = deepcopy(ours)
    step = make_step(ours, batches, accumulate=3, **RECIPE)
    optimiser = torch.optim.SGD(theirs.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01, foreach=False)
    for start in range(0, 12, 3):
        runs = [theirs.updates(batch) for batch in batches[start : start + 3]]
        expected = {}
        for _ in range(3):
            updates = [next(run) for run in runs]
            optimiser.zero_grad()
            (sum(sum(update.values()) for update in updates) / 3).backward()
            torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
            optimiser.step()
            expected |= {name: torch.stack([update[name] for update in updates]).mean() for name in updates[0]}
        step()
        assert step.losses.keys() == expected.keys() == {"classification", "spread", "sharp", "bent"}
        torch.testing.assert_close(step.losses, {name: v.detach() for name, v in expected.items()})
    torch.testing.assert_close(weights(ours), weights(theirs), rtol=1e-6, atol=1e-6)
    assert ours.ended == 12, "what follows the last update is done too"


def test_recorded_losses_are_means_over_steps_and_their_batches(train_toy, tmp_path, monkeypatch):
    from afield.methods.baseline import Baseline

    values, plain = iter([1.0, 3.0, 5.0, 7.0, 10.0, 20.0]), Baseline.losses

    def numbered(self, batch):
        return {"classification": plain(self, batch)["classification"] * 0 + next(values)}

    monkeypatch.setattr(Baseline, "losses", numbered)
    settings = {"training.evaluate_every": 2, "training.accumulate": 2}
    run = train_toy(tmp_path / "run", "baseline", 3, settings=settings)
    assert [line["step"] for line in evaluations(run.records)] == [2, 3]
    assert [line["losses"]["classification"] for line in evaluations(run.records)] == pytest.approx([4.0, 15.0])


@pytest.mark.parametrize("method", CODES)
def test_every_method_takes_several_batches_per_step(train_toy, tmp_path, method):
    settings = {"training.accumulate": 2, "training.evaluate_every": 1}
    settings |= {"method.samples": 8} if method == "meda" else {}
    run = train_toy(tmp_path / "run", method, 2, settings=settings)
    assert [line["step"] for line in evaluations(run.records)] == [1, 2]


@pytest.mark.parametrize(("placement", "accumulate"), [("resident", 3), ("streamed", 8)])
def test_a_run_killed_and_resumed_equals_the_unbroken_one(train_toy, tmp_path, monkeypatch, placement, accumulate):
    monkeypatch.setattr(arrivals, "BATCHES_OF_PICKS", 7)
    settings = {"training.accumulate": accumulate, "data.placement": placement, "data.augmentation": "digits"}
    settings |= every(3, 2)
    unbroken = train_toy(tmp_path / "unbroken", "mcd", 7, settings=settings)
    with pytest.MonkeyPatch.context() as patch:
        kill_before_step(patch, 5)
        with pytest.raises(Killed):
            train_toy(tmp_path / "killed", "mcd", 7, settings=settings)
    assert_equal_runs(train_toy(tmp_path / "killed", "mcd", 7, settings=settings, resume=True), unbroken)


@pytest.mark.parametrize("together", [1, 3, 4, 9])
@pytest.mark.parametrize("placement", ["resident", "streamed"])
def test_batches_prepared_together_are_those_prepared_one_by_one(toy, monkeypatch, placement, together):
    monkeypatch.setattr(arrivals, "BATCHES_OF_PICKS", 7)
    task, _ = make_task(toy, "uda", "night")

    def stream():
        plain = Preprocessing(16, (0.5,) * 3, (0.5,) * 3)
        return BatchStream(task, 5, plain, torch.device("cpu"), 0, "digits", placement)

    one, other = stream(), stream()
    one.next(), other.next()  # so that blocks of picks do not end with steps
    for _ in range(6):
        other.prepare(together)
        assert other.step == one.step + together
        for _ in range(together):
            expected, found = one.next(), other.draw()
            assert torch.equal(found.images, expected.images)
            assert torch.equal(found.labels, expected.labels)
    one.close(), other.close()
