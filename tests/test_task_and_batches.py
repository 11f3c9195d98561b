"""Who may see what, and in what order: tasks and the batches drawn from them."""

import gc
from types import FunctionType, ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from afield import AfieldError
from afield.data import residence
from afield.data.augmentation import shifted
from afield.data.batches import BatchStream
from afield.data.domain import Domain, DomainSet, Split
from afield.data.normalise import Normalise
from afield.data.preprocessing import Preprocessing
from afield.data.residence import stays_resident
from afield.data.task import make_task

CPU = torch.device("cpu")
PLAIN = Preprocessing(8, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


def numbered(sizes):
    """Constant images that say who they are: red is the domain, green the image, blue its label."""
    domains = {}
    for number, size in enumerate(sizes):
        labels = np.random.default_rng(number).integers(0, 5, size)
        who = np.stack([np.full(size, number), np.arange(size), labels], axis=1)
        images = np.tile(who[:, None, None], (1, 8, 8, 1)).astype(np.uint8)
        split = Split.of_array(images, labels.astype(np.int64))
        domains[f"d{number}"] = Domain(f"d{number}", split, split, "rendered")
    return DomainSet("numbered", tuple("abcde"), domains)


def stream_of(sizes, per_domain, seed=0, kind="uda", **options):
    task, _ = make_task(numbered(sizes), kind, f"d{len(sizes) - 1}" if kind == "uda" else None)
    return BatchStream(task, per_domain, PLAIN, CPU, seed, **options)


def identities(batch):
    """(domain, image, label) of each image of a batch."""
    corner = batch.images[:, :, 0, 0]
    assert torch.equal(batch.images, corner[:, :, None, None].expand_as(batch.images))
    return (corner * 255).round().int()


def everything_in(root):
    """Every array that can be reached from an object."""
    seen, waiting, arrays = set(), [root], []
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, type | ModuleType | FunctionType):
            continue
        seen.add(id(thing))
        waiting += gc.get_referents(thing)
        if isinstance(thing, np.ndarray):
            arrays.append(thing)
            waiting.append(thing.base)
        if isinstance(thing, torch.Tensor):
            arrays.append(thing.numpy())
    return arrays


def holds(array, labels):
    """Whether an array is or contains these labels in a row."""
    flat = array.ravel()
    if flat.dtype.kind not in "iu" or len(flat) < len(labels):
        return False
    return bool((np.lib.stride_tricks.sliding_window_view(flat, len(labels)) == labels).all(axis=1).any())


@pytest.mark.parametrize("kind", ["uda", "dg"])
def test_nothing_training_sees_holds_the_labels_of_the_target(toy, kind):
    task, views = make_task(toy, kind, "night")
    stream = BatchStream(task, 4, PLAIN, CPU, 0)
    hidden = [toy["night"].train.labels, toy["night"].test.labels]
    for holder in (task, stream):
        found = everything_in(holder)
        assert any(holds(array, toy["day"].train.labels) for array in found)
        assert not any(np.shares_memory(array, labels) for array in found for labels in hidden)
        assert not any(holds(array, labels) for array in found for labels in hidden)
    assert np.array_equal(views.target.labels, toy["night"].test.labels)


def test_a_dg_task_shows_no_target_but_evaluates_it(toy):
    task, views = make_task(toy, "dg", "night")
    assert task.target is None
    assert task.target is None
    assert views.target.name == "night"
    assert not any(np.shares_memory(array, toy["night"].train.images.array) for array in everything_in(task))
    assert not BatchStream(task, 2, PLAIN, CPU, 0).next().has_target


def test_a_dg_task_without_target_learns_from_all_domains(toy):
    task, views = make_task(toy, "dg", None)
    assert [view.name for view in task.sources] == list(toy.domains)
    assert views.target is None


def test_sources_are_all_other_domains_or_those_named_in_their_order(toy):
    task, _ = make_task(toy, "uda", "dusk")
    assert [view.name for view in task.sources] == ["day", "fog", "night"]
    task, views = make_task(toy, "uda", "dusk", ("night", "day"))
    assert [view.name for view in task.sources] == [view.name for view in views.sources] == ["night", "day"]


def test_training_and_evaluation_use_different_splits(toy):
    task, views = make_task(toy, "uda", "night")
    for shown, held_out in zip(task.sources, views.sources, strict=True):
        assert shown.images is toy[shown.name].train.images
        assert held_out.images is toy[shown.name].test.images
    assert task.target.images is toy["night"].train.images


@pytest.mark.parametrize(
    ("kind", "target", "sources", "message"),
    [
        ("uda", "night", ("day", "night"), "target 'night' is among the sources"),
        ("uda", "nigth", (), "unknown domain 'nigth'; did you mean 'night'"),
        ("uda", "night", ("day", "duks"), "unknown domain 'duks'; did you mean 'dusk'"),
        ("dg", "fogg", (), "did you mean 'fog'"),
        ("uda", None, (), "a uda task needs a target, one of: day, dusk, fog, night"),
        ("uda", "", (), "target|domain"),
        ("uda", "night", ("day", "day"), "named twice"),
    ],
)
def test_a_task_that_makes_no_sense_is_an_error(toy, kind, target, sources, message):
    with pytest.raises(AfieldError, match=message):
        make_task(toy, kind, target, sources)


def test_a_target_alone_leaves_no_source():
    with pytest.raises(AfieldError, match="no source is left"):
        make_task(numbered([3]), "uda", "d0")


@given(
    sizes=st.lists(st.integers(1, 12), min_size=2, max_size=4), per_domain=st.integers(1, 15), seed=st.integers(0, 9)
)
def test_batches_are_balanced_contiguous_and_in_task_order_with_the_target_last(sizes, per_domain, seed):
    stream = stream_of(sizes, per_domain, seed)
    for _ in range(3):
        batch = stream.next()
        who = identities(batch)
        assert who[:, 0].tolist() == [domain for domain in range(len(sizes)) for _ in range(per_domain)]
        assert batch.labels.tolist() == who[: batch.num_labelled, 2].tolist()
        assert batch.num_labelled == (len(sizes) - 1) * per_domain
        assert (batch.has_target, batch.per_domain, batch.num_sources) == (True, per_domain, len(sizes) - 1)
        assert batch.by_domain(batch.images).shape == (len(sizes), per_domain, 3, 8, 8)


@given(
    sizes=st.lists(st.integers(1, 12), min_size=2, max_size=4), per_domain=st.integers(1, 6), times=st.integers(1, 4)
)
def test_of_the_target_there_may_be_a_multiple_of_what_there_is_of_a_source(sizes, per_domain, times):
    usual, stream = stream_of(sizes, per_domain), stream_of(sizes, per_domain, target_batches=times)
    walk = []
    for _ in range(4):
        batch, before = stream.next(), usual.next()
        source, target = batch.split(identities(batch))
        assert torch.equal(source, usual_source := before.split(identities(before))[0]), usual_source
        assert torch.equal(batch.labels, before.labels)
        assert target[:, 0].tolist() == [len(sizes) - 1] * times * per_domain
        assert (batch.target_batches, batch.per_domain) == (times, per_domain)
        walk += target[:, 1].tolist()
    for start in range(0, len(walk), sizes[-1]):
        epoch = walk[start : start + sizes[-1]]
        assert len(set(epoch)) == len(epoch)


@given(sizes=st.lists(st.integers(1, 12), min_size=2, max_size=3), per_domain=st.integers(1, 15))
def test_every_image_is_seen_once_before_any_is_seen_twice(sizes, per_domain):
    stream = stream_of(sizes, per_domain, kind="dg")
    seen = [[] for _ in sizes]
    for _ in range(8):
        for domain, image, _ in identities(stream.next()).tolist():
            seen[domain].append(image)
    for size, images in zip(sizes, seen, strict=True):
        for start in range(0, len(images), size):
            epoch = images[start : start + size]
            assert len(set(epoch)) == len(epoch)


def test_the_order_changes_from_epoch_to_epoch_and_from_domain_to_domain():
    stream = stream_of([12, 12], 12, kind="dg")
    orders = {tuple(part.tolist()) for _ in range(4) for part in identities(stream.next())[:, 1].view(2, 12)}
    assert len(orders) == 8


def drawn(stream, count=5):
    taken = [stream.next() for _ in range(count)]
    return torch.stack([batch.images for batch in taken]), torch.stack([batch.labels for batch in taken])


def toy_stream(toy, seed=0, **options):
    return BatchStream(
        make_task(toy, "uda", "night")[0], 5, PLAIN, CPU, seed, options.pop("recipe", "digits"), **options
    )


def test_batches_follow_the_seed(toy):
    first, again, other = (drawn(toy_stream(toy, seed)) for seed in (3, 3, 4))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])


def test_augmentation_does_not_change_which_images_are_drawn(toy):
    plain, *changed = (drawn(toy_stream(toy, recipe=recipe)) for recipe in ("none", "digits", "photos"))
    for images, labels in changed:
        assert torch.equal(plain[1], labels)
        assert not torch.equal(plain[0], images)


@given(before=st.integers(0, 20))
def test_a_restored_stream_goes_on_exactly(toy, before):
    stream = toy_stream(toy)
    for _ in range(before):
        stream.next()
    restored = toy_stream(toy)
    restored.load_state_dict(stream.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(drawn(stream), drawn(restored), strict=True))


def crops(image, shift):
    """Every image a shift may make, by its offsets."""
    padded = np.pad(image, ((shift, shift), (shift, shift), (0, 0)), mode="edge")
    size, reach = len(image), range(2 * shift + 1)
    return {padded[y : y + size, x : x + size].tobytes(): (y, x) for y in reach for x in reach}


@pytest.mark.parametrize("shift", [0, 1, 3])
def test_an_image_is_shifted_within_reach(shift):
    image = np.arange(12 * 12 * 3, dtype=np.uint16).reshape(12, 12, 3) % 251
    pool = torch.from_numpy(image.astype(np.uint8))[None]
    picks = torch.zeros(1500, dtype=torch.int64)
    results = shifted(pool, picks, torch.Generator().manual_seed(0), shift).numpy()
    possible = crops(image.astype(np.uint8), shift)
    assert {result.tobytes() for result in results} == set(possible)


@pytest.mark.parametrize("recipe", ["none", "digits", "photos"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("times", [1, 3])
def test_streamed_batches_equal_those_of_resident_images(toy, recipe, device, times):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    task = make_task(toy, "uda", "night")[0]
    resident, streamed = (
        BatchStream(task, 5, PLAIN, torch.device(device), 0, recipe, placement, target_batches=times)
        for placement in ("resident", "streamed")
    )
    assert (resident.resident, streamed.resident) == (True, False)
    assert all(torch.equal(a, b) for a, b in zip(drawn(resident), drawn(streamed), strict=True))
    assert torch.equal(resident.still(3).images, streamed.still(3).images)
    streamed.close()


@given(before=st.integers(0, 20))
def test_a_streamed_run_goes_on_exactly(toy, before):
    resident = toy_stream(toy, placement="resident")
    for _ in range(before):
        resident.next()
    streamed = toy_stream(toy, placement="streamed")
    streamed.next()  # what it has read ahead must be dropped
    streamed.load_state_dict(resident.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(drawn(resident), drawn(streamed), strict=True))
    streamed.close()


def test_an_error_in_reading_ahead_is_raised_where_the_batch_is_taken(toy, monkeypatch):
    stream = toy_stream(toy, placement="streamed")
    stream.next()

    def fail(*_):
        raise AfieldError("the file is gone")

    monkeypatch.setattr(type(stream.splits[0]), "read", fail)
    with pytest.raises(AfieldError, match="the file is gone"):
        drawn(stream, 20)
    stream.close()


def test_images_live_on_a_gpu_when_they_take_less_than_half_of_its_free_memory(toy, monkeypatch):
    splits = [toy["day"].train.images]
    size, gpu = splits[0].nbytes, torch.device("cuda")
    assert size == 24 * 16 * 16 * 3
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2 * size + 2, 10 * size))
    assert stays_resident(splits, gpu, "auto")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2 * size - 2, 10 * size))
    assert not stays_resident(splits, gpu, "auto")
    assert stays_resident(splits, gpu, "resident")


def test_arrays_in_memory_stay_there_and_are_not_copied(toy, monkeypatch):
    monkeypatch.setattr(residence, "free_memory", lambda: 0)
    stream = toy_stream(toy)
    assert stream.resident
    arrays = [toy[name].train.images.array for name in ("day", "dusk", "fog", "night")]
    parts = [part.numpy() for part in stream.arrivals.parts]
    assert all(np.shares_memory(array, part) for array, part in zip(arrays, parts, strict=True))
    assert {part.dtype for part in parts} == {np.dtype(np.uint8)}


def test_images_that_would_fill_the_host_memory_are_streamed(toy, monkeypatch):
    larger = toy.sized(32)["day"].train.images
    monkeypatch.setattr(residence, "free_memory", lambda: 10 * larger.nbytes)
    assert stays_resident([larger], CPU, "auto")
    monkeypatch.setattr(residence, "free_memory", lambda: 10 * larger.nbytes - 10)
    assert not stays_resident([larger], CPU, "auto")


def test_preprocessing_scales_subtracts_the_mean_and_divides_by_the_deviation():
    images = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    mean, std = (0.1, 0.5, 0.9), (0.2, 0.5, 2.0)
    values = Normalise(Preprocessing(8, mean, std))(images)
    for channel in range(3):
        expected = (images[:, channel].double() / 255 - mean[channel]) / std[channel]
        assert torch.allclose(values[:, channel].double(), expected, atol=1e-6)
    assert values.dtype == torch.float32
    assert torch.equal(values, Normalise(Preprocessing(8, mean, std))(images.float() / 255))
