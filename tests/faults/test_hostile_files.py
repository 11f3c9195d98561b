"""Files that are small on disk and large in memory, and files that say one thing and hold another."""

import gzip
import json
import subprocess
import sys
import zipfile
from dataclasses import replace

import numpy as np
import pyarrow as arrow
import pytest
import torch
from PIL import Image
from pyarrow import parquet
from safetensors import safe_open
from safetensors.torch import save_file

import afield
from afield import AfieldError
from afield.app.evaluate import evaluate_checkpoint
from afield.app.images import read_image
from afield.config import cards
from afield.config.layers import resolve
from afield.data import pixels
from afield.data import registry as data_registry
from afield.data.domain import Domain, DomainSet, Split
from afield.data.pixels import UnreadableImageError, make_square, read_square
from afield.methods import Method, register_method
from afield.methods import registry as method_registry
from afield.methods.create import method_of
from afield.training.checkpoint import KEY, Checkpoint, save_checkpoint
from support.memory import MEGABYTE, memory_of


@pytest.fixture(scope="module")
def run(train_toy, tmp_path_factory):
    return train_toy(tmp_path_factory.mktemp("run") / "run", "baseline", 2)


@pytest.fixture(scope="module")
def model(run):
    return afield.load(run.checkpoint)


def changed(run, path, change):
    """The run's checkpoint with its description changed."""
    with safe_open(run.checkpoint, framework="pt") as file:
        content = json.loads(file.metadata()[KEY])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(content)
    save_file(tensors, path, {KEY: json.dumps(content)})
    return path


LOAD = """
for path in sys.argv[1:]:
    try:
        afield.load(path)
    except afield.AfieldError as error:
        print(error)
"""


def test_a_checkpoint_that_asks_for_more_than_it_holds_takes_no_memory(run, tmp_path):
    changes = {
        "width 4000": lambda content: content["config"]["network"].update(width=4000),
        "width 10^9": lambda content: content["config"]["network"].update(width=10**9),
        "hidden": lambda content: content["config"]["network"].update(hidden=[50_000, 50_000]),
        "resnet152": lambda content: content["config"]["network"].update(backbone="resnet152"),
        "classes": lambda content: content.update(classes=[str(number) for number in range(200_000)]),
        "meda": lambda content: content["config"]["method"].update(name="meda", samples=10**7),
        "sources": lambda content: content.update(sources=["x"] * 100_000),
    }
    paths = [changed(run, tmp_path / f"{name}.ckpt", change) for name, change in changes.items()]
    taken, said = memory_of("import afield, afield.app.model", LOAD, *paths)
    assert len(said.splitlines()) == len(changes)
    for name, line in zip(changes, said.splitlines(), strict=True):
        assert f"{name}.ckpt is damaged or from another version of afield" in line
    assert taken < 300 * MEGABYTE


def test_a_checkpoint_for_very_large_images_loads_in_little_memory(run, tmp_path):
    path = changed(run, tmp_path / "some.ckpt", lambda content: content["preprocessing"].update(image_size=4096))
    taken, said = memory_of("import afield, afield.app.model", LOAD, path)
    assert said == ""
    assert taken < 300 * MEGABYTE


def test_tables_that_a_backbone_computes_for_very_large_images_take_no_memory(tmp_path):
    network = {"backbone": "levit_128s"}
    config = resolve({"method": {"name": "baseline"}, "network": network})
    with torch.device("meta"):
        method = method_of(config, 4096, 2, 1)
    state = {"model": {name: torch.zeros(tensor.shape) for name, tensor in method.state_dict().items()}}
    preprocessing = {"image_size": 4096, "mean": [0.5] * 3, "std": [0.5] * 3}
    save_checkpoint(tmp_path / "some.ckpt", Checkpoint(config.as_dict(), ("a", "b"), ("x",), preprocessing, 0, state))
    with pytest.raises(AfieldError, match="tables of its backbone 'levit_128s' would take too much memory"):
        afield.load(tmp_path / "some.ckpt")


LIST = """
for path in sys.argv[1:]:
    try:
        print(len(list_manifest(Path(path), skip_bad=True).entries))
    except AfieldError as error:
        print(error)
"""


def test_a_small_parquet_manifest_takes_little_memory(tmp_path):
    rows, long = 600, "d" * 200_000
    columns = {"path": [f"{n}.png" for n in range(rows)], "domain": ["d"] * rows, "label": ["a"] * rows}
    changes = {
        "long": lambda: {"domain": [long] * rows},  # stands in the file once
        "padded": lambda: {"domain": [f"{long} "] * rows},
        "longer": lambda: {"label": ["a" * 100_000_000, *columns["label"][1:]]},
        "lists": lambda: {"label": [["a"] * 10_000] * rows},
        "bytes": lambda: {"label": arrow.array([long.encode()] * rows, arrow.binary(len(long)))},
    }
    paths = [tmp_path / f"{name}.parquet" for name in changes]
    for path, change in zip(paths, changes.values(), strict=True):
        table = arrow.table(columns | change())
        parquet.write_table(table, path, compression="zstd", dictionary_pagesize_limit=10**9)
        assert path.stat().st_size < 50_000
    imports = "from pathlib import Path; from pyarrow import parquet; from afield import AfieldError; "
    taken, said = memory_of(f"{imports}from afield.data.manifest import list_manifest", LIST, *paths)
    shared, trimmed, longer, *others = said.splitlines()
    assert shared == trimmed == str(rows)
    assert "bytes would unpack to 100,0" in longer
    assert all(line.endswith("parquet: its column 'label' has neither text nor numbers") for line in others)
    assert len(others) == 2
    assert taken < 100 * MEGABYTE


def varint(number, length=0):
    """A number as Parquet's footer has it, in at least so many bytes."""
    number, digits = 2 * number, []
    while number or len(digits) < max(length, 1):
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*digits[:-1], digits[-1] & 0x7F])


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_a_parquet_manifest_that_lies_about_its_size_is_stopped(tmp_path):
    path, long = tmp_path / "some.parquet", 600_000_000
    table = arrow.table({"path": ["1.png"], "domain": ["d"], "label": ["a" * long]})
    parquet.write_table(table, path, compression="zstd", use_dictionary=False, write_statistics=False)
    group = parquet.read_metadata(path).row_group(0)
    content = path.read_bytes()
    for size in (group.total_byte_size, group.column(2).total_uncompressed_size):
        before, said, after = content.rpartition(varint(size))
        content = before + varint(1000, len(said)) + after
    path.write_bytes(content)
    assert (parquet.read_metadata(path).row_group(0).total_byte_size, len(content) < 50_000) == (1000, True)
    imports = "from pathlib import Path; from pyarrow import parquet; from afield import AfieldError; "
    taken, said = memory_of(f"{imports}from afield.data.manifest import list_manifest", LIST, path)
    assert f"cannot read {path}: malloc of size" in said
    assert taken < 1.5 * long  # without the limit it is three times as much


@pytest.mark.parametrize("size", [0, -1, 4097, 10**9])
def test_absurd_image_sizes_are_refused(run, tmp_path, size):
    path = changed(run, tmp_path / "some.ckpt", lambda content: content["preprocessing"].update(image_size=size))
    with pytest.raises(AfieldError, match="image_size"):
        afield.load(path)


def test_a_refusal_names_the_tensor_and_both_shapes(run, tmp_path):
    path = changed(run, tmp_path / "some.ckpt", lambda content: content["config"]["network"].update(width=16))
    with pytest.raises(AfieldError, match=r"'backbone\.0\.weight' .* \(16, 3, 5, 5\), and the file has \(8, 3, 5, 5\)"):
        afield.load(path)


@pytest.mark.parametrize("name", afield.list_methods())
def test_every_method_saved_and_loaded_predicts_the_same(tmp_path, name):
    """Also what is not in the file, such as constants that are computed when a method is built."""
    config = resolve({"method": {"name": name}, "network": {"width": 8}})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        method = method_of(config, 32, 4, 3)
        for value in method.state_dict().values():
            if value.is_floating_point():
                value.copy_(value + 0.01 * torch.rand_like(value))
        images = torch.rand(5, 3, 32, 32)
    preprocessing = {"image_size": 32, "mean": [0.5] * 3, "std": [0.5] * 3}
    state = {"model": method.state_dict()}
    saved = Checkpoint(config.as_dict(), tuple("abcd"), tuple("xyz"), preprocessing, 0, state)
    save_checkpoint(tmp_path / "some.ckpt", saved)
    loaded = afield.load(tmp_path / "some.ckpt")
    with torch.no_grad():
        expected = method.eval().inspect(2 * images - 1)
        assert torch.allclose(loaded(images), expected.scores, atol=1e-6)
        seen = loaded.method.inspect(2 * images - 1)
    for kind in ("views", "gates"):
        for part, values in getattr(expected, kind).items():
            assert torch.allclose(getattr(seen, kind)[part], values, atol=1e-6), part
    assert not any(tensor.is_meta for tensor in (*loaded.parameters(), *loaded.buffers()))


def test_a_users_own_method_that_looks_at_values_while_it_is_built_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(method_registry, "_methods", dict(method_registry._methods))
    monkeypatch.setattr(cards, "_registered", dict(cards._registered))

    @register_method("looking", summary="looks at values", reference="none")
    class Looking(Method):
        def __init__(self, shape, options):
            super().__init__(shape, options)
            self.count = int(torch.ones(3).sum())

    config = resolve({"method": {"name": "looking"}, "network": {"width": 8}})
    state = {"model": method_of(config, 32, 2, 1).state_dict()}
    preprocessing = {"image_size": 32, "mean": [0.5] * 3, "std": [0.5] * 3}
    save_checkpoint(tmp_path / "some.ckpt", Checkpoint(config.as_dict(), ("a", "b"), ("x",), preprocessing, 0, state))
    assert afield.load(tmp_path / "some.ckpt").method.count == 3


def save_large(path, mode, size):
    """In a process of its own, whose memory does not count."""
    code = "import sys, numpy as np; from PIL import Image; mode, size = sys.argv[2], int(sys.argv[3]);"
    code += "image = Image.fromarray(np.full((size, size), 40000, np.uint16)) if mode == 'I;16' else "
    code += "Image.new(mode, (size, size), 7); image.save(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(path), mode, str(size)], check=True)


@pytest.mark.parametrize("mode", ["I;16", "P", "RGBA", "RGB", "1"])
def test_a_large_image_of_any_kind_is_read_in_a_few_hundred_megabytes(tmp_path, mode):
    save_large(tmp_path / "large.png", mode, 9000)
    assert (tmp_path / "large.png").stat().st_size < 3 * MEGABYTE
    imports = "from afield.data.pixels import read_square"
    taken, said = memory_of(imports, "print(read_square(sys.argv[1], 224, 'crop').shape)", tmp_path / "large.png")
    assert said.strip() == "(224, 224, 3)"
    assert taken < 500 * MEGABYTE


def test_an_image_of_too_many_pixels_is_refused_by_name(model, tmp_path):
    Image.new("1", (20_000, 6_000)).save(tmp_path / "huge.png")
    with pytest.raises(UnreadableImageError, match=r"huge\.png has 20000 x 6000 pixels"):
        model.predict(tmp_path / "huge.png")
    with Image.open(tmp_path / "huge.png") as image, pytest.raises(UnreadableImageError, match="20000 x 6000 pixels"):
        model.predict(image)


def test_predicting_many_files_takes_the_memory_of_a_few(run, tmp_path):
    Image.new("RGB", (600, 600), "red").save(tmp_path / "one.png")
    imports = "from pathlib import Path\nfrom afield.app.predict import predict_files\n"
    imports += "words = Path(sys.argv[1]), [Path(sys.argv[2])]\nlist(predict_files(words[0], 300 * words[1]))"
    code = "print(sum(1 for _ in predict_files(words[0], 1500 * words[1])))"
    taken, said = memory_of(imports, code, run.checkpoint, tmp_path / "one.png")
    assert said.strip() == "1500"
    assert taken < 30 * MEGABYTE


def test_fewer_large_images_are_looked_at_together(model):
    chunks = {}
    for size in (16, 224, 4096):
        model_of_size = afield.Model(model.method, replace(model.preprocessing, image_size=size), model.classes, None)
        chunks[size] = model_of_size.chunk
    assert chunks == {16: 256, 224: 64, 4096: 1}


KINDS = {
    "grey.png": lambda a: Image.fromarray(a[:, :, 0]),
    "colour.png": Image.fromarray,
    "colour.jpg": Image.fromarray,
    "palette.png": lambda a: Image.fromarray(a).quantize(64),
    "clear.png": lambda a: Image.fromarray(np.dstack([a, a[:, :, 0]])),
    "deep.png": lambda a: Image.fromarray(a[:, :, 0].astype(np.uint16) * 257),
    "print.tif": lambda a: Image.fromarray(a).convert("CMYK"),
    "float.tif": lambda a: Image.fromarray(a[:, :, 0].astype(np.float32) / 255),
}


@pytest.mark.parametrize("oblong", ["squash", "crop", "pad"])
@pytest.mark.parametrize("kind", KINDS)
def test_prediction_sees_the_very_bytes_that_training_sees(tmp_path, kind, oblong):
    rows, columns = np.mgrid[:90, :160]
    array = np.stack([rows, columns, rows + columns], axis=2).astype(np.uint8)
    KINDS[kind](array).save(tmp_path / kind)
    trained = read_square(tmp_path / kind, 16, oblong)
    predicted = read_image(tmp_path / kind, 16, oblong)
    assert torch.equal(predicted, torch.tensor(trained).permute(2, 0, 1).float() / 255)


@pytest.mark.parametrize("oblong", ["squash", "crop", "pad"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "clear.png"])
def test_an_image_shrunk_in_strips_looks_like_one_that_is_not(monkeypatch, kind, oblong):
    rows, columns = np.mgrid[:180, :401]
    array = np.stack([rows, columns // 2, (rows + columns) // 3], axis=2).astype(np.uint8)
    image = KINDS[kind](array)
    plain = pixels.to_rgb(image)
    monkeypatch.setattr(pixels, "PIXELS_AT_A_TIME", 2000)
    shrunk = make_square(image, 8, oblong).astype(int)
    whole = make_square(plain.resize((401, 180)), 40, oblong)
    expected = np.asarray(Image.fromarray(whole).resize((8, 8), Image.Resampling.BOX)).astype(int)
    assert np.abs(shrunk - expected).mean() < 12


def test_a_photograph_is_upright_however_it_is_stored(tmp_path):
    tall = np.zeros((4, 8, 4), np.uint8)
    tall[:, :4] = 255
    turned = Image.Exif()
    turned[0x0112] = 6
    for mode in ("RGBA", "RGB", "L", "P"):
        Image.fromarray(tall).convert(mode).save(tmp_path / f"{mode}.png", exif=turned)
        square = read_square(tmp_path / f"{mode}.png", 8, "squash")
        assert (square[0, 0, 0], square[7, 0, 0]) == (255, 0), mode


def test_images_stored_as_fractions_must_be_fractions(tmp_path):
    for number, value in enumerate((7.5, -1.0, float("nan"))):
        Image.fromarray(np.full((8, 8), value, np.float32)).save(tmp_path / f"{number}.tif")
        with pytest.raises(UnreadableImageError, match=rf"{number}\.tif: float images hold values in 0\.\.1"):
            read_square(tmp_path / f"{number}.tif", 8, "squash")


def test_a_run_folder_stands_for_its_last_checkpoint(run, model, toy, tmp_path):
    assert afield.load(run.folder).classes == model.classes
    results = [evaluate_checkpoint(path, "toy", ["night"]).results for path in (run.folder, run.checkpoint)]
    assert results[0] == results[1]
    with pytest.raises(AfieldError, match=r"no checkpoint in folder .*: a run's folder has a last\.ckpt"):
        afield.load(tmp_path)


def test_evaluation_needs_no_data_named(run):
    results = evaluate_checkpoint(run.folder).results
    assert set(results) == {"day", "dusk", "fog", "night"}
    assert results["night"]["accuracy"] == run.accuracy["night"]


def test_classes_are_matched_by_name_and_not_by_place(run, toy):
    turned = tuple(reversed(toy.classes))
    domains = {
        name: replace(domain, test=replace(domain.test, labels=len(turned) - 1 - domain.test.labels))
        for name, domain in toy.domains.items()
    }
    there = evaluate_checkpoint(run.folder, DomainSet("turned", turned, domains)).results
    assert {name: result["accuracy"] for name, result in there.items()} == {
        name: result["accuracy"] for name, result in evaluate_checkpoint(run.folder).results.items()
    }


def test_fewer_classes_are_evaluated_and_unknown_ones_are_named(run, toy):
    night = toy["night"].test
    few = np.flatnonzero(night.labels < 2)
    split = Split.of_array(night.images.read(few), night.labels[few])
    data = DomainSet("few", toy.classes[:2], {"n": Domain("n", split, split, "")})
    results = evaluate_checkpoint(run.folder, data).results
    assert results["n"]["n"] == len(few)
    with pytest.raises(AfieldError, match="other classes than data set 'more': not circle, but across, down, square"):
        evaluate_checkpoint(run.folder, DomainSet("more", (*toy.classes, "circle"), toy.domains))


def test_a_domain_without_labels_has_no_accuracy(run, toy):
    blind = Split(toy["night"].test.images, None)
    data = DomainSet("toy", toy.classes, {**toy.domains, "night": Domain("night", blind, blind, "rendered")})
    results = evaluate_checkpoint(run.folder, data).results
    assert results["night"]["accuracy"] is None
    assert results["night"]["n"] == len(blind)
    assert results["night"]["unlabelled"]["entropy"] > 0
    assert results["day"] == evaluate_checkpoint(run.folder, toy, ["day"]).results["day"]


def test_the_command_line_shows_a_dash_for_a_domain_without_labels(run, toy, call, monkeypatch):
    blind = Split(toy["night"].test.images, None)
    data = DomainSet("toy", toy.classes, {**toy.domains, "night": Domain("night", blind, blind, "rendered")})
    monkeypatch.setitem(data_registry._builders, "toy", lambda: data)
    code, shown, _ = call("evaluate", run.folder, "--domain", "night", "--domain", "day", "--json")
    assert code == 0
    values = json.loads(shown)
    assert values["night"]["accuracy"] is None
    assert values["day"]["accuracy"] is not None
    _, shown, _ = call("evaluate", run.folder)
    (row,) = [line for line in shown.splitlines() if "night" in line]
    assert "-" in row.split()


def test_the_command_line_predicts_from_a_run_folder(run, call, tmp_path):
    Image.new("RGB", (40, 30), "red").save(tmp_path / "red.png")
    code, shown, _ = call("predict", run.folder, tmp_path / "red.png")
    assert code == 0
    assert shown.startswith("file,class,probability\n")
    for words in (["predict", tmp_path, tmp_path / "red.png"], ["evaluate", tmp_path]):
        code, shown, said = call(*words)
        assert (code, shown, len(said.splitlines())) == (2, "", 1)
        assert "no checkpoint in folder" in said


BOMBS = """
for name, read in (("large.npz", formats.read_npz), ("lying.npz", formats.read_npz), ("a.gz", formats.read_idx)):
    try:
        read("train", [Path(sys.argv[1]) / name] * 2)
    except AfieldError as error:
        print(error)
"""


def test_files_of_digits_that_unpack_to_much_take_little_memory(tmp_path):
    piece = bytes(2**24)
    for name, declared in (("large", 3 * 10**9), ("lying", 10_000)):
        with zipfile.ZipFile(tmp_path / f"{name}.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for array, shape in (("x_train", (80_000, 32, 32, 3)), ("y_train", (16 * len(piece),))):
                with archive.open(f"{array}.npy", "w") as file:
                    np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
                    for _ in range(16):
                        file.write(piece)
                archive.getinfo(f"{array}.npy").file_size = declared
    (tmp_path / "a.gz").write_bytes(gzip.compress(piece, 1) * 200)  # members one after the other: 3 GB
    imports = "from pathlib import Path; from afield import AfieldError; from afield.data.digit5 import formats"
    taken, said = memory_of(imports, BOMBS, tmp_path)
    large, _, compressed = said.splitlines()
    assert "large.npz cannot be used: it unpacks to 6,000,000,000 bytes" in large
    assert "a.gz cannot be used: it unpacks to 100,000,001 bytes" in compressed
    assert taken < 300 * MEGABYTE
