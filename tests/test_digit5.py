"""Digit-Five from small files of every format: its domains, their order and sizes, and the digits rendered for SYN."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import Resize

from afield.bench.run import read_plans
from afield.config.layers import resolve
from afield.data import digit5
from afield.data import domain as domain_module
from afield.data import registry as data_registry
from afield.data.digit5 import rendered
from afield.data.digit5.fitting import fit
from afield.data.digit5.load import SIZES, draw
from afield.data.digits.glyphs import draw_outlined
from afield.data.registry import load_data, register_data
from afield.errors import AfieldError
from afield.training.assemble import make_header
from support.digit5_files import (
    ORDER,
    SMALL,
    parts,
    usps_values,
    write_h5,
    write_idx,
    write_libsvm,
    write_mats,
    write_npz,
    write_pngs,
)


def pixels(split):
    return split.images.read(np.arange(len(split)))


def assert_holds(domain, content):
    for part, (images, labels) in content.items():
        split = getattr(domain, part)
        assert np.array_equal(pixels(split), images), part
        assert np.array_equal(split.labels, labels), part


# What the data set is


def test_domains_in_their_order(digit5_folder):
    data = digit5.digit5(SMALL)
    assert list(data.domains) == ORDER
    assert [domain.name for domain in data.domains.values()] == ORDER
    assert data.classes == tuple("0123456789")
    assert (data.image_size, data.preset) == (32, "digit5")
    assert SIZES == {"train": 25_000, "test": 9_000}
    for seed, name in enumerate(ORDER[:4]):
        assert_holds(data[name], parts(seed))
    assert "data" not in " ".join(domain.origin for domain in data.domains.values())


def test_larger_sets_are_drawn_down_and_smaller_ones_are_whole(digit5_folder):
    write_npz(digit5_folder / "svhn.npz", parts(7, {"train": 50, "test": 10}))
    data = digit5.digit5(SMALL)
    images, labels = parts(7, {"train": 50, "test": 10})["train"]
    train = data["sv"].train
    places = [int(np.flatnonzero((images == image).all(axis=(1, 2, 3)))[0]) for image in pixels(train)]
    assert len(train) == len(set(places)) == 20
    assert np.array_equal(train.labels, labels[places])
    assert max(places) > 20
    assert_holds(data["sv"], {"test": parts(7, {"train": 50, "test": 10})["test"]})
    again = digit5.digit5(SMALL)
    assert again.checksum() == data.checksum()


def test_a_draw_follows_from_the_names_of_domain_and_part_alone(digit5_folder):
    draws = {(name, part): tuple(draw(500, 100, f"{name}/{part}")) for name in ORDER for part in SIZES}
    assert len(set(draws.values())) == 10
    assert draws["sv", "train"] == tuple(draw(500, 100, "sv/train"))
    assert draw(500, 100, "sv/train")[:50].tolist() == draw(500, 50, "sv/train").tolist()
    assert draw(100, 100, "sv/train").tolist() == draw(100, 200, "sv/train").tolist() == list(range(100))

    large = {name: parts(seed, {"train": 30, "test": 10}) for seed, name in enumerate(ORDER[:4])}
    write_npz(digit5_folder / "mnist.npz", large["mt"])
    before = pixels(digit5.digit5(SMALL)["mt"].train)
    write_npz(digit5_folder / "mnist_m.npz", large["mm"])
    write_npz(digit5_folder / "svhn.npz", large["sv"])
    assert np.array_equal(pixels(digit5.digit5(SMALL)["mt"].train), before)


# The formats


@pytest.mark.parametrize("data_set", [digit5.digit5, digit5.digit5_padded])
def test_mnist_as_idx_files_anywhere_and_as_padded_arrays_is_the_same(digit5_folder, data_set):
    content = {part: (images[:, :28, :28, 0], labels) for part, (images, labels) in parts(1).items()}
    padded = {part: (with_frame(images), labels) for part, (images, labels) in content.items()}
    write_npz(digit5_folder / "mnist.npz", padded)
    as_npz = data_set(SMALL)
    (digit5_folder / "mnist.npz").unlink()
    if data_set is digit5.digit5_padded:
        assert_holds(as_npz["mt"], padded)
    for place in ("", "MNIST/raw"):
        for suffix in ("", ".gz"):
            write_idx(digit5_folder / place, content, suffix)
            assert data_set(SMALL).checksum() == as_npz.checksum(), f"{place}/*-ubyte{suffix}"
            for path in (digit5_folder / place).glob("*-ubyte*"):
                path.unlink()


def test_mnist_m_as_png_files(digit5_folder):
    (digit5_folder / "mnist_m.npz").unlink()
    content = parts(0, {"train": 30, "test": 10})
    write_pngs(digit5_folder, content)
    as_pngs = digit5.digit5(SMALL)
    write_npz(digit5_folder / "mnist_m.npz", content)
    assert as_pngs.checksum() == digit5.digit5(SMALL).checksum()
    assert len(as_pngs["mm"].train) == 20


@pytest.mark.parametrize("data_set", [digit5.digit5, digit5.digit5_padded])
def test_usps_as_libsvm_and_as_hdf5(digit5_folder, data_set):
    (digit5_folder / "usps.npz").unlink()
    content = usps_values()
    write_libsvm(digit5_folder, content)
    up = data_set(SMALL)["up"]
    for path in digit5_folder.glob("*.bz2"):
        path.unlink()
    write_h5(digit5_folder / "usps.h5", content)
    assert_holds(data_set(SMALL)["up"], {part: (pixels(s), s.labels) for part, s in up.splits.items()})
    assert np.array_equal(up.train.labels, content["train"][1])


def test_svhn_as_mat_files_whose_ten_is_a_zero(digit5_folder):
    (digit5_folder / "svhn.npz").unlink()
    write_mats(digit5_folder, parts(3))
    assert_holds(digit5.digit5(SMALL)["sv"], parts(3))
    assert 0 in digit5.digit5(SMALL)["sv"].train.labels


def test_npz_is_looked_for_first_and_a_whole_format_before_a_part_of_one(digit5_folder):
    write_mats(digit5_folder, parts(8))
    assert_holds(digit5.digit5(SMALL)["sv"], parts(3))
    (digit5_folder / "svhn.npz").unlink()
    assert_holds(digit5.digit5(SMALL)["sv"], parts(8))

    (digit5_folder / "usps.npz").unlink()
    write_libsvm(digit5_folder, usps_values())
    (digit5_folder / "usps.t.bz2").unlink()
    write_h5(digit5_folder / "usps.h5", usps_values())
    assert len(digit5.digit5(SMALL)["up"].test) == 7


# Two ways to 32 x 32 pixels


def with_frame(digits):
    """Grey digits (N, 28, 28) as padded images."""
    return np.pad(digits, ((0, 0), (2, 2), (2, 2)))[..., None].repeat(3, axis=3)


def usps_grey():
    """The grey levels of `usps_values`, in whole numbers all the way."""
    values, _ = usps_values()["train"]
    grey = (np.rint(values * 1000 + 1000).astype(int) * 255 + 1000) // 2000
    return grey.astype(np.uint8).reshape(-1, 16, 16)


@pytest.fixture
def as_published(digit5_folder):
    """The folder with MNIST and USPS in the formats they were published in."""
    for name in ("mnist.npz", "usps.npz"):
        (digit5_folder / name).unlink()
    write_npz(digit5_folder / "syn.npz", parts(4))
    write_idx(digit5_folder, {part: (x[:, :28, :28, 0], y) for part, (x, y) in parts(1).items()})
    write_libsvm(digit5_folder, usps_values())
    return digit5_folder


def test_padded_images_are_bit_for_bit_those_of_the_recorded_tables(as_published):
    data = digit5.digit5_padded(SMALL)
    # As version 0.1.0 computed it, from the same files.
    assert data.checksum() == "6e08decc31d998303a669a2d36f57eabcc05ef3fa7dbd67049b94b7467435ed8"
    assert np.array_equal(pixels(data["mt"].train), with_frame(parts(1)["train"][0][:, :28, :28, 0]))
    grey = usps_grey()
    assert grey[0, 0, :7].tolist() == [0, 26, 77, 128, 179, 230, 255]
    enlarged = [np.asarray(Image.fromarray(digit).resize((28, 28), Image.Resampling.BICUBIC)) for digit in grey]
    assert np.array_equal(pixels(data["up"].train), with_frame(np.stack(enlarged)))


def test_resized_images_are_those_of_torchvision(as_published):
    data = digit5.digit5(SMALL)
    resize = Resize((32, 32))
    for name, grey in (("mt", parts(1)["train"][0][:, :28, :28, 0]), ("up", usps_grey())):
        wanted = np.stack([np.asarray(resize(Image.fromarray(np.ascontiguousarray(digit)))) for digit in grey])
        assert np.array_equal(pixels(data[name].train), wanted[..., None].repeat(3, axis=3)), name


def test_the_two_data_sets_differ_in_mnist_and_usps_alone(as_published):
    resized, padded = digit5.digit5(SMALL), digit5.digit5_padded(SMALL)
    assert (resized.name, padded.name) == ("digit5", "digit5-padded")
    assert resized.preset == padded.preset == "digit5"
    equal = [np.array_equal(pixels(resized[name].test), pixels(padded[name].test)) for name in ORDER]
    assert equal == [True, False, False, True, True]
    assert all(np.array_equal(resized[name].test.labels, padded[name].test.labels) for name in ORDER)
    assert resized["mt"].origin == "real: MNIST, resized from 28 x 28 to 32 x 32 pixels"
    assert resized["up"].origin == "real: USPS, resized from 16 x 16 to 32 x 32 pixels"
    assert padded["mt"].origin == "real: MNIST, padded to 32 x 32 pixels"


def test_resizing_has_the_closed_form_of_bilinear_interpolation():
    # Enlarged twofold, a new pixel lies a quarter of an old one from its centre: three parts of it, one of the next.
    row = np.array([0, 40, 200] + [200] * 13, np.uint8)
    images = fit(np.tile(row, (1, 16, 1)), "resized")
    assert images.shape == (1, 32, 32, 3)
    assert images[0, 7, :7, 1].tolist() == [0, 10, 30, 80, 160, 200, 200]
    assert np.array_equal(images, np.broadcast_to(images[:, :1, :, :1], images.shape))
    # Upright: the same along the other axis.
    upright = fit(np.tile(row[:, None], (1, 1, 16)), "resized")
    assert np.array_equal(upright, images.transpose(0, 2, 1, 3))


@pytest.mark.parametrize("side", [16, 28])
def test_a_constant_image_stays_constant_and_fills_its_place(side):
    grey = np.full((2, side, side), 200, np.uint8)
    assert (fit(grey, "resized") == 200).all()
    padded = fit(grey, "padded")
    assert (padded[:, 2:30, 2:30] == 200).all()
    assert padded.sum() == 2 * 28 * 28 * 3 * 200


def test_arrays_of_padded_digits_are_cut_out_of_their_frame_to_be_resized(digit5_folder):
    inner = {part: (images[:, :28, :28, 0], labels) for part, (images, labels) in parts(1).items()}
    framed = {part: (with_frame(images), labels) for part, (images, labels) in inner.items()}
    for name in ("mnist.npz", "usps.npz", "svhn.npz"):
        write_npz(digit5_folder / name, framed)
    data = digit5.digit5(SMALL)
    for name in ("mt", "up"):
        assert_holds(data[name], {part: (fit(x, "resized"), y) for part, (x, y) in inner.items()})
        assert "cut out of a black frame and resized from 28 x 28 to 32 x 32" in data[name].origin
    assert_holds(data["sv"], framed)  # house numbers may be dark at the edge
    assert_holds(digit5.digit5_padded(SMALL)["mt"], framed)


@pytest.mark.parametrize("place", [(0, 1, 31, 2), (6, 30, 5, 0)])
def test_arrays_with_one_pixel_in_the_frame_are_left_alone(digit5_folder, place):
    framed = {part: (with_frame(images[:, :28, :28, 0]), labels) for part, (images, labels) in parts(1).items()}
    framed["test"][0][place] = 1
    write_npz(digit5_folder / "mnist.npz", framed)
    data = digit5.digit5(SMALL)
    assert_holds(data["mt"], framed)
    assert data["mt"].origin == "real: MNIST, stored at 32 x 32 pixels"


# The stand-in


def test_syn_is_rendered_where_it_is_missing_and_says_so(digit5_folder, tmp_path):
    data = digit5.digit5(SMALL)
    syn = data["syn"]
    assert [domain.stand_in for domain in data.domains.values()] == [False] * 4 + [True]
    assert syn.origin.startswith("rendered by afield")
    assert "not found" in syn.origin
    assert (len(syn.train), len(syn.test)) == (20, 10)
    assert (np.bincount(syn.train.labels) == 2).all()
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["digit5-syn-v1-20-10.npz"]


@pytest.mark.parametrize("zero", [0, 10])
def test_published_syn_takes_the_stand_ins_place(digit5_folder, zero, monkeypatch):
    monkeypatch.setattr(digit5, "rendered_digits", lambda sizes: pytest.fail("rendered"))
    write_mats(digit5_folder, parts(4), "synth_", zero)
    syn = digit5.digit5(SMALL)["syn"]
    assert_holds(syn, parts(4))
    assert not syn.stand_in
    write_npz(digit5_folder / "syn.npz", parts(5))
    assert_holds(digit5.digit5(SMALL)["syn"], parts(5))


def test_the_renderer_gives_the_same_bits_from_the_cache_and_anew(digit5_folder, tmp_path, monkeypatch):
    first = rendered.rendered_digits(SMALL)
    monkeypatch.setattr(rendered, "render", lambda *_: pytest.fail("rendered again"))
    cached = rendered.rendered_digits(SMALL)
    monkeypatch.undo()
    monkeypatch.setenv("AFIELD_CACHE", str(tmp_path / "other"))
    anew = rendered.rendered_digits(SMALL)
    for part in SMALL:
        for other in (cached, anew):
            assert np.array_equal(pixels(first[part]), pixels(other[part]))
            assert np.array_equal(first[part].labels, other[part].labels)


def test_no_rendered_image_occurs_twice_and_each_shows_something(monkeypatch):
    monkeypatch.setattr(rendered, "_CHUNK", 40)
    arrays = rendered._render_parts({"train": 120, "test": 60})
    images = np.concatenate([arrays["train/images"], arrays["test/images"]])
    assert len({image.tobytes() for image in images}) == 180
    assert images.shape[1:] == (32, 32, 3)
    assert images.std(axis=(1, 2)).max(axis=1).min() > 10


def test_an_outline_surrounds_the_ink():
    plain, outlined = (np.asarray(draw_outlined("182", "DejaVuSans", stroke)).astype(int) for stroke in (0, 5))
    assert np.array_equal(plain[..., 0], plain[..., 1])
    assert (outlined[..., 0] >= outlined[..., 1]).all()
    assert outlined[..., 0].sum() > 1.3 * outlined[..., 1].sum()
    middle = np.s_[:, 140:160]
    assert outlined[middle][..., 1].sum() == pytest.approx(plain[middle][..., 1].sum(), rel=0.05)


def test_only_records_about_stand_ins_name_them(digit5_folder):
    config, device = resolve({"task": {"target": "street"}}), torch.device("cpu")
    header = make_header(config, digit5.digit5(SMALL), device)
    assert header["protocol"]["stand_ins"] == ["syn"]
    assert str(digit5_folder.parent) not in json.dumps(header)
    write_npz(digit5_folder / "syn.npz", parts(5))
    assert "stand_ins" not in make_header(config, digit5.digit5(SMALL), device)["protocol"]


# What is loaded once


def test_data_is_loaded_once_per_folder(digit5_folder, tmp_path, monkeypatch):
    write_npz(digit5_folder / "syn.npz", parts(4))
    data = load_data("digit5")
    assert load_data("digit5") is data
    (tmp_path / "here" / "data").mkdir(parents=True)
    digit5_folder.rename(tmp_path / "here" / "data" / "digit5")
    monkeypatch.setenv("AFIELD_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(AfieldError, match="nowhere"):
        load_data("digit5")
    monkeypatch.delenv("AFIELD_DATA")
    monkeypatch.chdir(tmp_path / "here")
    again = load_data("digit5")
    assert again is not data
    assert again.checksum() == data.checksum()
    monkeypatch.chdir(tmp_path / "here" / "data")
    with pytest.raises(AfieldError, match="no folder data/digit5"):
        load_data("digit5")


def test_a_name_registered_anew_is_loaded_anew(monkeypatch):
    monkeypatch.setattr(data_registry, "_builders", {})
    first, second = SimpleNamespace(), SimpleNamespace()
    register_data("x")(lambda: first)
    assert load_data("x") is first
    register_data("x")(lambda: second)
    assert load_data("x") is second


def test_a_checksum_is_computed_once_per_object(digit5_folder, monkeypatch):
    write_npz(digit5_folder / "syn.npz", parts(4))
    data, other = digit5.digit5(), digit5.digit5()
    first = data.checksum()
    monkeypatch.setattr(domain_module, "hashlib", None)
    assert data.checksum() == first
    with pytest.raises(AttributeError):
        other.checksum()


def test_a_protocol_of_one_source_refuses_methods_that_need_several(digit5_folder, tmp_path):
    write_npz(digit5_folder / "syn.npz", parts(4))  # rendering it would take long
    plan = tmp_path / "plan.toml"
    plan.write_text('protocol = "pairs/sv-mt"\nmethods = ["dann"]\nseeds = [0]\n', "utf-8")
    assert [job.target for job in read_plans([plan])] == ["mt"]
    plan.write_text('protocol = "pairs/sv-mt"\nmethods = ["far"]\nseeds = [0]\n', "utf-8")
    with pytest.raises(AfieldError, match="'far' needs at least 2 source domains, not 1"):
        read_plans([plan])
