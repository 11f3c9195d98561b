"""Selectors that need no label of the target: their scores, what they look at, and what they choose."""

import math
import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from afield import AfieldError
from afield.config.selectors import LABEL_FREE, NEED_TARGET
from afield.data.images import ArrayImages
from afield.results.records import evaluations, rewrite_records
from afield.results.selection import scores, select
from afield.training.scores import (
    deep_embedded_validation,
    density_ratios,
    nuclear_norm,
    soft_neighbourhood_density,
)

ROOT = Path(__file__).parents[1]
SURE = torch.eye(4, dtype=torch.float64).repeat(5, 1)  # 20 images, 5 of each of 4 classes
ONE_CLASS = torch.eye(4, dtype=torch.float64)[:1].repeat(20, 1)
BLURRED = torch.full((20, 4), 0.25, dtype=torch.float64)


def said(entropy=0.5, diversity=1.0, snd=1.0, nuclear=0.5, dev=0.5):
    numbers = {"entropy": entropy, "diversity": diversity, "snd": snd, "nuclear": nuclear, "dev": dev}
    return {"images": "train", **numbers}


def evaluation(step, source=0.5, target=0.5, **numbers):
    return {
        "event": "evaluation", "step": step, "sources": {"a": {"accuracy": source, "n": 9}},
        "target": {"t": {"accuracy": target, "n": 9}}, "unlabelled": {"t": said(**numbers)},
    }  # fmt: skip


def test_soft_neighbourhood_density_is_the_entropy_of_equal_neighbours():
    # Each of the 5 images of a class has 4 at similarity 1, and the others at 0, which e^20 makes vanish.
    assert soft_neighbourhood_density(SURE).item() == pytest.approx(math.log(4), abs=1e-6)
    assert soft_neighbourhood_density(ONE_CLASS).item() == pytest.approx(math.log(19))
    assert soft_neighbourhood_density(SURE[:1]).item() == 0


def test_the_nuclear_norm_is_greatest_for_sure_predictions_of_all_classes():
    assert nuclear_norm(SURE).item() == pytest.approx(1)
    assert nuclear_norm(ONE_CLASS).item() == pytest.approx(0.5)
    assert nuclear_norm(BLURRED).item() == pytest.approx(0.25)


def test_the_weighted_risk_is_that_on_the_target():
    rng = np.random.default_rng(0)
    # Two kinds of images, at -1 and 1: of the sources 20 % are of the second, of the target 80 %.
    source, wanted, target = (np.where(rng.random(4000) < share, 1.0, -1.0)[:, None] for share in (0.2, 0.2, 0.8))
    weights = density_ratios(source, target, wanted)
    assert weights[wanted[:, 0] > 0] == pytest.approx(4, rel=0.2)
    assert weights[wanted[:, 0] < 0] == pytest.approx(0.25, rel=0.2)
    losses = np.where(wanted[:, 0] > 0, 2.0, 0.5)
    assert deep_embedded_validation(losses, weights) == pytest.approx(0.8 * 2 + 0.2 * 0.5, rel=0.1)


def test_the_control_variate_takes_out_what_the_weights_alone_explain():
    weights = np.random.default_rng(0).exponential(1.3, 50)
    assert deep_embedded_validation(np.full(50, 0.7), weights) == pytest.approx(0.7)
    assert deep_embedded_validation(np.array([0.3, 0.5]), np.ones(2)) == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("selector", "better"),
    [("information", {"entropy": 0.1}), ("information", {"diversity": 1.1}), ("entropy", {"entropy": 0.1}),
     ("snd", {"snd": 2.0}), ("nuclear", {"nuclear": 0.9}), ("dev", {"dev": 0.1}), ("ensemble", {"dev": 0.1})],
)  # fmt: skip
def test_each_selector_chooses_by_its_score_and_of_equals_the_earliest(selector, better):
    run = [evaluation(1), evaluation(2, **better), evaluation(3, **better), evaluation(4)]
    assert select(run, selector)["step"] == 2


def test_information_prefers_sure_and_varied_predictions():
    blurred, one_class, sure = (
        evaluation(step, entropy=entropy, diversity=diversity)
        for step, (entropy, diversity) in enumerate([(1.0, 1.1), (0.0, 0.0), (0.2, 1.0)])
    )
    found = scores([blurred, one_class, sure], "information")
    assert found[2] > found[0] > found[1]
    assert select([blurred, one_class, sure], "entropy") is one_class, "which is why entropy alone may fail"


def test_the_ensemble_takes_the_best_mean_rank():
    run = [evaluation(1, snd=9.0), evaluation(2, source=0.6, snd=8.0, dev=0.4), evaluation(3, source=0.9)]
    assert select(run, "ensemble")["step"] == 2
    # Ranks by source-val 1, 2, 3; by snd 3, 2, 1; by dev 1.5, 3, 1.5; and three times 2, 2, 2.
    assert scores(run, "ensemble") == pytest.approx([11.5 / 6, 13 / 6, 11.5 / 6])


def test_no_selector_but_the_oracle_looks_at_the_targets_accuracy():
    run = [evaluation(step, source=step / 9, snd=5 - step, nuclear=step % 3) for step in range(1, 6)]
    blind = [{**line, "target": {"t": {"accuracy": None, "n": 9}}} for line in run]
    for selector in LABEL_FREE:
        assert select(run, selector)["step"] == select(blind, selector)["step"]
    with pytest.raises(AfieldError, match="has no labels"):
        select(blind, "oracle")


@pytest.mark.parametrize("selector", NEED_TARGET)
def test_a_selector_whose_scores_are_not_recorded_says_what_to_do(selector):
    unseen = {**evaluation(1), "unlabelled": {}}
    with pytest.raises(AfieldError, match=f"'{selector}' needs .* only a uda run has, or take last, source-val$"):
        select([unseen], selector)
    older = {**evaluation(1), "unlabelled": {"t": {"entropy": 0.5, "diversity": 1.0}}}
    if selector in ("information", "entropy"):
        assert select([older], selector) is older
        return
    with pytest.raises(AfieldError, match=r"older records do not have; train again, or take .*information, entropy$"):
        select([older], selector)


@pytest.fixture(scope="module")
def uda_run(train_toy, tmp_path_factory):
    return train_toy(tmp_path_factory.mktemp("uda") / "run", settings={"training.evaluate_every": 3})


def test_an_evaluation_records_scores_of_the_targets_training_images(uda_run, toy):
    lines = evaluations(uda_run.records)
    for line in lines:
        assert line["unlabelled"].keys() == {"night"}
        found = line["unlabelled"]["night"]
        assert (found["images"], found["n"]) == ("train", len(toy["night"].train))
        assert 0 <= found["entropy"] <= found["diversity"] <= math.log(3) + 1e-6
        assert 0 < found["nuclear"] <= 1
        assert 0 <= found["snd"] <= math.log(found["n"] - 1) + 1e-6
    for selector in LABEL_FREE:
        assert uda_run.select(selector).evaluation in lines


def test_a_last_chunk_that_is_filled_up_with_copies_changes_no_figure(uda_run, train_toy, tmp_path, monkeypatch):
    monkeypatch.setattr("afield.training.chunks.on_gpu", lambda pixels: True)
    filled = train_toy(tmp_path / "run", settings={"training.evaluate_every": 3})
    for line, other in zip(evaluations(uda_run.records), evaluations(filled.records), strict=True):
        for name, found in line["sources"].items():
            assert found["accuracy"] == other["sources"][name]["accuracy"]
            assert found["gates"] == pytest.approx(other["sources"][name]["gates"], rel=1e-4)
        assert line["target"]["night"]["accuracy"] == other["target"]["night"]["accuracy"]
        scores, others = line["unlabelled"]["night"], other["unlabelled"]["night"]
        assert scores["n"] == others["n"]
        assert scores["entropy"] == pytest.approx(others["entropy"], abs=1e-4)
        assert scores["dev"] == pytest.approx(others["dev"], abs=1e-3)


def test_labels_and_test_images_of_the_target_change_no_score(toy, train_toy, uda_run, tmp_path, monkeypatch):
    from afield.data import registry

    night = toy["night"]
    poisoned = replace(
        night,
        train=replace(night.train, labels=np.full_like(night.train.labels, 2)),
        test=replace(night.test, images=ArrayImages(255 - night.test.images.array), labels=(night.test.labels + 1) % 3),
    )
    monkeypatch.setitem(registry._builders, "toy", lambda: replace(toy, domains={**toy.domains, "night": poisoned}))
    blind = train_toy(tmp_path / "run", settings={"training.evaluate_every": 3})
    for one, other in zip(evaluations(uda_run.records), evaluations(blind.records), strict=True):
        assert one["unlabelled"] == other["unlabelled"]
    for selector in LABEL_FREE:
        assert uda_run.select(selector).step == blind.select(selector).step
    assert [line["target"] for line in evaluations(uda_run.records)] != [
        line["target"] for line in evaluations(blind.records)
    ]


def test_without_target_images_in_training_nothing_is_known_of_the_target(train_toy, tmp_path):
    run = train_toy(tmp_path / "run", "baseline", 2, task="dg")
    assert all(line["unlabelled"] == {} for line in evaluations(run.records))
    assert run.select("source-val").step == 2
    with pytest.raises(AfieldError, match=r"'information' needs scores .* only a uda run has"):
        run.select("information")


def test_of_a_large_target_a_part_is_looked_at(train_toy, tmp_path, monkeypatch):
    monkeypatch.setattr("afield.training.label_free.MOST_OF_TARGET", 10)
    run = train_toy(tmp_path / "run", "baseline", 2)
    assert evaluations(run.records)[-1]["unlabelled"]["night"]["n"] == 10


def test_selectors_are_judged_by_how_far_from_the_best_they_choose(tmp_path):
    script = runpy.run_path(str(ROOT / "benchmarks/choosing.py"))

    def run(label, *evaluated):
        config = {"data": {"name": "d"}, "method": {"name": "dann"}, "task": {"kind": "uda", "target": "t"}}
        header = {"event": "run", "label": label, "config": config, "seed": 0}
        return [header, *evaluated, {"event": "end", "step": 2, "seconds": 1.0}]

    surer = run("surer", evaluation(1, 0.9, 0.60), evaluation(2, 0.8, 0.62, entropy=0.1))
    better = run("better", evaluation(1, 0.7, 0.50), evaluation(2, 0.9, 0.70, entropy=0.2))
    of_test_images = run("older", evaluation(1, 0.7, 0.99), evaluation(2, 0.9, 0.1))
    of_test_images[1]["unlabelled"]["t"].pop("images")
    rewrite_records(tmp_path / "records.jsonl", [*surer, *better, *surer])
    rewrite_records(tmp_path / "older.jsonl", of_test_images)
    files = [*script["files_in"](tmp_path), tmp_path / "older.jsonl"]
    within, between, everything = script["tables"](files).split("\n\n**")
    assert "(d: 2 choices among 2)" in within, "a run that is recorded twice counts once, one of test images not at all"
    assert "| `last` | 100 % | 0.0 | 0.0 |" in within
    assert "| `source-val` | 50 % | 1.0 | 2.0 |" in within
    assert "| any, by chance | 50 % | 4.0 | 8.0 |" in between
    assert "| `source-val` | 100 % | 0.0 | 0.0 |" in between
    assert "| `entropy` | 0 % | 8.0 | 8.0 |" in between
    assert "| `oracle` (a bound) | 100 % | 0.0 | 0.0 |" in everything
