"""Image files behind a packed cache: the same pixels and the same batches, decoded once, within a limit on disk."""

import fcntl
import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from afield import AfieldError
from afield.data import packed as packs
from afield.data.batches import BatchStream
from afield.data.decoding import EncodedImages, decoders
from afield.data.domain import Domain, DomainSet, Split
from afield.data.packed import PackedImages, make_room, packed
from afield.data.preprocessing import Preprocessing
from afield.data.task import make_task

SIDE = 20
PLAIN = Preprocessing(SIDE, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("AFIELD_CACHE", str(tmp_path / "cache"))


def write_files(folder, count, seed=0):
    """Small JPEG files of different sizes."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    files = [folder / f"{number}.jpg" for number in range(count)]
    for file in files:
        height, width = rng.integers(24, 60, 2)
        Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(file)
    return [str(file) for file in files]


def encoded(files):
    return EncodedImages(files, np.arange(len(files)), decoders(2).probe(files), workers=2).sized(SIDE, "squash")


@pytest.fixture
def images(tmp_path):
    return encoded(write_files(tmp_path / "files", 30))


def forbid_decoding(monkeypatch):
    monkeypatch.setattr(EncodedImages, "read", lambda *_: pytest.fail("decoded again"))


def test_a_pack_gives_the_pixels_of_the_files_and_decodes_each_once(images, monkeypatch):
    pack = packed(images, 1.0)
    assert isinstance(pack, PackedImages)
    some, all_of_them = np.array([7, 3, 3, 29]), np.arange(30)
    assert np.array_equal(pack.read(some), images.read(some))
    expected = images.read(all_of_them)
    assert np.array_equal(pack.read(all_of_them), expected)
    forbid_decoding(monkeypatch)
    assert np.array_equal(pack.read(all_of_them[::-1]), expected[::-1])
    out = np.zeros((2, SIDE, SIDE, 3), np.uint8)
    assert pack.read(np.array([4, 5]), out) is out
    assert np.array_equal(out, expected[4:6])


def test_a_pack_is_found_again_by_another_process_and_by_copies_of_the_files(images, tmp_path, monkeypatch):
    expected = packed(images, 1.0).read(np.arange(30))
    copies = encoded(write_files(tmp_path / "elsewhere", 30))
    forbid_decoding(monkeypatch)
    assert np.array_equal(packed(copies, 1.0).read(np.arange(30)), expected)


def test_other_files_and_other_sizes_have_packs_of_their_own(images, tmp_path):
    pack = packed(images, 1.0)
    others = [
        encoded(write_files(tmp_path / "other", 30, seed=1)),
        images.sized(SIDE, "pad"),
        images.sized(16, "squash"),
    ]
    paths = {pack.path, *(packed(other, 1.0).path for other in others)}
    assert len(paths) == 4


def test_pixels_of_another_version_are_in_another_pack(images, monkeypatch):
    before = packed(images, 1.0).path
    monkeypatch.setattr(packs, "PIXELS_VERSION", packs.PIXELS_VERSION + 1)
    assert packed(images, 1.0).path != before


def test_what_was_decoded_but_not_saved_is_decoded_again_after_a_kill(images, tmp_path):
    """A process that is killed has saved what its pack says, and nothing else counts."""
    code = """
import os, sys, numpy as np
sys.path.insert(0, "tests")
from test_packed import encoded
from afield.data.packed import packed
pack = packed(encoded(sys.argv[1:]), 1.0)
pack.read(np.arange(10)); pack.save(); pack.read(np.arange(10, 20))
os._exit(1)
"""
    subprocess.run([sys.executable, "-c", code, *images.sources], env=os.environ, check=False)
    pack = packed(images, 1.0)
    assert pack._done.sum() == 10
    assert np.array_equal(pack.read(np.arange(30)), images.read(np.arange(30)))


def test_of_two_processes_one_fills_the_pack_and_the_other_reads_on(images):
    first = packed(images, 1.0)
    second = PackedImages(images, first.path, images.square)  # as another process would open it
    assert np.array_equal(second.read(np.arange(30)), images.read(np.arange(30)))
    assert not first._done.any()


def test_a_set_beyond_the_limit_is_not_packed_and_zero_packs_nothing(images):
    assert packed(images, 30 * SIDE * SIDE * 3 / 1e9 - 1e-9) is images
    assert packed(images, 0.0) is images


def test_the_least_recently_used_packs_make_room(tmp_path):
    for age, name in enumerate(("young", "middle", "old")):
        file = tmp_path / f"{name}.pack"
        file.write_bytes(bytes(100))
        file.with_suffix(".done").write_bytes(b"x")
        os.utime(file, (1e9 - age, 1e9 - age))
    assert make_room(tmp_path / "new.pack", 150, limit=360)
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "middle.done",
        "middle.pack",
        "young.done",
        "young.pack",
    ]


def test_a_pack_that_is_being_filled_is_never_removed(tmp_path):
    file = tmp_path / "busy.pack"
    file.write_bytes(bytes(100))
    with file.open("r+b") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        assert not make_room(tmp_path / "new.pack", 50, limit=100)
    assert file.exists()


def test_a_disk_that_takes_nothing_costs_only_the_cache(images, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(packs, "PackedImages", full)
    assert packed(images, 1.0) is images


def test_a_disk_that_fills_up_costs_only_the_cache(images, monkeypatch):
    pack, write, room = packed(images, 1.0), os.pwrite, [5]

    def pwrite(file, content, offset):
        room[0] -= 1
        if room[0] < 0:
            raise OSError(28, "No space left on device")
        return write(file, content[: 7 if room[0] == 0 else None], offset)  # the last write is a short one

    monkeypatch.setattr(packs.os, "pwrite", pwrite)
    expected = images.read(np.arange(30))
    for start in (0, 2, 4):
        assert np.array_equal(pack.read(np.arange(start, start + 2)), expected[start : start + 2])
    for _ in range(2):
        assert np.array_equal(pack.read(np.arange(30)), expected)
    assert pack._done.sum() == 4


@pytest.mark.parametrize("damage", [Path.unlink, lambda pack: os.truncate(pack, 100)])
def test_a_pack_that_someone_has_removed_or_cut_short_is_made_anew(images, damage):
    pack = packed(images, 1.0)
    path, expected = pack.path, pack.read(np.arange(30)).copy()
    del pack
    gc.collect()
    assert path.with_suffix(".done").exists()
    damage(path)
    PackedImages(images, path, images.square)._finish.detach()  # killed before it could save anything
    gc.collect()
    assert np.array_equal(packed(images, 1.0).read(np.arange(30)), expected)


def test_a_pack_that_is_removed_while_it_is_opened_is_not_used(images, monkeypatch):
    path = packed(images, 1.0).path
    gc.collect()
    read_done = packs._read_done
    monkeypatch.setattr(packs, "_read_done", lambda *arguments: (path.unlink(), read_done(*arguments))[1])
    with pytest.raises(FileNotFoundError):
        PackedImages(images, path, images.square)


def data_of_files(folder):
    domains = {}
    for number in range(3):
        source = encoded(write_files(folder / str(number), 12 + number, number))
        split = Split(source, np.arange(len(source)) % 4)
        domains[f"d{number}"] = Domain(f"d{number}", split, split, "files")
    return DomainSet("files", tuple("abcd"), domains)


@pytest.mark.parametrize("recipe", ["digits", "photos"])
def test_resident_packed_and_streamed_files_give_the_same_batches_and_go_on_from_each_other(tmp_path, recipe):
    data = data_of_files(tmp_path)
    ways = {
        "resident": (data, "resident"),
        "streamed": (data, "streamed"),
        "packed": (data.mapped(lambda images: packed(images, 1.0)), "streamed"),
    }
    batches, states = {}, {}
    for way, (domains, placement) in ways.items():
        task, _ = make_task(domains, "uda", "d2")
        stream = BatchStream(task, 5, PLAIN, torch.device("cpu"), 3, recipe, placement)
        for _ in range(7):  # more than one epoch
            stream.next()
        states[way] = stream.state_dict()
        batches[way] = [stream.next() for _ in range(4)]
        stream.close()
    for way in ("streamed", "packed"):
        for one, other in zip(batches["resident"], batches[way], strict=True):
            assert torch.equal(one.images, other.images)
            assert torch.equal(one.labels, other.labels)
    task, _ = make_task(ways["packed"][0], "uda", "d2")
    resumed = BatchStream(task, 5, PLAIN, torch.device("cpu"), 3, recipe, "streamed")
    resumed.load_state_dict(states["resident"])
    assert torch.equal(resumed.next().images, batches["resident"][0].images)
    resumed.close()


def test_a_file_that_is_gone_is_named(images):
    Path(images.sources[4]).unlink()
    with pytest.raises(AfieldError, match=r"4\.jpg"):
        images.read(np.arange(30))
    assert images.read(np.arange(4)).shape == (4, SIDE, SIDE, 3), "the decoders go on"
