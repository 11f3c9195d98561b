"""A Hugging Face data set as a data set; nothing here asks the network."""

import os
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest

datasets = pytest.importorskip("datasets")

from afield.config.data import DataOptions  # noqa: E402
from afield.data import hub, probing  # noqa: E402
from afield.data.open import open_data  # noqa: E402
from afield.errors import AfieldError  # noqa: E402
from support.images import write_folder  # noqa: E402

CLASSES = ["car", "bus"]


@pytest.fixture(autouse=True)
def apart(tmp_path, monkeypatch):
    monkeypatch.setenv("AFIELD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub")
    datasets.disable_progress_bars()
    hub._load_remote.cache_clear()


@pytest.fixture
def pictures(tmp_path):
    return write_folder(tmp_path / "pictures", {"a": {"bus": 5, "car": 5}, "b": {"bus": 5, "car": 5}, "c": 4})


def table(pictures, label=None, domain="domain", only=lambda number: True, embed=True):
    """The images of a folder as a table, with labels as numbered classes."""
    files = [file for number, file in enumerate(sorted(pictures.rglob("*.png"))) if only(number)]
    names = [file.relative_to(pictures).parts for file in files]
    labels = [CLASSES.index(parts[1]) if len(parts) == 3 else -1 for parts in names]
    content = {
        "id": list(range(len(files))),
        "image": [{"bytes": f.read_bytes(), "path": f.name} if embed else str(f) for f in files],
        domain: [parts[0] for parts in names],
        "label": labels,
    }
    features = {
        "id": datasets.Value("int64"),
        "image": datasets.Image(),
        domain: datasets.Value("string"),
        "label": label or datasets.ClassLabel(names=CLASSES),
    }
    return datasets.Dataset.from_dict(content, features=datasets.Features(features))


def opened(name, **options):
    return open_data(DataOptions(name=str(name), workers=2, **options))


def fails(name, *words, **options):
    with pytest.raises(AfieldError) as caught:
        opened(name, **options)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("embed", [True, False])
@pytest.mark.parametrize("prefix", ["", "hf:"])
def test_a_saved_table_is_what_its_folder_would_be(tmp_path, pictures, embed, prefix):
    table(pictures, embed=embed).save_to_disk(tmp_path / "saved")
    data, folder = opened(f"{prefix}{tmp_path / 'saved'}"), opened(pictures)
    assert data.checksum() == folder.checksum()
    assert (data.classes, data.notes) == (folder.classes, folder.notes)
    one, other = (each.sized(16)["a"].train.images.read(np.arange(8)) for each in (data, folder))
    assert np.array_equal(one, other)


def test_splits_of_a_data_set_are_ours(tmp_path, pictures):
    parts = {
        "train": table(pictures, only=lambda n: n % 5 < 3),
        "validation": table(pictures, only=lambda n: n % 5 == 3),
        "test": table(pictures, only=lambda n: n % 5 == 4),
        "extra": table(pictures, only=lambda n: n == 0),
    }
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "saved")
    data = opened(tmp_path / "saved")
    assert {name: len(split) for name, split in data["a"].splits.items()} == {"train": 6, "validation": 2, "test": 2}
    assert data.notes[0] == "left out, because they are neither train, validation nor test: extra (1 image)"
    datasets.DatasetDict({"extra": parts["extra"]}).save_to_disk(tmp_path / "other")
    fails(tmp_path / "other", "has the splits extra; train is needed")


def test_labels_and_domains_may_be_of_any_kind(tmp_path, pictures):
    plain = table(pictures, label=datasets.Value("int32"))
    plain.save_to_disk(tmp_path / "numbers")
    assert opened(tmp_path / "numbers").classes == ("0", "1")
    texts = plain.map(
        lambda row: {"label": "" if row["label"] < 0 else CLASSES[row["label"]]}, remove_columns=["label"]
    )
    texts.class_encode_column("domain").save_to_disk(tmp_path / "texts")
    data = opened(tmp_path / "texts")
    assert data.classes == ("bus", "car") and list(data.domains) == ["a", "b", "c"] and not data["c"].labelled
    named = table(pictures).rename_column("label", "kind").rename_column("domain", "hospital")
    named.save_to_disk(tmp_path / "named")
    assert opened(tmp_path / "named").checksum() == opened(pictures).checksum()


def test_columns_that_cannot_be_guessed_are_asked_for(tmp_path, pictures):
    table(pictures, domain="site", label=datasets.Value("int64")).save_to_disk(tmp_path / "site")
    fails(tmp_path / "site", "no column domain; its columns: id, image, site, label; data.domain_column")
    assert len(opened(tmp_path / "site", domain_column="site").domains) == 3
    fails(tmp_path / "site", "no column 'place' (data.domain_column)", domain_column="place")
    table(pictures, label=datasets.Value("int64")).rename_column("label", "kind").save_to_disk(tmp_path / "kind")
    fails(tmp_path / "kind", "no column label; its columns: ", "data.label_column")
    assert opened(tmp_path / "kind", label_column="kind").classes == ("0", "1")
    both = table(pictures).map(lambda row: {"photo": row["image"].rotate(180)})
    both.cast_column("photo", datasets.Image()).save_to_disk(tmp_path / "both")
    assert opened(tmp_path / "both").checksum() == opened(pictures).checksum()
    assert opened(tmp_path / "both", image_column="photo").checksum() != opened(pictures).checksum()
    fails(tmp_path / "both", "the column 'label' (data.image_column) does not hold images", image_column="label")
    fails(tmp_path / "both", "no column 'scan' (data.image_column)", image_column="scan")
    table(pictures).remove_columns("image").save_to_disk(tmp_path / "blind")
    fails(tmp_path / "blind", "has no column of images; its columns: id, domain, label")


def test_images_are_looked_at_once_and_bad_ones_are_named(tmp_path, pictures, monkeypatch):
    (pictures / "a" / "bus" / "000.png").write_bytes(b"no image")
    table(pictures).save_to_disk(tmp_path / "saved")
    fails(tmp_path / "saved", "1 image of 24 cannot be read: row[0] (no image); skip_bad")
    asked = []
    probe = probing.decoders(2).probe
    monkeypatch.setattr(probing.decoders(2), "probe", lambda sources: asked.extend(sources) or probe(sources))
    assert len(opened(tmp_path / "saved", skip_bad=True)["a"].train) == 7
    assert asked == [b"no image"]


def test_images_are_read_from_several_threads_and_travel_to_other_processes(tmp_path, pictures):
    table(pictures).save_to_disk(tmp_path / "saved")
    sources = opened(tmp_path / "saved")["a"].train.images.sources
    expected = [file.read_bytes() for file in sorted(pictures.rglob("*.png"))]
    seen = []
    threads = [threading.Thread(target=lambda: seen.append([sources[n] for n in range(24)])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [expected] * 4
    copy = pickle.loads(pickle.dumps(sources))
    assert [copy[n] for n in range(len(copy))] == expected


def test_names_of_the_hub_are_loaded_with_their_config(pictures, monkeypatch):
    asked = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *given: asked.append(given) or {"train": table(pictures)})
    data = opened("hf:someone/cameras:night")
    assert opened("hf:someone/cameras:night") is data
    opened("hf:cameras")
    assert asked == [("someone/cameras", "night"), ("cameras", None)]
    assert data.name == "hf:someone/cameras:night"
    assert data["a"].origin == "Hugging Face data set someone/cameras:night"


def test_a_data_set_that_cannot_be_loaded_is_one_line(tmp_path, monkeypatch):
    def refuse(*given):
        raise ConnectionError("Couldn't reach 'x' on the Hub\nand more lines\nof it")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    fails("hf:x", "cannot load hf:x: Couldn't reach 'x' on the Hub")
    fails("hf:", "hf: names no data set: hf:NAME, or hf:NAME:CONFIG")
    (tmp_path / "dataset_dict.json").write_text("{")
    fails(tmp_path, f"cannot load {tmp_path}: ")


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(AfieldError, match=r'pip install "afield\[hub\]"'):
        hub.list_hub("hf:x")


def test_an_unknown_name_is_one_line_offline(tmp_path):
    code = (
        "from afield.data.open import open_data; from afield.config.data import DataOptions\n"
        "try: open_data(DataOptions(name='hf:nobody/nothing-at-all'))\n"
        "except Exception as error: print(type(error).__name__, str(error).count(chr(10)), error)"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.startswith("AfieldError 0 cannot load hf:nobody/nothing-at-all: ")
