"""Files from strangers: each is a model or one line that says why not. And what a model takes and gives."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

import afield
from afield import AfieldError
from afield.app.images import as_images, read_image
from afield.config.layers import resolve
from afield.data import registry as data_registry
from afield.data.pixels import UnreadableImageError
from afield.methods.create import method_of
from afield.training import checkpoint as file_format
from afield.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint


@pytest.fixture(scope="module")
def run(train_toy, tmp_path_factory):
    return train_toy(tmp_path_factory.mktemp("run") / "run")


@pytest.fixture(scope="module")
def saved(run):
    return run.checkpoint.read_bytes()


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    """One file for all examples of a property test."""
    return tmp_path_factory.mktemp("scratch") / "some.ckpt"


@pytest.fixture(scope="module")
def model(run):
    return afield.load(run.checkpoint)


def refusal(path):
    """The line that says why a file is refused."""
    with pytest.raises(AfieldError) as caught:
        afield.load(path)
    message = str(caught.value)
    assert message
    assert "\n" not in message
    assert Path(path).name in message
    return message


@given(data=st.data())
def test_a_checkpoint_cut_anywhere_is_refused(saved, scratch, data):
    scratch.write_bytes(saved[: data.draw(st.integers(0, len(saved) - 1))])
    refusal(scratch)


@given(st.binary(max_size=400))
@example(b"")
@example(b"\x80")
@example(b"PK")
@example(b"{}")
@example(b"\x02\0\0\0\0\0\0\0{}")
@example(b"\xff" * 8 + b"{")
def test_bytes_that_are_no_checkpoint_are_refused(scratch, content):
    scratch.write_bytes(content)
    refusal(scratch)


@given(position=st.integers(0, 3000), value=st.integers(0, 255))
def test_a_changed_byte_gives_a_model_or_a_refusal(saved, scratch, position, value):
    scratch.write_bytes(saved[:position] + bytes([value]) + saved[position + 1 :])
    try:
        loaded = afield.load(scratch)
    except AfieldError as error:
        assert "\n" not in str(error)
    else:
        assert isinstance(loaded, nn.Module)


def test_what_is_no_file_is_refused(tmp_path):
    assert "no checkpoint" in refusal(tmp_path / "missing.ckpt")
    assert "no checkpoint" in refusal(tmp_path)


def test_an_archive_of_pytorch_is_refused(tmp_path):
    torch.save({"model": torch.zeros(3)}, tmp_path / "torch.ckpt")
    assert "pickle" in refusal(tmp_path / "torch.ckpt")


class Payload:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_is_never_executed(tmp_path, protocol):
    content = pickle.dumps(Payload(tmp_path / "harm"), protocol)
    for name, prefix in {"plain.ckpt": b"", "wrapped.ckpt": len(content).to_bytes(8, "little")}.items():
        (tmp_path / name).write_bytes(prefix + content)
        refusal(tmp_path / name)
    assert not (tmp_path / "harm").exists()
    pickle.loads(content)
    assert (tmp_path / "harm").exists(), "the payload itself works"


@pytest.mark.parametrize("width", range(10, 74))
def test_a_checkpoint_opens_whatever_the_length_of_its_header(tmp_path, width):
    """A header's length comes first in the file, and can begin as a pickle does."""
    written = Checkpoint({}, ("x" * width,), (), {}, 0, {"model": {"a": torch.zeros(1)}})
    save_checkpoint(tmp_path / "some.ckpt", written)
    assert load_checkpoint(tmp_path / "some.ckpt").classes == ("x" * width,)


def test_safetensors_that_are_not_ours_are_refused(tmp_path):
    for number, metadata in enumerate([None, {"format": "pt"}, {"afield": "no json"}, {"afield": "{}"}]):
        save_file({"a": torch.zeros(2)}, tmp_path / f"{number}.ckpt", metadata)
        assert "not a checkpoint of afield" in refusal(tmp_path / f"{number}.ckpt")


@pytest.mark.parametrize("content", ["[]", "[1]", "3", '"text"', "null", "[" * 100_000, '{"a":' * 100_000])
def test_metadata_of_another_shape_is_refused(tmp_path, content):
    save_file({"a": torch.zeros(2)}, tmp_path / "some.ckpt", {"afield": content})
    refusal(tmp_path / "some.ckpt")


def tampered(run, path, change):
    """The run's checkpoint with its metadata changed."""
    with safe_open(run.checkpoint, framework="pt") as file:
        content = json.loads(file.metadata()[file_format.KEY])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(content)
    save_file(tensors, path, {file_format.KEY: json.dumps(content)})
    return path


@pytest.mark.parametrize("version", [0, 2, "1", None, [1]])
def test_another_format_version_is_refused(run, tmp_path, version):
    path = tampered(run, tmp_path / "some.ckpt", lambda content: content.update(format=version))
    assert "this version of afield reads format 1" in refusal(path)


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("config",), None), (("config",), []), (("config", "network"), "x"), (("config", "network", "width"), 16),
        (("config", "network", "width"), -8), (("config", "network", "backbone"), "resnet18"),
        (("config", "network", "backbone"), "nothing"), (("config", "method", "name"), "nothing"),
        (("config", "method", "name"), "baseline"), (("config", "method", "gate"), "channel"),
        (("config", "more"), {}), (("classes",), 3), (("classes",), ["a"]), (("classes",), [1, 2, 3]),
        (("sources",), ["a"]), (("sources",), None), (("preprocessing",), {}), (("preprocessing", "image_size"), 0),
        (("preprocessing", "image_size"), "x"), (("preprocessing", "image_size"), True),
        (("preprocessing", "mean"), [0.5]), (("preprocessing", "mean"), "abc"), (("preprocessing", "std"), None),
        (("preprocessing", "std"), [0.5, 0.5, "x"]), (("state",), None), (("state",), []), (("state", "model"), {}),
        (("state", "model", "classifier.0.bias"), 1.0), (("state", "model", "classifier.0.bias", "$tensor"), "gone"),
        (("state", "model", "classifier.0.bias", "$tensor"), "/model/classifier.0.weight"),
    ],
)  # fmt: skip
def test_metadata_that_does_not_fit_is_refused(run, tmp_path, keys, value):
    def change(content):
        for key in keys[:-1]:
            content = content[key]
        content[keys[-1]] = value

    refusal(tampered(run, tmp_path / "some.ckpt", change))


def test_a_checkpoint_comes_back_as_it_was_saved(tmp_path):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(3, 4, generator=generator)
    model = {"a": weight, "shared": weight, "turned": weight.T, "half": weight.bfloat16(), "n": torch.tensor(3)}
    state = {"model": model, "optimiser": {"groups": [{"lr": 0.1, "of": [0, 1]}]}, "seconds": 1.5, "none": None}
    written = Checkpoint({"data": {"name": "x"}}, ("a", "ü"), ("s",), {"image_size": 8}, 7, state)
    save_checkpoint(tmp_path / "some.ckpt", written)
    read = load_checkpoint(tmp_path / "some.ckpt")
    for name in ("config", "classes", "sources", "preprocessing", "step"):
        assert getattr(read, name) == getattr(written, name)
    assert {k: v for k, v in read.state.items() if k != "model"} == {k: v for k, v in state.items() if k != "model"}
    for name, value in model.items():
        assert read.state["model"][name].dtype == value.dtype
        assert torch.equal(read.state["model"][name], value)
    assert [path.name for path in tmp_path.iterdir()] == ["some.ckpt"]


def test_a_save_that_fails_leaves_the_old_file(run, tmp_path, monkeypatch):
    old = Checkpoint({}, (), (), {}, 1, {"model": {}})
    save_checkpoint(tmp_path / "some.ckpt", old)
    before = (tmp_path / "some.ckpt").read_bytes()

    def fail(tensors, path, metadata):
        Path(path).write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(file_format, "save_file", fail)
    with pytest.raises(OSError, match="disk full"):
        save_checkpoint(tmp_path / "some.ckpt", old)
    assert (tmp_path / "some.ckpt").read_bytes() == before


def test_a_loaded_model_computes_what_the_trained_method_does(run, model, toy):
    stored = load_checkpoint(run.checkpoint)
    method = method_of(resolve(stored.config), 16, 3, 3)
    method.load_state_dict(stored.state["model"])
    images = torch.from_numpy(toy["night"].test.images.array).permute(0, 3, 1, 2)
    assert method.experts is not None
    assert torch.equal(model(images.float() / 255), method.eval()((images.float() / 255 - 0.5) / 0.5))


def test_a_loaded_model_is_a_module_ready_for_inference(model):
    assert isinstance(model, nn.Module)
    assert not any(module.training for module in model.modules())
    assert not any("experts" in name for name, _ in model.named_parameters())
    assert model.classes == ("across", "down", "square")


def test_loading_leaves_the_callers_generator_alone(run):
    before = torch.get_rng_state()
    afield.load(str(run.checkpoint))
    assert torch.equal(before, torch.get_rng_state())


def test_a_model_loads_where_its_data_set_is_unknown(run, monkeypatch):
    monkeypatch.delitem(data_registry._builders, "toy")
    assert afield.load(run.checkpoint).classes == ("across", "down", "square")


def test_a_checkpoint_of_version_0_1_0_is_read(run, tmp_path):
    def age(content):
        config = content["config"]
        config["data"] = {"name": config["data"]["name"]}
        config["training"]["step"] = config["training"].pop("execution")
        config["training"]["augment"] = True
        config["network"]["pool"] = "pool"
        del content["preprocessing"]["oblong"]

    old = tampered(run, tmp_path / "old.ckpt", age)
    images = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3), np.uint8)
    assert afield.load(old).predict(images) == afield.load(run.checkpoint).predict(images)


def test_images_in_every_form_give_the_same_answer(model, toy, tmp_path):
    arrays = toy["day"].test.images.array
    paths = [tmp_path / f"{number}.png" for number in range(len(arrays))]
    for path, array in zip(paths, arrays, strict=True):
        Image.fromarray(array).save(path)
    expected = model.predict_proba(arrays)
    tensor = torch.from_numpy(arrays).permute(0, 3, 1, 2)
    forms = [
        paths, [str(path) for path in paths], tuple(Image.open(path) for path in paths), list(arrays),
        arrays / 255, (arrays / 255).astype(np.float32), arrays[:, ::-1][:, ::-1], tensor, tensor.float() / 255,
        list(tensor), [paths[0], Image.fromarray(arrays[1]), arrays[2], *tensor[3:]],
    ]  # fmt: skip
    for form in forms:
        assert torch.allclose(model.predict_proba(form), expected, atol=1e-5)
        assert len(model.predict(form)) == len(arrays)
    for one in (paths[0], str(paths[0]), Image.open(paths[0]), arrays[0], arrays[0] / 255, tensor[0]):
        assert torch.allclose(model.predict_proba(one), expected[:1], atol=1e-5)
    assert torch.allclose(expected.sum(dim=1), torch.ones(len(arrays)))
    assert model.predict(arrays) == [model.classes[index] for index in expected.argmax(dim=1)]


def test_grey_images_and_other_sizes_are_fitted(model):
    grey = np.random.default_rng(0).integers(0, 256, (40, 24), dtype=np.uint8)
    coloured = np.stack([grey] * 3, axis=2)
    expected = model.predict_proba(coloured)
    for form in (grey, [grey], grey / 255, Image.fromarray(grey), Image.fromarray(coloured).convert("RGBA")):
        assert torch.allclose(model.predict_proba(form), expected, atol=1e-5)
    assert model.predict([]) == []


@pytest.mark.parametrize(
    "images",
    [
        None, 5, {"a": 1}, [None], [5], np.zeros((4, 4, 3), np.int64), np.zeros((4, 4, 3), bool),
        np.full((4, 4, 3), 2.0), np.full((4, 4, 3), -0.1), np.full((4, 4, 3), np.nan), np.zeros((4, 4, 4), np.uint8),
        np.zeros((4,), np.uint8), np.zeros((2, 2, 4, 4, 3), np.uint8), np.zeros((4, 4, 3), object),
        np.full((4, 4, 3), "a"), np.zeros((0, 0, 3), np.uint8), torch.zeros(3, 0, 4), torch.zeros(4, 4, 3),
        torch.zeros(2, 2, 4, 4), torch.full((3, 4, 4), 255.0), torch.zeros(3, 4, 4, dtype=torch.int32), np.array(0.5),
    ],
)  # fmt: skip
def test_what_is_no_image_is_an_error(model, images):
    with pytest.raises(AfieldError) as caught:
        model.predict(images)
    assert "\n" not in str(caught.value)


def test_arrays_of_another_byte_order_are_read(model):
    values = np.random.default_rng(0).random((16, 16, 3)).astype(np.float32)
    assert torch.equal(model.predict_proba(values.astype(">f4")), model.predict_proba(values))


def test_files_that_are_no_images_are_named(model, tmp_path):
    (tmp_path / "text.png").write_text("not an image")
    for path in (tmp_path / "text.png", tmp_path / "missing.png", tmp_path):
        with pytest.raises(AfieldError, match=path.name):
            model.predict(path)


def test_photographs_are_turned_upright_and_deep_ones_keep_their_greys(tmp_path):
    wide = np.zeros((4, 8, 3), np.uint8)
    wide[:, :4] = 255
    orientation = Image.Exif()
    orientation[0x0112] = 6  # the camera was held sideways
    Image.fromarray(wide).save(tmp_path / "sideways.png", exif=orientation)
    assert read_image(tmp_path / "sideways.png", 8)[0, 0, 0] == 1
    assert read_image(tmp_path / "sideways.png", 8)[0, 7, 0] == 0
    Image.fromarray(np.full((8, 8), 32768, np.uint16)).save(tmp_path / "deep.png")
    assert torch.equal(read_image(tmp_path / "deep.png", 8), torch.full((3, 8, 8), 128 / 255))


def test_a_grey_image_means_the_same_in_every_mode():
    grey = Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8) * 4)
    (expected,) = as_images(grey, 8)
    unit = Image.fromarray(np.asarray(grey, np.float32) / 255)
    for image in (grey.convert("I"), grey.convert("RGB"), unit):
        (values,) = as_images(image, 8)
        torch.testing.assert_close(values, expected)


def test_a_prediction_does_not_stand_in_the_way_of_a_gradient(train_toy, toy, tmp_path):
    model = afield.load(train_toy(tmp_path / "run", "baseline", steps=2).checkpoint)
    model.predict(toy["night"].test.images.array)
    images = torch.rand(2, 3, 16, 16, requires_grad=True)
    model(images).sum().backward()
    assert images.grad.abs().sum() > 0


def test_a_file_whose_values_make_no_image_is_named(tmp_path):
    Image.fromarray(np.full((8, 8), 7.5, np.float32)).save(tmp_path / "heights.tif")
    with pytest.raises(UnreadableImageError, match=r"heights\.tif: float images hold values in 0\.\.1"):
        read_image(tmp_path / "heights.tif", 8)
