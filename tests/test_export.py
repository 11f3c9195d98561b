"""Models as files for other programs: what they say, what is said about them, and what is refused."""

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

import afield
from afield.app.export import network as exported_network
from afield.app.export.network import ProbabilityNetwork, check_same, refusal, traced
from afield.app.export.written import METADATA_FILE, Session, write_onnx
from afield.app.model import Model
from afield.config.layers import resolve
from afield.data import registry as data_registry
from afield.data.domain import Split
from afield.data.preprocessing import Preprocessing
from afield.data.registry import register_data
from afield.methods.baseline import Baseline
from conftest import SMALL, toy_data
from support.networks import FAMILIES

HERE = Path(afield.__file__).parent
DATA = "toy with an unlabelled night"
# One for each way in which methods come to scores.
METHODS = ["baseline-att-align", "dael", "dctn", "mcd", "meda", "mme"]


def half_labelled():
    """The toy data, of whose target nobody knows a label."""
    data = toy_data()
    night = data["night"]
    unlabelled = replace(night, train=Split(night.train.images, None), test=Split(night.test.images, None))
    return replace(data, name=DATA, domains={**data.domains, "night": unlabelled})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run of FAR."""
    register_data(DATA)(half_labelled)
    folder = tmp_path_factory.mktemp("export") / "run"
    afield.train(DATA, target="night", method="far", steps=6, out=folder, settings=SMALL, progress=False)
    yield folder
    data_registry._builders.pop(DATA, None)


@pytest.fixture
def onnx():
    """The library, where the extra is installed."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    return pytest.importorskip("onnx")


@pytest.fixture
def command(call):
    """Run `afield export`; what it prints, and its exit code."""
    return partial(call, "export")


def pictures(count, size=16):
    return np.random.default_rng(7).integers(0, 256, (count, size, size, 3), np.uint8)


def channels_first(images):
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2))


def check_metadata(metadata, selector="last", program=True):
    assert json.loads(metadata["classes"]) == ["across", "down", "square"]
    assert json.loads(metadata["sources"]) == ["day", "dusk", "fog"]
    expected = {"target": "night", "method": "far", "step": "6", "selector": selector}
    assert metadata.items() >= (expected | {"afield_version": afield.__version__}).items()
    assert json.loads(metadata["config"])["training"]["steps"] == 6
    if program:
        assert "uint8, N x 3 x 16 x 16" in metadata["input"] and "probabilities" in metadata["output"]
    else:
        assert not {"input", "output"} & set(metadata), "weights alone take no images"


def test_an_onnx_file_says_what_the_model_says_of_batches_of_any_size(onnx, run, tmp_path, command):
    file = tmp_path / "new" / "model.onnx"
    code, said, _ = command(run, "--format", "onnx", "--out", file)
    assert (code, said.startswith(f"{file}: uint8 images N x 3 x 16 x 16 to probabilities of 3 classes")) == (0, True)
    session, model = Session(file), afield.load(run)
    for count in (1, 3, 9):
        images = pictures(count)
        np.testing.assert_allclose(session(channels_first(images)), model.predict_proba(images), atol=1e-5)
    read = onnx.load(file)
    check_metadata({entry.key: entry.value for entry in read.metadata_props})
    for value in (*read.graph.input, *read.graph.output):
        assert value.type.tensor_type.shape.dim[0].dim_param == "batch"
    assert not [tensor.name for tensor in read.graph.initializer if "expert" in tensor.name]
    assert str(HERE) not in str(read)
    assert [path.name for path in file.parent.iterdir()] == ["model.onnx"]


def test_a_torch_program_says_what_the_model_says(run, tmp_path, command):
    file = tmp_path / "model.pt2"
    assert command(run, "--selector", "source-val", "--format", "torch", "--out", file)[0] == 0
    extra = {METADATA_FILE: ""}
    program = torch.export.load(file, extra_files=extra).module()
    images = pictures(4)
    expected = afield.load(run / "source-val.ckpt").predict_proba(images)
    torch.testing.assert_close(program(torch.from_numpy(channels_first(images))), expected)
    check_metadata(json.loads(extra[METADATA_FILE]) | {"step": "6"}, "source-val")
    assert str(HERE).encode() not in file.read_bytes()


def test_safetensors_hold_the_weights_that_inference_needs(run, tmp_path, command):
    file = tmp_path / "model.safetensors"
    code, said, _ = command(run, "--format", "safetensors", "--out", file)
    assert (code, "without what only training needs" in said) == (0, True)
    weights = afield.load(run).method.state_dict()
    with safe_open(file, framework="pt") as opened:
        check_metadata(opened.metadata(), program=False)
        assert set(opened.keys()) == set(weights)
        assert not any(name.startswith(("experts", "alignment")) for name in weights)
        assert all(torch.equal(opened.get_tensor(name), value) for name, value in weights.items())


def model_of(method, image_size=16, **settings):
    """A model that was never trained."""
    options = {"samples": 20} if method == "meda" else {}
    network = {"width": 8} | settings
    made = afield.create_method(method, num_classes=3, num_sources=2, image_size=image_size, network=network, **options)
    config = resolve({"method": {"name": method, **options}, "network": network, "task": {"target": "night"}})
    return Model(made, Preprocessing(image_size, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)), ("a", "b", "c"), config)


@pytest.mark.parametrize("method", METHODS)
def test_every_way_to_scores_can_be_followed(method):
    check_program(model_of(method))


def test_a_network_whose_batch_norm_keeps_domains_apart_can_be_followed():
    name, size, _ = FAMILIES["resnet"]
    check_program(model_of("far", size, backbone=name, batch_norm="each"))


def check_program(model):
    """What becomes a file, in any format, takes batches of any size and says what the network says."""
    network = ProbabilityNetwork(model).eval()
    program = traced(network).module()
    assert check_same(network, lambda images: program(torch.from_numpy(images)).detach().numpy(), "the program") < 1e-6


def test_a_transformer_is_exported(onnx, tmp_path):
    name, size, _ = FAMILIES["vit"]
    network = ProbabilityNetwork(model_of("dael", size, backbone=name)).eval()
    assert write_onnx(network, tmp_path / "m.onnx", {}) < 1e-5


def test_int8_says_what_it_costs_where_there_are_labels_and_where_not(onnx, run, tmp_path, command):
    file = tmp_path / "model.onnx"
    code, said, _ = command(run, "--int8", "--out", file)
    assert code == 0
    by_domain = {line.split(": ")[1]: line for line in said.splitlines() if line.startswith("int8: ")}
    assert set(by_domain) == {"day", "dusk", "fog", "night"}
    assert " before, " in by_domain["day"] and " after; " in by_domain["day"] and "of 15 images" in by_domain["day"]
    assert "no labels, so accuracy is unknown" in by_domain["night"]
    read = onnx.load(file)
    assert {"quantisation": "int8, static", "method": "far"}.items() <= {
        entry.key: entry.value for entry in read.metadata_props
    }.items()
    assert "QuantizeLinear" in {node.op_type for node in read.graph.node}
    images = pictures(5)
    told, expected = Session(file)(channels_first(images)), afield.load(run).predict_proba(images)
    np.testing.assert_allclose(told, expected, atol=0.1)


def test_int8_does_without_the_runs_images_and_says_so(onnx, run, tmp_path, command, monkeypatch):
    monkeypatch.setattr(data_registry, "_builders", {})
    file = tmp_path / "model.onnx"
    code, said, _ = command(run, "--int8", "--out", file)
    assert (code, "was not measured" in said) == (0, True)
    images = pictures(5)
    told, expected = Session(file)(channels_first(images)), afield.load(run).predict_proba(images)
    np.testing.assert_allclose(told, expected, atol=0.1)
    code, _, error = command(run, "--int8", "--data", "nowhere", "--out", file)
    assert (code, "unknown data set 'nowhere'" in error) == (2, True)


def test_a_file_that_differs_from_torch_is_not_left_behind(run, tmp_path, command, monkeypatch):
    monkeypatch.setattr(exported_network, "MOST_DIFFERENCE", -1.0)
    code, said, error = command(run, "--format", "torch", "--out", tmp_path / "model.pt2")
    assert (code, said) == (2, "")
    assert "the file's program and torch differ by" in error
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--format", "onx", "--out", "m.onnx"], "did you mean 'onnx'?"),
        (["--format", "torch", "--out", "m.onnx"], "ends in .pt2"),
        (["--format", "torch", "--int8", "--out", "m.pt2"], "int8 is for format onnx"),
        (["--format", "torch", "--data", "digits", "--out", "m.pt2"], "data is for int8"),
        (["--format", "torch", "--out", "runs.pt2"], "no checkpoint at nowhere"),
        (["--selector", "entropy", "--format", "torch", "--out", "m.pt2"], "nowhere is not a folder"),
        (["--selector", "oracle", "--format", "torch", "--out", "m.pt2"], "oracle"),
    ],
)
def test_what_cannot_be_is_one_line(words, message, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, said, error = command("nowhere", *words)
    assert (code, said, error.count("\n"), message in error) == (2, "", 1, True), error
    assert not list(tmp_path.iterdir())


def test_a_missing_extra_is_one_line_with_the_command_that_installs_it(run, tmp_path, command, monkeypatch):
    for name in ("onnx", "onnxruntime", "onnxscript"):
        monkeypatch.setitem(sys.modules, name, None)
    code, _, error = command(run, "--out", tmp_path / "model.onnx")
    assert (code, error) == (2, 'afield: format onnx needs the package onnx: pip install "afield[export]"\n')


def exported_selector(command, checkpoint, file):
    """What the metadata of its weights says of how a checkpoint was chosen."""
    assert command(checkpoint, "--format", "safetensors", "--out", file)[0] == 0
    with safe_open(file, framework="pt") as opened:
        return opened.metadata()["selector"]


def test_the_end_of_a_run_that_stopped_early_is_its_last_checkpoint(run, tmp_path, command):
    folder, file = tmp_path / "early", tmp_path / "model.safetensors"
    early = {
        "training.patience": 1,
        "training.stop_by": "source-val",
        "training.evaluate_every": 1,
        "training.lr": 1e-9,
    }
    ended = afield.train(
        DATA, target="night", method="baseline", steps=40, out=folder, settings=SMALL | early, progress=False
    )
    assert ended.step < 40
    assert exported_selector(command, folder, file) == "last"
    taken_out = (folder / "last.ckpt").rename(tmp_path / "taken-out.ckpt")
    assert exported_selector(command, taken_out, file) == "unknown: the run's records are not beside it"
    taken_out.rename(folder / "last.ckpt")
    records = (folder / "records.jsonl").read_text().splitlines(keepends=True)
    (folder / "records.jsonl").write_text("".join(line for line in records if '"event": "end"' not in line))
    assert exported_selector(command, folder, file) == "none: training had not ended"


@pytest.mark.parametrize("form", [("torch", "model.pt2"), ("onnx", "model.onnx")])
def test_a_method_that_cannot_be_exported_is_one_line_and_no_file(run, register, tmp_path, command, form):
    class Branching(Baseline):
        def scores_of(self, F):
            return super().scores_of(F if F.sum() > 0 else -F)

    kind, name = form
    if kind == "onnx":
        pytest.importorskip("onnxscript")
    register("branching", Branching)
    folder = tmp_path / "run"
    afield.train(DATA, target="night", method="branching", steps=1, out=folder, settings=SMALL, progress=False)
    code, said, error = command(folder, "--format", kind, "--out", tmp_path / "out" / name)
    assert (code, said, error.count("\n")) == (2, "", 1), error
    assert error.startswith("afield: method 'branching' on backbone 'digit' cannot be exported: Could not guard on")
    assert not list(tmp_path.rglob(name))


def test_the_reason_leaves_torchs_advice_out():
    said = 'Constraints violated (batch)! For more information, run with TORCH_LOGS="+dynamic".\n  - more'
    error = refusal(model_of("baseline"), ValueError(said))
    assert str(error).endswith("cannot be exported: Constraints violated (batch)!")
    assert str(refusal(model_of("baseline"), ValueError("Run with TORCH_LOGS=all"))).endswith("exported: ValueError")
