"""Where a target is tested on all of its images, what a run is said to do on its sources is still of held-out ones."""

import json

import numpy as np
import pytest

import afield
from afield.analysis.predictions import predict
from afield.app.evaluate import evaluate_checkpoint
from afield.app.looking import open_subject, read_named
from afield.app.model import load
from afield.data.photographs.sets import SETS
from afield.data.photographs.trees import Tree
from afield.data.registry import _builders, load_data
from afield.results.records import evaluations, read_records
from support.published_files import load_small, write_images, write_lists

TRAIN, HELD_OUT, EVERYTHING = {"dog": 9, "horse": 18}, {"dog": 1, "horse": 2}, 30
WHOLE = [name for name, published in SETS.items() if published.tested_whole]


def write(folder, published):
    """In every domain 30 images, three of which are held out."""
    if isinstance(published.arrangement, Tree):
        parts = [f"{split}/" for split in published.arrangement.splits] or [""]
        counts = [TRAIN, HELD_OUT] if parts[1:] else [{"dog": 10, "horse": 20}]
        for seed, domain in enumerate(published.domains):
            for part, of in zip(parts, counts, strict=True):
                names = [f"{domain}/{part}{label}/{n}.png" for label, count in of.items() for n in range(count)]
                write_images(folder, names, [seed, len(part)])
    else:
        lists = {"{domain}_train.txt": TRAIN, "{domain}_val.txt": HELD_OUT}
        write_lists(folder, folder, lists, published.domains)


@pytest.fixture(scope="module", params=WHOLE)
def run(request, tmp_path_factory):
    """A run on two of a data set's domains for a third."""
    folder, published = tmp_path_factory.mktemp("data"), SETS[request.param]
    write(folder / published.folders[0], published)
    small = {"training.batch_size": 2, "data.image_size": 16, "training.device": "cpu", "network.width": 8}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AFIELD_DATA", str(folder))
        patch.setenv("AFIELD_CACHE", str(folder / "cache"))
        patch.setitem(_builders, published.name, lambda: load_small(published.name, 2, {"all": EVERYTHING}))
        first, second, target = published.domains[:3]
        yield afield.train(
            data=published.name, task="dg", sources=(first, second), target=target, method="baseline", steps=1,
            backbone="digit", pretrained=False, settings=small, out=folder / "run", progress=False,
        )  # fmt: skip


def recorded(run):
    """By domain how many images the run was measured on while it trained."""
    last = evaluations(read_records(run.folder / "records.jsonl"))[-1]
    return {name: result["n"] for role in ("sources", "target") for name, result in last[role].items()}


def test_a_source_is_evaluated_on_as_many_images_as_while_training(run, call):
    counts, (code, shown, _) = recorded(run), call("evaluate", run.folder, "--json")
    assert sorted(counts.values()) == [3, 3, EVERYTHING]
    results = json.loads(shown)
    assert (code, {name: results[name]["n"] for name in counts}) == (0, counts)
    assert all(result["n"] == EVERYTHING for name, result in results.items() if name not in counts), "neither"
    for name, result in results.items():
        assert sum(of_class["n"] for of_class in result["classes"].values()) == result["n"]
        assert name not in counts or result["accuracy"] == run.accuracy[name]
    shown = call("evaluate", run.folder)[1]
    for name, result in results.items():
        row = next(line for line in shown.splitlines() if f" {name} " in line)
        assert row.split()[-2] == str(result["n"]), row


def test_the_errors_of_a_source_are_among_its_held_out_images(run, call, tmp_path):
    evaluation, data = evaluate_checkpoint(run.folder), load_data(load(run.folder).config.data.name)
    for name in run.evaluation["sources"]:
        wanted, tested = data[name].validation, evaluation.data[name].test
        assert np.array_equal(pixels(tested.images), pixels(wanted.images)), "which the sheet takes its images from"
        assert np.array_equal(tested.labels, wanted.labels)
        for mistake in (mistake for mistake in evaluation.mistakes if mistake.domain == name):
            assert mistake.truth == data.classes[wanted.labels[mistake.index]]
    assert call("evaluate", run.folder, "--errors", tmp_path / "errors.png")[0] == 0


def pixels(images):
    return images.sized(16, "squash").read(np.arange(len(images)))


def test_reports_and_figures_look_at_the_same_images(run):
    subject, _, notes = open_subject(read_named([run.folder])[0])
    assert {view.name: len(view.images) for view in subject.views} == recorded(run)
    assert notes == (), "the images are those of training"
    evaluated = evaluate_checkpoint(run.folder).results
    assert {each.domain: each.accuracy for each in predict(subject)} == {
        name: pytest.approx(evaluated[name]["accuracy"]) for name in subject.domains
    }
