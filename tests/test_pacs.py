"""PACS from small trees in the layouts of its users, and what is said where something is missing."""

import os
from pathlib import Path

import numpy as np
import pytest

import afield
from afield.app.cli import main
from afield.config.data import DataOptions
from afield.config.layers import resolve
from afield.config.plan import plan_jobs, read_plan_file
from afield.config.protocols import find_protocol, published_figures
from afield.data.entries import ImageEntry
from afield.data.open import suggested_settings
from afield.data.photographs.published import check_counts, check_published, digest_of
from afield.data.photographs.sets import SETS
from afield.data.registry import _builders, list_data, load_data
from afield.data.task import make_task
from afield.errors import AfieldError
from support.published_files import load_small, small, write_lists

ROOT = Path(__file__).parents[1]
LISTS = Path(os.environ.get("AFIELD_DATA", ROOT / "data")) / "pacs/lists"
DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
TRAIN, HELD_OUT = {"dog": 4, "elephant": 3}, {"dog": 1, "elephant": 2}
SPLITS = {"train": 7, "validation": 3}
LAYOUTS = {
    "lists": ("lists/{domain}_train.txt", "lists/{domain}_val.txt", "."),
    "dassl": ("splits/{domain}_train_kfold.txt", "splits/{domain}_crossval_kfold.txt", "images"),
    "authors": ("pacs_label/{domain}_train_kfold.txt", "pacs_label/{domain}_crossval_kfold.txt", "kfold"),
    "kaggle": ("pacs_label/{domain}_train_kfold.txt", "pacs_label/{domain}_crossval_kfold.txt", "pacs_data/pacs_data"),
    "together": ("{domain}_train_kfold.txt", "{domain}_crossval_kfold.txt", "kfold"),
}


def write(folder, layout="lists"):
    train, held_out, images = LAYOUTS[layout]
    write_lists(folder, folder / images, {train: TRAIN, held_out: HELD_OUT}, DOMAINS, first=1)
    return folder


@pytest.fixture
def data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("AFIELD_DATA", str(tmp_path))
    monkeypatch.setenv("AFIELD_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def folder(data_folder):
    return write(data_folder / "pacs")


def load():
    return load_small("pacs", 2, SPLITS)


def pixels(images):
    return images.sized(16, "squash").read(np.arange(len(images)))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_images_labels_and_splits(data_folder, layout):
    write(data_folder / "pacs", layout)
    data = load()
    assert (tuple(data.domains), data.classes, data.preset) == (DOMAINS, ("dog", "elephant"), "pacs")
    for domain in data.domains.values():
        assert [len(domain.splits[part]) for part in ("train", "validation", "test")] == [7, 3, 10]
        assert np.bincount(domain.train.labels).tolist() == [4, 3]
        assert np.bincount(domain.validation.labels).tolist() == [1, 2]
    assert data.notes == ()


@pytest.mark.usefixtures("folder")
def test_images_that_someone_has_made_smaller_are_noticed():
    assert load_small("pacs", 2, SPLITS, side=16).notes == ()
    (note,) = load_small("pacs", 2, SPLITS, side=227).notes
    assert "227 x 227 pixels, and one here has 16" in note
    assert SETS["pacs"].side == 227


@pytest.mark.skipif(not LISTS.is_dir(), reason="PACS is not here")
def test_the_real_lists_are_those_whose_digests_are_known():
    for domain, digest in SETS["pacs"].digests.items():
        entries = []
        for split, word in (("train", "train"), ("validation", "val")):
            for line in (LISTS / f"{domain}_{word}.txt").read_text().splitlines():
                name = line.split()[0]
                entries.append(ImageEntry(name, domain, name.split("/")[1], split))
        assert digest_of(entries) == digest


@pytest.mark.usefixtures("folder")
def test_sources_are_validated_on_what_they_do_not_train_on_and_a_target_is_tested_on_all():
    data = load()
    task, views = make_task(data, "dg", "photo")
    assert [view.name for view in task.sources] == ["art_painting", "cartoon", "sketch"]
    for trained, held_out in zip(task.sources, views.sources, strict=True):
        assert (len(trained.images), len(held_out.images)) == (7, 3)
        seen = {image.tobytes() for image in pixels(trained.images)}
        assert not seen & {image.tobytes() for image in pixels(held_out.images)}
    photo = data["photo"]
    everything = np.concatenate([pixels(photo.train.images), pixels(photo.validation.images)])
    assert np.array_equal(pixels(views.target.images), everything)
    assert np.array_equal(views.target.labels, np.concatenate([photo.train.labels, photo.validation.labels]))
    adapted, _ = make_task(data, "uda", "photo")
    assert np.array_equal(pixels(adapted.target.images), pixels(photo.train.images))


def test_without_its_files_one_line_says_what_is_missing_and_where_to_get_it(folder, monkeypatch, capsys):
    (folder / "lists/photo_val.txt").unlink()
    with pytest.raises(AfieldError, match=r"PACS.*photo_val\.txt or photo_crossval_kfold\.txt.*DATASETS\.md"):
        load()
    write(folder)
    (folder / "sketch/dog/train_1.png").unlink()
    with pytest.raises(AfieldError, match=r"1 of 40 images that the lists name, first sketch/dog/train_1\.png"):
        load()
    write(folder)
    with pytest.raises(AfieldError, match="art_painting has 7 images to train on, and 1,840 were published"):
        load_data("pacs")
    monkeypatch.setenv("AFIELD_DATA", str(folder / "nowhere"))
    for command in (["show", "pacs"], ["download", "pacs"]):
        monkeypatch.setattr("sys.argv", ["afield", "data", *command])
        with pytest.raises(SystemExit, match="2"):
            main()
        said = capsys.readouterr().err
        assert len(said.splitlines()) == 1
        assert "DOMAIN/CLASS/*.jpg" in said
        assert "https://dali-dl.github.io" in said


@pytest.mark.parametrize("words", [(), ("--skip-bad",)])
def test_an_unreadable_image_is_named_and_not_left_out(folder, data_folder, call, monkeypatch, words):
    monkeypatch.setitem(_builders, "pacs", load)
    (folder / "sketch/dog/train_1.png").write_bytes(b"no image")
    code, _, said = call("data", "show", "pacs", "--out", data_folder / "sheet.png", *words)
    assert (code, len(said.splitlines())) == (2, 1)
    for part in ("1 image of 40 cannot be read: sketch/dog/train_1.png", str(folder), SETS["pacs"].page):
        assert part in said
    assert "PACS is used whole, also with --skip-bad" in said
    assert "leaves them out" not in said


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("photo/dog/val_0.png", "line 1 is not like"),
        ("photo/dog/val_0.png one", "line 1 is not like"),
        ("dog.png 1", "line 1 is not like"),
        ("photo/dog/val_0.png 2", "line 1: label 2 is dog here and elephant before"),
        ("", "it has no lines"),
    ],
)
def test_a_list_that_says_something_else_is_refused(folder, line, said):
    (folder / "lists/photo_val.txt").write_text(f"{line}\n")
    with pytest.raises(AfieldError, match=said):
        load()


def test_a_list_may_begin_with_a_byte_order_mark(folder):
    for path in (folder / "lists").iterdir():
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert [len(domain.train) for domain in load().domains.values()] == [7, 7, 7, 7]


def test_counts_are_those_of_the_published_data():
    assert sum(sum(counts.values()) for counts in SETS["pacs"].counts.values()) == 9991
    entries = [ImageEntry(f"photo/dog/{n}.jpg", "photo", "dog", "train") for n in range(3)]
    check_counts(entries, {"photo": {"train": 3, "all": 3}, "all": {"all": 3}})
    for counts, said in [
        ({"photo": {"train": 4}}, "photo has 3 images to train on, and 4 were published"),
        ({"photo": {"validation": 1}}, "photo has 0 images to validate on, and 1 were published"),
        ({"photo": {"all": 2}}, "photo has 3 images, and 2 were published"),
        ({"all": {"all": 9991}}, "all domains together have 3 images, and 9,991 were published"),
    ]:
        with pytest.raises(AfieldError, match=said):
            check_counts(entries, counts)
    with pytest.raises(AfieldError, match="1 classes are there, and 7 were published"):
        check_published(entries, small("pacs", 7, {}))


def test_other_lists_than_the_official_ones_are_noticed_whatever_their_order():
    entries = [ImageEntry(f"photo/dog/{n}.jpg", "photo", "dog", "train") for n in range(3)]
    assert digest_of(entries) == digest_of(reversed(entries))
    moved = [entries[0]._replace(split="validation"), *entries[1:]]
    published = small("pacs", 1, {})
    published.digests["photo"] = digest_of(entries)
    check_published(entries, published)
    with pytest.raises(AfieldError, match="the lists of photo name other images or splits"):
        check_published(moved, published)


@pytest.mark.usefixtures("folder")
def test_it_trains_by_its_name_at_the_size_of_its_preset(data_folder, monkeypatch):
    monkeypatch.setitem(_builders, "pacs", load)
    tiny = {"training.batch_size": 2, "data.image_size": 32, "training.device": "cpu", "training.precision": "fp32"}
    run = afield.train(
        data="pacs", task="dg", target="sketch", method="baseline", steps=2, pretrained=False,
        settings=tiny, out=data_folder / "run", progress=False,
    )  # fmt: skip
    assert run.evaluation["target"]["sketch"]["n"] == 10
    assert {source["n"] for source in run.evaluation["sources"].values()} == {3}
    assert "image_size" not in suggested_settings(load(), DataOptions(name="pacs"))["data"], "though all have one size"


def test_the_papers_recipe_and_figures():
    for name, task in (("pacs/official", "dg"), ("pacs/uda", "uda")):
        protocol = find_protocol(name)
        assert (protocol.data, protocol.preset, protocol.task, protocol.targets) == ("pacs", "pacs", task, DOMAINS)
    assert set(published_figures("pacs")["far"]) == {*DOMAINS, "average"}
    config = resolve({"data": {"name": "pacs"}, "network": {"backbone": "resnet50"}})
    assert (config.network.backbone, config.network.pretrained) == ("resnet50", True)
    assert (config.training.batch_size, config.training.lr, config.training.schedule) == (10, 0.002, "cosine")
    assert not resolve({"data": {"name": "pacs"}, "network": {"weights": "mine.pt"}}).network.pretrained
    assert "pacs" in list_data()


@pytest.mark.parametrize(("name", "task"), [("pacs-dg", "dg"), ("pacs-uda", "uda")])
def test_the_plans_of_pacs_start_both_networks_from_files_and_treat_all_methods_alike(name, task):
    jobs = plan_jobs(read_plan_file(ROOT / f"plans/{name}.toml"))
    networks = {(job.config.network.backbone, job.config.network.weights) for job in jobs}
    assert networks == {
        ("tf_efficientnet_lite0", "weights/efficientnet_lite0.pth"), ("mobilenetv2_100", "weights/mobilenet_v2.pth")
    }  # fmt: skip
    assert not any(job.config.network.pretrained for job in jobs)
    assert {(job.config.task.kind, job.config.data.image_size) for job in jobs} == {(task, 224)}
    assert {(job.config.training.steps, job.config.training.batch_size, job.config.training.lr) for job in jobs} == {
        (300, 32, 0.005)
    }
    assert {job.target for job in jobs} == set(DOMAINS)
    assert {job.seed for job in jobs} == {0, 1, 2}
