"""`afield data show`: tables and contact sheets of data sets of every shape."""

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from afield.app.show import class_counts, data_tables, image_size, printable
from afield.data.contact_sheet import MOST_ROWS, contact_sheet
from afield.data.domain import Domain, DomainSet, Split
from afield.data.images import ArrayImages
from afield.data.registry import load_data

RED, GREEN = (255, 0, 0), (0, 255, 0)


def split(sizes, labels=None, colour=RED):
    """Images of one colour in sizes (width, height)."""
    images = [np.full((height, width, 3), colour, np.uint8) for width, height in sizes]
    return Split(ArrayImages(images), None if labels is None else np.array(labels, np.int64))


def data_set(classes=3, **domains):
    return DomainSet("odd", tuple(f"class {number}" for number in range(classes)), domains)


def domain(name, train, test, **more):
    return Domain(name, train, test, f"made for {name}", **more)


@pytest.fixture
def odd():
    """Labelled and unlabelled domains with images of many sizes."""
    bare = split([(40, 20), (10, 300), (5000, 4)])
    return data_set(
        first=domain("first", split([(300, 100), (7, 7)], [0, 2]), split([(64, 64)], [1])),
        second=domain(
            "second", split([(20, 30)] * 3, [0, 0, 1]), split([(20, 30)], [0]),
            validation=split([(20, 30)] * 2, [1, 1]), unlabelled=split([(20, 30)] * 4),
        ),
        bare=domain("bare", bare, bare),
    )  # fmt: skip


def text_of(data, width=120):
    console = Console(width=width, record=True, markup=False, emoji=False, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    for table in data_tables(data):
        console.print(table)
    return console.export_text()


def cells(text, name):
    """The cells of a row of a printed table, found by its first one."""
    line = next(line for line in text.splitlines() if line.startswith(f"│ {name} "))
    return [cell.strip() for cell in line.strip("│").split("│")]


def test_held_out_images_of_a_domain_without_labels_are_counted(odd):
    bare = domain("bare", split([(40, 20)] * 27), split([(40, 20)] * 9))
    row = cells(text_of(data_set(first=odd["first"], bare=bare)), "bare")
    assert row[1:4] == ["-", "9", "27"]


def test_the_table_has_counts_sizes_and_origins(odd):
    text = text_of(odd)
    assert "odd: 3 domains, 3 classes" in text
    assert cells(text, "first") == ["first", "2", "-", "1", "-", "64x64 (7x7 to 300x100)", "made for first"]
    assert cells(text, "second") == ["second", "3", "2", "1", "4", "20x30", "made for second"]
    assert cells(text, "bare") == ["bare", "-", "-", "-", "3", "40x20 (40x20 to 5000x4)", "made for bare"]
    assert "images per class: train / validation / test" in " ".join(text.split())
    assert cells(text, "class 0") == ["class 0", "1 / - / 0", "2 / 0 / 1"]
    assert cells(text, "class 1") == ["class 1", "0 / - / 1", "1 / 2 / 0"]


def test_splits_that_no_domain_has_take_no_column():
    text = text_of(load_data("digits"))
    assert "validation" not in text
    assert "unlabelled" not in text
    assert cells(text, "uci")[:4] == ["uci", "1297", "500", "32x32"]


def test_of_many_classes_the_smallest_and_largest_are_shown():
    labels = [0] * 5 + [3] + [19] * 9
    one = domain("one", split([(8, 8)] * 15, labels), split([(8, 8)] * 2, [3, 4]))
    text = text_of(data_set(20, one=one))
    assert "class 7" not in text
    classes = text[text.index("smallest class") :]
    assert cells(classes, "one") == ["one", "4", "class 4 (1)", "class 19 (9)"]


def test_many_domains_are_shown_in_several_tables():
    domains = {f"d{n}": domain(f"d{n}", split([(8, 8)], [0]), split([(8, 8)], [1])) for n in range(14)}
    text = text_of(data_set(2, **domains))
    assert text.count("images per class") == 3
    assert all(text.count(f" d{n} ") >= 2 for n in range(14))


def test_counts_of_a_split_that_is_not_there_are_empty(odd):
    assert class_counts(odd, odd["first"], "validation") == []
    assert class_counts(odd, odd["bare"], "train") == []
    assert image_size(domain("none", split([]), split([]))) == "-"


def test_names_are_shown_as_they_are_but_for_control_characters():
    name = "a [bold]b[/bold] :smile: \x1b[31m"
    text = text_of(data_set(**{name: domain(name, split([(8, 8)], [0]), split([(8, 8)], [1]))}), 160)
    assert "a [bold]b[/bold] :smile: \\x1b[31m" in text
    assert "\x1b" not in text
    assert printable("Größe 数\n") == "Größe 数\\n"


def columns_of(sheet, row):
    """The colours along the middle of a row of the sheet, right of the names."""
    return np.asarray(sheet)[16 + 70 * row + 32]


def test_every_image_keeps_its_proportions(odd):
    sheet = contact_sheet(odd)
    pixels = np.asarray(sheet)
    assert sheet.height == 3 * 70 - 6 + 32
    red = (pixels == RED).all(axis=2)
    for row, count in enumerate((2, 3, 3)):
        band = red[16 + 70 * row : 16 + 70 * row + 64]
        columns = np.flatnonzero(band.any(axis=0))
        starts = np.flatnonzero(np.diff(columns, prepend=-9) > 1)
        assert len(starts) == count
    first = red[16:80]
    tall = first.sum(axis=0)[first.any(axis=0)]
    assert (tall[:64] == 21).all(), "300 x 100 becomes 64 x 21"
    assert (tall[64:] == 64).all(), "a small square fills its tile"


def test_classes_come_in_turn_and_missing_ones_leave_no_gap():
    train = split([(8, 8)] * 30, [2] * 28 + [0] * 2)
    sheet = contact_sheet(data_set(a=domain("a", train, train)), per_domain=6)
    assert (columns_of(sheet, 0) == RED).all(axis=1).sum() == 6 * 64


def test_few_images_and_none_are_no_error():
    one, none = split([(8, 8)], [0]), split([], [])
    sheet = contact_sheet(data_set(a=domain("a", one, one), b=domain("b", none, none)))
    assert (columns_of(sheet, 0) == RED).all(axis=1).sum() == 64
    contact_sheet(data_set(b=domain("b", none, none)))


def test_long_names_are_cut_and_many_domains_end_in_a_remark():
    one = split([(8, 8)], [0])
    names = [f"{'very long ' * 30}{number}" for number in range(MOST_ROWS + 5)]
    sheet = contact_sheet(data_set(**{name: domain(name, one, one) for name in names}))
    assert sheet.width < 500
    assert sheet.height == (MOST_ROWS + 1) * 70 - 6 + 32


def test_an_image_of_another_mode_is_drawn_in_colour():
    class Grey(ArrayImages):
        def original(self, index):
            return Image.new("LA", (20, 10), (255, 128))

    train = Split(Grey([np.zeros((10, 20, 3), np.uint8)]), np.array([0]))
    assert contact_sheet(data_set(a=domain("a", train, train))).mode == "RGB"
