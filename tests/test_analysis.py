"""What a report and a figure show, as numbers: histories, divergence, activations, predictions, complexity."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import afield
from afield.analysis import figures
from afield.analysis.bands import bands_of
from afield.analysis.complexity import complexity_of
from afield.analysis.divergence import divergence_of, domain_divergences
from afield.analysis.embedding import MOST_POINTS, embedding_of, flattened
from afield.analysis.features import activation, activations_of, features_of
from afield.analysis.history import history_of
from afield.analysis.predictions import least_sure, predict
from afield.app.evaluate import evaluate_checkpoint
from afield.app.looking import open_subject, read_named
from afield.config.selectors import LABEL_FREE
from afield.files import locked
from afield.results.folder import WHO, RunFolder
from afield.results.records import read_records, rewrite_records
from support.resuming import Killed, kill_before_step


@pytest.fixture(scope="module")
def run(train_toy, tmp_path_factory):
    return train_toy(tmp_path_factory.mktemp("runs") / "far")


@pytest.fixture(scope="module")
def subject(run):
    return open_subject(read_named([run.folder])[0])[0]


@pytest.fixture(scope="module")
def features(subject):
    return features_of(subject)


def test_a_history_has_the_curves_and_the_choices_of_the_records(run):
    history = read_named([run.folder])[0].histories[0]
    assert (history.name, history.method, history.target, history.state) == ("far", "far", "night", "ended")
    assert history.steps == [5, 10, 12]
    assert history.sources == ["day", "dusk", "fog"]
    assert history.accuracy["night"][-1] == run.accuracy["night"]
    assert history.steps[history.chosen["source-val"]] == run.select("source-val").step
    assert {"classification", "align"} <= history.losses.keys()
    assert list(history.views["night"]) == ["F", "A", "A+R+", "A+R-"]
    assert list(history.gates["night"]) == ["kept", "restored"]


def test_every_selector_that_the_records_have_scores_for_is_marked(run):
    records = read_records(run.folder / "records.jsonl")
    history = history_of(records, "x")
    assert tuple(history.chosen) == LABEL_FREE
    assert all(history.steps[place] == run.select(name).step for name, place in history.chosen.items())
    assert list(history.marks) == sorted(set(history.chosen.values()))
    without = [{key: value for key, value in record.items() if key != "unlabelled"} for record in records]
    assert set(history_of(without, "x").chosen) == {"last", "source-val"}


def test_labels_of_choices_beside_each_other_have_heights_of_their_own(run):
    charts = pytest.importorskip("afield.analysis.charts", exc_type=ImportError)
    read = history_of(read_records(run.folder / "records.jsonl"), "x")
    history = replace(read, chosen={"last": 2, "source-val": 0, "snd": 1, "dev": 1})
    layout = charts.accuracy_chart(history).figure.layout
    assert [label.text for label in layout.annotations] == ["last", "snd, dev", "source-val"]
    assert [label.yshift for label in layout.annotations] == [0, 13, 26]
    assert layout.margin.t > max(label.yshift for label in layout.annotations)
    (drawn, _) = figures.curves([history]).axes
    assert len({label.xy[1] for label in drawn.texts}) == 3
    assert [label.get_ha() for label in drawn.texts] == ["left", "right", "right"]


def test_an_evaluation_that_all_of_many_selectors_choose_has_a_short_label(run):
    read = history_of(read_records(run.folder / "records.jsonl"), "x")
    assert replace(read, chosen=dict.fromkeys(LABEL_FREE, 2)).marks == {2: "all selectors"}
    assert replace(read, chosen={"last": 2, "source-val": 2}).marks == {2: "last, source-val"}


def test_runs_that_share_a_name_are_told_apart(run, tmp_path):
    header, *rest = read_records(run.folder / "records.jsonl")
    for place in ("a/one", "a/two", "b/one", "b/three"):
        (tmp_path / place).mkdir(parents=True)
        label = "other" if place == "b/three" else "far"
        rewrite_records(tmp_path / place / "records.jsonl", [{**header, "label": label}, *rest])
        RunFolder(tmp_path / place).config.touch()  # a benchmark's folder has none

    def names(*places):
        return [named.histories[0].name for named in read_named([tmp_path / place for place in places])]

    assert names("a/one", "b/three") == ["far", "other"]
    assert names("a/one", "a/two", "b/three") == ["one", "two", "other"]
    assert names("a/one", "b/one", "a/two") == [str(tmp_path / "a/one"), str(tmp_path / "b/one"), "two"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty: the run has not begun"),
        (b'{"event": "ru', "holds no complete record"),
        (b"\x89PNG\r\n\xff\n", "it is not a text file"),
    ],
)
def test_records_that_are_not_there_yet_or_are_none_say_so(tmp_path, content, said):
    (tmp_path / "records.jsonl").write_bytes(content)
    with pytest.raises(afield.AfieldError, match=said):
        read_named([tmp_path])


def test_a_run_that_was_cut_or_still_trains_says_so(train_toy, tmp_path):
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        kill_before_step(patch, 7)
        train_toy(tmp_path / "cut")
    history = read_named([tmp_path / "cut"])[0].histories[0]
    assert (history.state, history.steps) == ("cut", [5])
    assert history.condition == "was cut before its end; evaluated up to step 5 of 12"
    with locked(tmp_path / "cut", WHO):
        assert read_named([tmp_path / "cut"])[0].histories[0].state == "going"


def test_a_run_that_stopped_early_says_after_how_many_steps(run):
    header, *rest = read_records(run.folder / "records.jsonl")
    assert history_of([header, *rest], "x").condition == "ended after 12 steps"
    header["config"]["training"] |= {"steps": 40, "patience": 2}
    assert history_of([header, *rest], "x").condition == "stopped early, after 12 of 40 steps"


def test_records_that_are_not_those_of_a_run_are_one_line(run):
    header, *rest = read_records(run.folder / "records.jsonl")
    damaged = [{key: value for key, value in header.items() if key != "config"}, *rest]
    for records in (damaged, rest, [header, {"event": "evaluation", "step": 1}]):
        with pytest.raises(afield.AfieldError, match="not those of a run"):
            history_of(records, "x")


def test_divergence_is_the_symmetric_kl_divergence_of_gaussians():
    rng = np.random.default_rng(0)
    means = np.concatenate([rng.normal(0, 1, (4000, 3)), rng.normal(1, 2, (4000, 3))])
    domain = np.repeat([0, 1], 4000)
    one = torch.distributions.Normal(0.0, 1.0)
    two = torch.distributions.Normal(1.0, 2.0)
    expected = sum(torch.distributions.kl_divergence(*pair) for pair in ((one, two), (two, one))) / 2
    found = domain_divergences(means, domain)
    assert found[0, 1] == pytest.approx(float(expected), rel=0.05)
    assert found[0, 1] == found[1, 0]
    assert found[0, 0] == 0
    assert domain_divergences(1000 * means, domain) == pytest.approx(found)


def test_divergence_of_equal_domains_is_zero_and_of_dead_channels_finite():
    means = np.random.default_rng(0).normal(size=(20, 4))
    domain = np.repeat([0, 1], 20)
    assert np.allclose(domain_divergences(np.concatenate([means, means]), domain), 0)
    dead = np.concatenate([means, means])
    dead[:20, 0] = 0
    assert np.isfinite(domain_divergences(dead, domain)).all()
    assert not domain_divergences(np.zeros((40, 4)), domain).any()


def test_every_pair_of_domains_has_a_divergence_of_every_map(features):
    divergence = divergence_of(features)
    assert list(divergence.between) == ["F", "A", "A+R+"]
    assert len(divergence.values("A")) == 6
    assert len(divergence.values("A", "night")) == 3
    assert divergence.mean("F") == pytest.approx(np.mean(divergence.values("F")))


def test_an_activation_map_has_norm_one_and_lies_where_the_map_is_active():
    maps = torch.zeros(2, 5, 4, 4)
    maps[0, :, 1, 2] = -3
    found = activation(maps)
    assert found[0, 1, 2] == 1
    assert found.flatten(1).norm(dim=1).tolist() == [1, 0]


def test_activations_show_different_classes_of_every_domain(subject):
    shown = activations_of(subject)
    assert shown.domains == [name for name in subject.domains for _ in range(2)]
    assert all(one != other for one, other in zip(shown.labels[::2], shown.labels[1::2], strict=True))
    assert {name: values.shape[0] for name, values in shown.maps.items()} == {"F": 8, "A": 8, "A+R+": 8}


def test_predictions_agree_with_afield_evaluate(run, subject):
    predictions = predict(subject)
    evaluated = evaluate_checkpoint(run.folder).results
    assert {each.domain: each.accuracy for each in predictions} == {
        name: pytest.approx(result["accuracy"]) for name, result in evaluated.items()
    }
    for each in predictions:
        assert np.trace(each.confusion) == round(each.accuracy * len(each.labels))
        counts = each.confusion.sum(axis=1)
        assert np.dot(counts, each.class_accuracy) / counts.sum() == pytest.approx(each.accuracy)


def test_the_least_sure_images_are_the_targets_with_the_largest_entropy(subject):
    predictions = predict(subject)
    unsure = least_sure(subject, predictions)
    assert {each.domain for each in unsure} == {"night"}
    entropies = [each.entropy for each in unsure]
    assert entropies == sorted(predictions[-1].entropy, reverse=True)[: len(entropies)]


@pytest.mark.parametrize("method", ["baseline", "baseline-align", "baseline-att-align", "far", "far+", "far-conv"])
def test_the_last_of_the_maps_is_what_the_classifier_reads(method):
    torch.manual_seed(0)
    made = afield.create_method(method, image_size=16, num_classes=3, num_sources=2).eval()
    with torch.inference_mode():
        F = made.backbone(torch.rand(2, 3, 16, 16))
        maps = made.maps_of(F)
        assert next(iter(maps)) == "F"
        assert torch.allclose(made.classifier(made.pool([*maps.values()][-1])), made.scores_of(F), atol=1e-5)


def test_t_sne_is_the_same_each_time_and_bounded(features):
    one, two = embedding_of(features), embedding_of(features)
    assert len(one.rows) == len(one.label) <= MOST_POINTS
    assert {name: points.shape for name, points in one.points.items()} == dict.fromkeys(
        ["F", "A", "A+R+"], (len(one.rows), 2)
    )
    assert all(np.array_equal(one.points[name], two.points[name]) for name in one.points)
    assert not flattened(np.ones((10, 3))).any(), "equal vectors are one point"


def test_complexity_counts_all_parameters_and_multiply_adds(subject):
    costs = complexity_of(subject)
    assert costs.parameters == sum(parameter.numel() for parameter in subject.method.parameters())
    assert sum(part.parameters for part in costs.parts) == costs.parameters
    assert 0 < max(part.multiply_adds for part in costs.parts) <= costs.multiply_adds
    classifier = next(part for part in costs.parts if part.name == "classifier")
    assert classifier.multiply_adds == subject.method.pool.width * 3, "one product per weight of a linear layer"
    assert costs.milliseconds > 0


def test_runs_of_a_benchmark_that_share_a_label_but_not_their_settings_are_told_apart(run, tmp_path):
    header, *rest = read_records(run.folder / "records.jsonl")
    other = {**header, "config": {**header["config"], "method": {**header["config"]["method"], "align_weight": 0.5}}}
    again = {**header, "config": {**header["config"], "training": {**header["config"]["training"], "seed": 1}}}
    records = [record for first in (header, again, other) for record in ({**first, "label": "far"}, *rest)]
    rewrite_records(tmp_path / "records.jsonl", records)
    names = [history.name for history in read_named([tmp_path])[0].histories]
    assert names == ["far (method.align_weight=1)", "far (method.align_weight=1)", "far (method.align_weight=0.5)"]
    bands = bands_of(read_named([tmp_path])[0].histories)
    assert [(band.runs, band.steps) for band in bands] == [(2, [5, 10, 12]), (1, [5, 10, 12])]
