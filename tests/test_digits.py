import hashlib
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from afield.data.cache import load_or_build
from afield.data.contact_sheet import contact_sheet
from afield.data.digits import digits, sources
from afield.data.digits.build import halves, pick_per_class, random_streams
from afield.data.digits.patches import crop, divide, spread
from afield.data.digits.render import font_digits, on_photographs, pad
from afield.data.digits.street import street_numbers
from afield.data.domain import Domain, DomainSet, Split

ORDER = ["mnist", "photo", "uci", "fonts", "street"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        path = tmp_path_factory.mktemp("cache")
        patch.setenv("AFIELD_CACHE", str(path))
        yield path


@pytest.fixture(scope="module")
def data(folder):
    return digits()


def hashes(images):
    return [hashlib.sha256(image.tobytes()).hexdigest() for image in images]


def test_domains_and_their_sizes(data):
    assert list(data.domains) == ORDER
    assert data.classes == tuple("0123456789")
    assert data.preset == "digits"
    assert data.image_size == 32
    for name, domain in data.domains.items():
        assert domain.name == name
        assert (len(domain.train), len(domain.test)) == ((1297, 500) if name == "uci" else (2000, 500))
        for split in (domain.train, domain.test):
            assert split.images.array.shape[1:] == (32, 32, 3)
            assert (split.images.array.dtype, split.labels.dtype) == (np.uint8, np.int64)


def test_classes_are_balanced_and_in_random_order(data):
    for name, domain in data.domains.items():
        assert (np.bincount(domain.test.labels) == 50).all()
        train = np.bincount(domain.train.labels, minlength=10)
        assert (train == 200).all() if name != "uci" else train.min() >= 120
        assert set(domain.train.labels[:100]) == set(range(10))


def test_origins_tell_real_from_rendered(data):
    kinds = [domain.origin.split()[0].rstrip(":") for domain in data.domains.values()]
    assert kinds == ["real", "real", "real", "rendered", "rendered"]
    assert data["photo"].origin.startswith("real digits on real photographs")


def test_no_image_occurs_twice(data):
    every = [
        digest for domain in data.domains.values() for part in (domain.train, domain.test)
        for digest in hashes(part.images.array)
    ]  # fmt: skip
    assert len(set(every)) == len(every) == 4 * 2500 + 1797


def test_mnist_and_photo_use_different_digits():
    labels = np.repeat(np.arange(10), 500)
    plain, blended = halves(labels, random_streams(0)["halves"])
    assert np.array_equal(np.sort(np.concatenate([plain, blended])), np.arange(5000))
    for half in (plain, blended):
        assert (np.bincount(labels[half]) == 250).all()


def test_mnist_images_lie_in_its_half(data):
    originals, labels = sources.mnist_digits()
    assert len(set(hashes(originals))) == 5000
    plain, _ = halves(labels, random_streams(0)["halves"])
    shown = np.concatenate([data["mnist"].train.images.array, data["mnist"].test.images.array])
    assert set(hashes(pad(originals[plain]))) == set(hashes(shown))


def test_pick_per_class_takes_each_index_once():
    labels = np.array([0, 1, 2] * 7 + [2])
    picked, rest = pick_per_class(labels, 3, np.random.default_rng(0))
    assert (np.bincount(labels[picked]) == 3).all()
    assert sorted([*picked, *rest]) == list(range(22))


def test_second_load_reads_the_cache(data, folder, monkeypatch):
    assert [path.name for path in folder.iterdir()] == ["digits-v1-seed0.npz"]
    monkeypatch.setattr("afield.data.digits.build_digits", lambda seed: pytest.fail("built again"))
    assert digits().checksum() == data.checksum()


def test_corrupt_cache_is_rebuilt_to_the_same_bits(data, folder):
    path = folder / "digits-v1-seed0.npz"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.warns(UserWarning, match="damaged"):
        again = digits()
    assert again.checksum() == data.checksum()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert digits().checksum() == data.checksum()


def tiny():
    return {"a/images": np.arange(12, dtype=np.uint8).reshape(3, 4), "a/labels": np.arange(3)}


@pytest.mark.parametrize("damage", ["truncated", "empty", "text", "other content", "other key"])
def test_cache_rejects_damaged_files(tmp_path, monkeypatch, damage):
    monkeypatch.setenv("AFIELD_CACHE", str(tmp_path / "new" / "folder"))
    load_or_build("tiny", tiny)
    path = tmp_path / "new" / "folder" / "tiny.npz"
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-30])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "text":
        path.write_text("not an archive")
    elif damage == "other content":
        with np.load(path) as archive:
            stored = dict(archive)
        stored["a/labels"] = np.array([2, 1, 0])
        np.savez(path, **stored)
    else:
        load_or_build("other", lambda: {"b": np.zeros(2)})
        path.write_bytes(path.with_name("other.npz").read_bytes())
    with pytest.warns(UserWarning, match="damaged"):
        arrays = load_or_build("tiny", tiny)
    assert {name: array.tolist() for name, array in arrays.items()} == {n: a.tolist() for n, a in tiny().items()}
    load_or_build("tiny", lambda: pytest.fail("built again"))


def test_unwritable_cache_only_warns(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("AFIELD_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="cannot cache"):
        assert load_or_build("tiny", tiny).keys() == tiny().keys()


def test_two_builders_at_once_both_succeed(tmp_path, monkeypatch):
    monkeypatch.setenv("AFIELD_CACHE", str(tmp_path))
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: load_or_build("tiny", tiny), range(32)))
    assert all((result["a/images"] == tiny()["a/images"]).all() for result in results)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.npz"]


@pytest.mark.parametrize("domain", ["fonts", "street"])
def test_renderers_follow_the_seed(domain):
    walls = divide(sources.photographs(sources.TEXTURES))["train"]
    labels = np.arange(10)

    def render(seed):
        rng = random_streams(seed)[domain]
        return font_digits(labels, rng) if domain == "fonts" else street_numbers(labels, walls, rng)

    first = render(0)
    assert np.array_equal(first, render(0))
    assert not set(hashes(first)) & set(hashes(render(1)))


def test_photo_is_the_absolute_difference():
    tiles = divide(sources.photographs(sources.PHOTOGRAPHS[:1]))["train"]
    inks = np.array([0, 255], np.uint8)
    digit = np.broadcast_to(inks[:, None, None, None], (2, 32, 32, 3))
    blended = on_photographs(digit, tiles, np.random.default_rng(0))
    patches = crop(tiles, 2, np.random.default_rng(0))
    assert np.array_equal(blended, np.stack([patches[0], 255 - patches[1]]))


def test_photographs_are_divided_without_overlap():
    ramp = np.arange(40_000, dtype=np.uint32).reshape(200, 200, 1)
    photograph = np.concatenate([ramp >> shift & 255 for shift in (0, 8, 16)], axis=2).astype(np.uint8)
    full_size = {part: tiles[::2] for part, tiles in divide([photograph]).items()}
    pixels = {part: {tuple(pixel) for tile in full_size[part] for pixel in tile.reshape(-1, 3)} for part in full_size}
    assert not pixels["train"] & pixels["test"]
    assert (len(pixels["train"]), len(pixels["test"])) == (30_000, 10_000)


def test_spread_is_the_standard_deviation():
    patches = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)
    assert np.allclose(spread(patches), np.sqrt(patches.var(axis=(1, 2)).mean(axis=1)))


def test_every_font_has_ten_different_digits():
    for name in sources.FONTS:
        bitmaps = {bytes(sources.font(name).getmask(digit)) for digit in "0123456789"}
        assert len(bitmaps) == 10, name
        assert bytes(sources.font(name).getmask("\uffff")) not in bitmaps, name


def test_contact_sheet_has_one_row_per_domain(data):
    sheet = contact_sheet(data)
    assert sheet.mode == "RGB"
    assert sheet.height == 5 * 70 - 6 + 32
    narrow = contact_sheet(data, per_domain=10)
    assert (sheet.width - narrow.width, sheet.height) == (10 * 70, narrow.height)


def test_contact_sheet_of_other_data():
    images = np.zeros((5, 48, 48, 3), np.uint8)
    split = Split.of_array(images, np.array([0, 0, 1, 1, 2]))
    data = DomainSet("shapes", ("a", "b", "c"), {"one": Domain("one", split, split, "rendered")})
    assert contact_sheet(data, per_domain=4).height == 64 + 32
