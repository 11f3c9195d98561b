"""The public face is a promise: these calls work exactly as the architecture writes them."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import afield
from afield.results.run import read_run
from afield.results.table import make_table

PLAN = Path(__file__).parents[1] / "plans" / "digits.toml"
ALL_METHODS = {
    "baseline", "baseline-align", "baseline-att-align", "far", "far-without-dre", "far-without-dre-plus",
    "far-without-dre-minus", "far-conv", "far-channel-gate", "far-spatial-gate", "far-without-ranking",
    "far-without-experts", "far-without-prototypes", "far-paper",
}  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder to stand in while the tests of this file run."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("home")
        patch.chdir(folder)
        yield folder


@pytest.fixture(scope="module")
def run(home):
    return afield.train(data="digits", task="uda", target="street", method="far", steps=4, seed=0, out="runs/x")


@pytest.fixture(scope="module")
def model(run):
    return afield.load("runs/x/last.ckpt")


@pytest.fixture(scope="module")
def pictures():
    """Three images that are as large as the network wants them, so that no resizing blurs a comparison."""
    return np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)


def test_train_returns_a_run_with_accuracies_selector_and_checkpoint(run, home):
    assert isinstance(run, afield.Run)
    assert 0 <= run.accuracy["street"] <= 1
    assert set(run.accuracy) == {"mnist", "photo", "uci", "fonts", "street"}
    assert run.selector == "last"
    assert run.checkpoint == Path("runs/x/last.ckpt")
    assert (home / run.checkpoint).is_file()


def test_a_run_is_seen_through_another_selector(run):
    other = run.select("source-val")
    assert other.selector == "source-val"
    assert other.checkpoint == Path("runs/x/source-val.ckpt")
    assert other.accuracy == run.accuracy  # a run of four steps evaluates once


def test_a_runs_result_is_never_chosen_by_the_targets_labels(run):
    with pytest.raises(afield.AfieldError, match="oracle"):
        run.select("oracle")


def test_load_gives_a_module_ready_for_inference(model):
    assert isinstance(model, afield.Model)
    assert isinstance(model, nn.Module)
    assert not any(module.training for module in model.modules())
    assert model.classes == tuple("0123456789")
    scores = model(torch.rand(2, 3, 32, 32))
    assert scores.shape == (2, 10)


def test_predict_takes_paths_pil_images_arrays_and_tensors_and_says_the_same_of_all(model, pictures, tmp_path):
    paths = [tmp_path / f"{number}.png" for number in range(len(pictures))]
    images = [Image.fromarray(picture) for picture in pictures]
    for path, image in zip(paths, images, strict=True):
        image.save(path)
    tensor = torch.from_numpy(pictures).permute(0, 3, 1, 2)
    said = model.predict(pictures)
    assert len(said) == 3
    assert set(said) <= set(model.classes)
    expected = model.predict_proba(pictures)
    assert said == [model.classes[index] for index in expected.argmax(dim=1)]
    torch.testing.assert_close(expected.sum(dim=1), torch.ones(3))
    floats = tensor.float() / 255
    for same in (paths, [str(path) for path in paths], images, list(pictures), tensor, list(tensor), floats):
        torch.testing.assert_close(model.predict_proba(same), expected)
    for one in (paths[0], str(paths[0]), images[0], pictures[0], tensor[0]):
        assert model.predict(one) == said[:1]


def test_grey_images_need_no_channels_whether_they_are_one_or_several(model, pictures):
    grey = pictures.mean(axis=3).astype(np.uint8)  # (number, H, W)
    expected = model.predict_proba(np.stack([grey] * 3, axis=3))
    for same in (grey, grey[..., None], list(grey), list(grey[..., None]), torch.from_numpy(grey)[:, None]):
        torch.testing.assert_close(model.predict_proba(same), expected)
    assert model.predict(grey[0]) == model.predict(grey[0][..., None]) == model.predict(grey)[:1]


def test_images_of_any_size_and_greyscale_are_taken(model):
    assert len(model.predict([Image.new("L", (50, 20)), Image.new("RGBA", (8, 8)), np.zeros((40, 40), np.uint8)])) == 3


def test_no_images_give_no_predictions(model):
    assert model.predict([]) == []


@pytest.mark.parametrize(
    "images",
    [3, None, [3], b"bytes", np.zeros((4, 4, 2), np.uint8), torch.zeros(4, 8, 8), np.zeros((8, 8, 3), int), "no.png"],
)
def test_what_is_no_image_is_a_clear_error(model, images):
    with pytest.raises(afield.AfieldError, match=r"image|no file"):
        model.predict(images)


def test_load_refuses_what_is_no_checkpoint(home, run):
    for path in ("runs/x/records.jsonl", "runs", "runs/nowhere.ckpt"):
        with pytest.raises(afield.AfieldError, match=path):
            afield.load(path)


def test_loading_leaves_the_callers_generators_alone(model):
    before = torch.get_rng_state()
    afield.load("runs/x/last.ckpt")
    assert torch.equal(torch.get_rng_state(), before)


def test_create_method_builds_far_on_resnet18():
    method = afield.create_method("far", backbone="resnet18", num_classes=126, num_sources=3)
    assert isinstance(method, nn.Module)
    assert method.eval()(torch.zeros(1, 3, 224, 224)).shape == (1, 126)


def test_create_method_builds_every_listed_method():
    for name in afield.list_methods():
        method = afield.create_method(name, num_classes=7, num_sources=2, network={"width": 8})
        assert method.eval()(torch.zeros(2, 3, 32, 32)).shape == (2, 7), name


def test_create_method_takes_options_and_refuses_unknown_ones():
    assert afield.create_method("far", num_classes=2, num_sources=2, align_weight=0.3).options.align_weight == 0.3
    with pytest.raises(afield.AfieldError, match=r"did you mean 'method.align_weight'\?"):
        afield.create_method("far", num_classes=2, num_sources=2, align_wieght=0.3)
    with pytest.raises(afield.AfieldError, match=r"did you mean 'far'\?"):
        afield.create_method("faar", num_classes=2, num_sources=2)


def test_lists_name_the_methods_and_the_data():
    assert set(afield.list_methods()) >= ALL_METHODS
    assert "digits" in afield.list_data()


def test_every_promised_name_exists_and_others_do_not():
    promised = {
        "train", "load", "create_method", "run_bench", "list_methods", "list_data", "register_method", "register_data",
        "from_arrays", "Method", "MethodOptions", "Batch", "Losses", "Learning", "Shape", "Domain", "DomainSet",
        "Split", "Run", "Model", "Classifier", "Callback", "AfieldError",
    }  # fmt: skip
    assert set(afield.__all__) == set(afield._HOMES) == promised
    assert {*promised, "__version__"} == set(dir(afield))
    for name in afield.__all__:
        assert getattr(afield, name) is not None
    with pytest.raises(AttributeError, match="fetch"):
        _ = afield.fetch


def test_importing_afield_and_its_errors_does_not_import_torch():
    code = (
        "import sys, afield, afield.app.cli; afield.AfieldError, afield.DomainSet, afield.Split, afield.register_data\n"
        "afield.list_data(), afield.list_methods(); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(("given", "expected"), [(None, "passive"), ("active", "active")])
def test_importing_afield_lets_waiting_threads_sleep_unless_the_user_said_otherwise(given, expected):
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    environment |= {"OMP_WAIT_POLICY": given} if given else {}
    code = "import os, sys, afield; print(os.environ['OMP_WAIT_POLICY'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == expected


def test_names_of_methods_and_tasks_are_taken_in_any_case(home):
    settings = {"network.width": 8, "training.batch_size": 4}
    run = afield.train(task="UDA", target="uci", method="FAR-Conv", steps=1, out="runs/case", settings=settings)
    config = run.records[0]["config"]
    assert (config["method"]["name"], config["task"]["kind"]) == ("far-conv", "uda")
    again = afield.train(method="Far-conv", task="Uda", out="runs/case", resume=True)
    assert again.accuracy == run.accuracy
    assert afield.create_method("Far+", num_classes=2, num_sources=2, network={"width": 8})


def test_the_options_of_the_command_line_are_arguments_too(home):
    named = {"backbone": "digit", "pretrained": False, "weights": "", "lr": 0.01, "batch_size": 4, "device": "cpu"}
    run = afield.train(
        target="uci", method="baseline", steps=1, out="runs/named", **named, settings={"network.width": 8}
    )
    config = run.records[0]["config"]
    assert {**config["network"], **config["training"]}.items() >= named.items()
    assert afield.train(out="runs/named", resume=True, **named).accuracy == run.accuracy
    with pytest.raises(afield.AfieldError, match=r"cannot resume with training\.lr = 0\.02: .* with 0\.01"):
        afield.train(out="runs/named", resume=True, lr=0.02)


def test_a_run_says_in_one_line_what_it_is(run):
    assert repr(run).startswith("Run('runs/x', selector='last', step=4, accuracy={'mnist': 0.")
    assert len(repr(run)) < 200


def test_python_errors_name_no_options_of_the_command_line(home, run, monkeypatch):
    (home / "unended").mkdir()
    (home / "unended" / "records.jsonl").write_text("".join((home / "runs/x/records.jsonl").open().readlines()[:-1]))
    calls = [
        lambda: read_run(Path("unended")),
        lambda: afield.train(target="uci", out="runs/new", settings={"steps": 3}),
        lambda: make_table([Path("runs/x")], plan=Path(PLAN), protocol="digits/embedded"),
    ]
    for call in calls:
        with pytest.raises(afield.AfieldError) as caught:
            call()
        assert "--" not in str(caught.value)


def test_a_models_and_a_data_sets_text_is_short(run):
    assert repr(afield.load("runs/x")) == "Model('far', 'digit', 10 classes, images of 32 x 32, step 4)"
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3), np.uint8)
    many = afield.from_arrays(images, ["a", "b"] * 20, [f"camera{number // 4}" for number in range(40)])
    assert repr(many["camera3"]) == "Domain('camera3', train=2, test=2)"
    assert repr(many["camera3"].train) == "Split(2 images, labelled)"
    assert repr(many).startswith("DomainSet('arrays', 2 classes, images {camera0: 4, camera1: 4,")
    assert repr(many).endswith(", camera7: 4, 2 more})")
    assert len(repr(afield.Classifier(steps=4))) < 40


def test_a_data_set_counts_every_image_once():
    images = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), np.uint8)
    labels = [0, 1] * 3
    data = afield.from_arrays({"day": (images, labels), "night": (images[:5], None)})
    assert repr(data) == "DomainSet('arrays', 2 classes, images {day: 6, night: 5})"
    given = afield.from_arrays(images, labels, ["day"] * 3 + ["night"] * 3, splits=["train", "train", "test"] * 2)
    assert repr(given) == "DomainSet('arrays', 2 classes, images {day: 3, night: 3})"
    day = replace(given["day"], validation=given["day"].test, test=given["day"].train, tested_whole=True)
    assert day.size == 3


def test_a_runs_history_is_a_table_of_its_evaluations(run, monkeypatch):
    history = run.history()
    assert (history.index.name, list(history.index)) == ("step", [line["step"] for line in run.records[1:-1]])
    assert history["target/street"].iloc[-1] == run.accuracy["street"]
    assert {"loss/classification", "sources/mnist", "schedule/lr"} <= set(history.columns)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(afield.AfieldError, match=r"^a run's history needs pandas: pip install pandas$"):
        run.history()
