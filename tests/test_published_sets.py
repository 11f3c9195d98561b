"""Published data sets other than PACS, from small trees and lists in the layouts they come in."""

from pathlib import Path

import numpy as np
import pytest

from afield.config.data import OWN_PRESETS
from afield.config.layers import data_preset
from afield.config.protocols import protocols, published_figures
from afield.data.photographs.published import ALL
from afield.data.photographs.sets import SETS
from afield.data.task import make_task
from afield.errors import AfieldError
from support.published_files import load_small, write_images, write_lists

DOCUMENT = (Path(__file__).parents[1] / "docs/data.md").read_text("utf-8")
OFFICE_HOME = ("art", "clipart", "product", "real_world")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("AFIELD_DATA", str(tmp_path))
    monkeypatch.setenv("AFIELD_CACHE", str(tmp_path / "cache"))
    return tmp_path


def write_tree(root, folders, counts):
    """For each folder of a domain or a split, so many images of each class."""
    for seed, inside in enumerate(folders):
        names = [f"{inside}/{label}/{n:05}.png" for label, count in counts.items() for n in range(count)]
        write_images(root, names, seed)


def sizes(domain):
    return {part: len(split) for part, split in domain.splits.items()}


def test_office_home_as_dassl_divides_it(folder):
    root = folder / "office_home_dg"
    write_tree(root, [f"{domain}/train" for domain in OFFICE_HOME], {"Alarm_Clock": 3, "Bed": 2})
    write_tree(root, [f"{domain}/val" for domain in reversed(OFFICE_HOME)], {"Alarm_Clock": 1, "Bed": 1})
    write_images(root, ["art/.hidden.png", "splits_ssdg/art/x.png"])
    data = load_small("office-home", 2, {"all": 7})
    assert (tuple(data.domains), data.classes, data.preset) == (OFFICE_HOME, ("Alarm_Clock", "Bed"), "office-home")
    assert all(sizes(domain) == {"train": 5, "validation": 2, "test": 7} for domain in data.domains.values())
    task, views = make_task(data, "dg", "art")
    assert [len(view.images) for view in (*task.sources, *views.sources, views.target)] == [5, 5, 5, 2, 2, 2, 7]


def test_office_home_as_it_was_published_holds_out_a_tenth_of_each_class(folder):
    write_tree(folder / "office_home", ["Art", "Clipart", "Product", "Real World"], {"Alarm_Clock": 20, "Bed": 10})
    data = load_small("office-home-original", 2, {"all": 30})
    assert tuple(data.domains) == OFFICE_HOME
    for domain in data.domains.values():
        assert sizes(domain) == {"train": 27, "validation": 3, "test": 30}
        assert np.bincount(domain.validation.labels).tolist() == [2, 1]
    task, views = make_task(data, "uda", "art")
    trained, adapted = task.sources[0].images, task.target.images
    assert [len(images) for images in (trained, adapted, views.target.images)] == [27, 30, 30], "as the field adapts"


@pytest.mark.parametrize("last", ["Real World", "Real_World", "RealWorld"])
@pytest.mark.parametrize("unpacked", ["OfficeHomeDataset_10072016", "OfficeHome"])
def test_a_folder_may_have_the_name_that_its_archive_unpacks_to(folder, unpacked, last):
    write_tree(folder / unpacked, ["Art", "Clipart", "Product", last], {"Alarm_Clock": 3, "Bed": 2})
    assert tuple(load_small("office-home-original", 2, {"all": 5}).domains) == OFFICE_HOME


def test_where_there_are_two_folders_the_usual_one_is_read(folder):
    write_tree(folder / "office_31", ["amazon", "dslr", "webcam"], {"bike": 3, "mug": 2})
    write_tree(folder / "office31", ["amazon", "dslr", "webcam"], {"bike": 4, "mug": 3})
    load_small("office-31", 2, {"all": 7})


def test_vlcs_as_domainbed_has_it_holds_out_a_tenth_of_each_class(folder):
    domains = ("Caltech101", "LabelMe", "SUN09", "VOC2007")
    write_tree(folder / "VLCS", domains, {"bird": 20, "person": 10})
    data = load_small("vlcs-original", 2, {"all": 30})
    assert (tuple(data.domains), data.classes) == (("caltech", "labelme", "pascal", "sun"), ("bird", "person"))
    assert all(sizes(domain) == {"train": 27, "validation": 3, "test": 30} for domain in data.domains.values())
    with pytest.raises(AfieldError, match="what DomainBed downloads is read as vlcs-original"):
        load_small("vlcs", 2, {"all": 30})


@pytest.mark.parametrize(("name", "split"), [("office-home", "val"), ("vlcs", "crossval")])
def test_a_tree_that_lacks_a_published_split_is_not_divided_anew(folder, name, split):
    published = SETS[name]
    words = [word for word in published.arrangement.splits if word != split]
    write_tree(folder / published.folders[0], [f"{d}/{word}" for d in published.domains for word in words], {"0": 2})
    with pytest.raises(AfieldError, match=f"{published.domains[0]} has no images in a folder {split}"):
        load_small(name, 1, {"all": 2 * len(words)})


@pytest.mark.parametrize(("name", "lists"), [("domainnet", "splits"), ("mini-domainnet", "splits_mini")])
def test_domainnet_and_its_small_version_are_what_their_lists_name_of_the_same_images(folder, name, lists):
    root = folder / "domainnet"
    others = ["clipart/zebra/left_out.png"]
    write_images(root, others)
    parts = {f"{lists}/{{domain}}_train.txt": {"bird": 3, "t-shirt": 4}, f"{lists}/{{domain}}_test.txt": {"t-shirt": 2}}
    write_lists(root, root, parts, SETS[name].domains)
    data = load_small(name, 2, {"train": 7, "test": 2})
    assert (tuple(data.domains), data.classes) == (SETS[name].domains, ("bird", "t-shirt"))
    assert all(sizes(domain) == {"train": 7, "test": 2} for domain in data.domains.values())
    task, views = make_task(data, "uda", "sketch")
    assert [len(view.images) for view in (task.target, views.target)] == [7, 2]


@pytest.mark.parametrize("between", ["", "/images"])
def test_office_31_with_and_without_its_folder_of_images(folder, between):
    root = folder / "office31"
    write_tree(root, [f"{domain}{between}" for domain in ("amazon", "dslr", "webcam")], {"back_pack": 4, "bike": 3})
    data = load_small("office-31", 2, {"all": 7})
    assert (tuple(data.domains), data.classes) == (("amazon", "dslr", "webcam"), ("back_pack", "bike"))
    assert all(sizes(domain) == {"train": 5, "validation": 2, "test": 7} for domain in data.domains.values())


def test_vlcs_has_three_splits_and_no_image_twice(folder):
    root, domains = folder / "VLCS", ("CALTECH", "LABELME", "PASCAL", "SUN")
    splits = ("train", "crossval", "test")
    write_tree(root, [f"{domain}/{split}" for domain in domains for split in (*splits, "full")], {"0": 2, "4": 1})
    data = load_small("vlcs", 2, {"train": 3, "validation": 3, "test": 3, "all": 9})
    assert (tuple(data.domains), data.classes) == (("caltech", "labelme", "pascal", "sun"), ("bird", "person"))
    assert all(sizes(domain) == {"train": 3, "validation": 3, "test": 3} for domain in data.domains.values())
    assert data.notes == ()


@pytest.mark.parametrize("name", SETS)
def test_where_it_is_missing_one_line_says_what_it_needs_and_where_to_get_it(folder, name):
    published = SETS[name]
    with pytest.raises(AfieldError) as caught:
        load_small(name, 2, {"all": 1})
    for said in (str(folder / published.folders[0]), published.layout, published.page):
        assert said in str(caught.value)
    (folder / published.folders[0]).mkdir()
    with pytest.raises(AfieldError, match=published.title) as caught:
        load_small(name, 2, {"all": 1})
    assert published.page in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_tree_that_is_not_whole_is_refused(folder):
    write_tree(folder / "office_home", ["Art", "Clipart", "Product", "Real World"], {"Alarm_Clock": 2, "Bed": 2})
    with pytest.raises(AfieldError, match="art has 4 images, and 5 were published"):
        load_small("office-home-original", 2, {"all": 5})
    with pytest.raises(AfieldError, match="2 classes are there, and 65 were published"):
        load_small("office-home-original", 65, {"all": 4})


@pytest.mark.parametrize("name", SETS)
def test_the_documents_have_its_folder_and_its_counts(name):
    published = SETS[name]
    rows = [line for line in DOCUMENT.splitlines() if line.startswith(f"| `{name}` |")]
    assert len(rows) == 1
    totals = [of.get(ALL) or sum(of.values()) for of in published.counts.values()]
    total = published.counts.get(ALL, {}).get(ALL) or sum(totals)
    assert f"{total:,}, {len(published.domains)}, {published.classes} |" in rows[0] or "the same" in rows[0]
    assert f"`{published.folders[0]}/" in rows[0]


@pytest.mark.parametrize("name", SETS)
def test_its_preset_and_its_protocols_fit_it(name):
    published = SETS[name]
    assert OWN_PRESETS[name] == published.preset
    assert data_preset(published.preset)["network"]["pretrained"]
    own = [protocol for protocol in protocols().values() if protocol.data == name]
    for protocol in own:
        assert protocol.targets == published.domains
        if protocol.published:
            assert protocol.task == {"mini-domainnet": "uda"}.get(name, "dg"), "as in the paper's tables"
            for figures in published_figures(protocol.published).values():
                assert set(figures) == {*protocol.targets, "average"}
