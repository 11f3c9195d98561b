"""Thousands of damaged files: each is used or refused in one line, quickly, in little memory, and runs no code.

`make fuzz` tries 10,000 of them; otherwise it is a few of each kind.
"""

import copy
import io
import json
import os
import pickle
import shutil
import signal
import tomllib
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as arrow
import pytest
import tomli_w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from pyarrow import parquet
from safetensors import safe_open
from safetensors.torch import save_file

import afield
from afield import AfieldError
from afield.analysis.history import history_of
from afield.analysis.report import write_report
from afield.analysis.study import Study
from afield.app.asked import check_early, read_layer
from afield.bench.estimate import paces_of
from afield.bench.folder import open_folder
from afield.config.plan import plan_jobs, read_plan_file
from afield.config.selectors import LABEL_FREE
from afield.data.manifest import list_manifest
from afield.data.pixels import read_square
from afield.results.latex import as_latex
from afield.results.long_form import as_csv
from afield.results.records import read_runs
from afield.results.run import read_run
from afield.results.show import as_markdown, as_text, as_values
from afield.results.table import make_table
from afield.training.checkpoint import KEY
from support.resuming import every, killed_run

EXAMPLES = -(-int(os.environ.get("AFIELD_FUZZ", "70")) // 7)
SECONDS = 60
IMAGE_MEGABYTES = 400  # an image may say that it has up to 100 million pixels
fuzzed = settings(
    max_examples=EXAMPLES, deadline=None, database=None, print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)  # fmt: skip


def peak_megabytes(anew=False):
    """The most memory this process has had, or has from now on: an earlier peak would hide all that is below it."""
    if not Path("/proc/self/clear_refs").exists():  # no Linux: time and tracebacks are looked at all the same
        return 0
    if anew:
        Path("/proc/self/clear_refs").write_text("5")
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


@contextmanager
def held(megabytes=100):
    """What is inside ends soon, takes little memory, and raises nothing but an error of one line."""

    def too_long(*_):
        raise TimeoutError(f"still at work after {SECONDS} s")

    before, memory = signal.signal(signal.SIGALRM, too_long), peak_megabytes(anew=True)
    signal.alarm(SECONDS)
    try:
        yield
    except AfieldError as error:
        assert str(error)
        assert "\n" not in str(error)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert peak_megabytes() - memory < megabytes


class Trap:
    """Unpickling this makes a file."""

    def __reduce__(self):
        return open, ("sprung", "w")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert not list(tmp_path.rglob("sprung")), "a file has run code"


STRANGE = st.one_of(
    st.none(), st.booleans(), st.integers(), st.sampled_from([10**9, -(10**9), 2**63, 10**400, 1e308, -0.0]),
    st.floats(allow_nan=True), st.text(max_size=8), st.sampled_from(["", "/", "..", "\x1b[31m", "[/x]", "=1+1", "\0"]),
    st.lists(st.integers(), max_size=3), st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.integers(1, 400).map(lambda depth: json.loads("[" * depth + "]" * depth)),
)  # fmt: skip


def places(tree, path=()):
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in pairs:
        yield (*path, key)
        yield from places(value, (*path, key))


@st.composite
def damaged_tree(draw, tree):
    """A tree of plain values with one to three of them gone, or replaced by others."""
    tree = copy.deepcopy(tree)
    for _ in range(draw(st.integers(1, 3))):
        found = list(places(tree))
        if not found:
            break
        *way, last = draw(st.sampled_from(found))
        inside = tree
        for key in way:
            inside = inside[key]
        if draw(st.integers(0, 3)) == 0:
            del inside[last]
        else:
            inside[last] = draw(STRANGE)
    return tree


@st.composite
def damaged_bytes(draw, content):
    """Bytes changed, cut out, doubled, put in; or the file cut short."""
    content = bytearray(content)
    for _ in range(draw(st.integers(1, 6))):
        place = draw(st.integers(0, max(0, min(len(content), draw(st.sampled_from([40, 400, 10**9]))) - 1)))
        kind = draw(st.sampled_from(["change", "change", "cut", "remove", "double", "insert"]))
        if kind == "change" and content:
            content[place] = draw(st.integers(0, 255))
        elif kind == "cut":
            del content[place:]
        elif kind == "remove":
            del content[place : place + draw(st.integers(1, 50))]
        elif kind == "double":
            content[place:place] = content[place : place + draw(st.integers(1, 50))]
        else:
            content[place:place] = draw(st.one_of(st.binary(max_size=8), st.just(b"\xff" * 8), st.just(b"\0" * 8)))
    return bytes(content)


@pytest.fixture(scope="module")
def run(train_toy, tmp_path_factory):
    return train_toy(tmp_path_factory.mktemp("run") / "run", "far", 2)


@pytest.fixture(scope="module")
def parts(run):
    """The description and the tensors of a checkpoint."""
    return described(run.checkpoint)


def described(path):
    with safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()[KEY]), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


@fuzzed
@given(data=st.data())
def test_checkpoints(run, parts, data):
    path, kind = Path("some.ckpt"), data.draw(st.sampled_from(["bytes", "tree", "tree", "tree", "pickle"]))
    if kind == "bytes":
        path.write_bytes(data.draw(damaged_bytes(run.checkpoint.read_bytes())))
    elif kind == "tree":
        save_file(parts[1], path, {KEY: json.dumps(data.draw(damaged_tree(parts[0])))})
    else:
        path.write_bytes(data.draw(damaged_bytes(pickle.dumps(Trap(), data.draw(st.integers(0, 5))))))
    with held():
        afield.load(path).predict(np.zeros((2, 16, 16, 3), np.uint8))


@pytest.fixture(scope="module")
def half_run(train_toy, tmp_path_factory):
    """A run that was killed in the middle, and the parts of its checkpoint."""
    folder = killed_run(train_toy, tmp_path_factory.mktemp("half") / "run", every(2, 1))
    return folder, described(folder / "last.ckpt")


@settings(fuzzed, max_examples=10 + EXAMPLES // 2)  # they take longest
@given(data=st.data())
def test_runs_to_resume(half_run, train_toy, data):
    folder, (content, tensors) = half_run
    shutil.rmtree("run", ignore_errors=True)
    shutil.copytree(folder, "run")
    if data.draw(st.integers(0, 3)):
        content = content | {"state": data.draw(damaged_tree(content["state"]))}
    else:
        content = data.draw(damaged_tree(content))
    save_file(tensors, "run/last.ckpt", {KEY: json.dumps(content)})
    if not data.draw(st.integers(0, 3)):
        lines = Path("run/records.jsonl").read_bytes()
        Path("run/records.jsonl").write_bytes(data.draw(damaged_records(lines)))
    with held():
        assert train_toy("run", "baseline", 3, settings=every(2, 1), resume=True).step == 3


@fuzzed
@given(data=st.data())
def test_configs(run, data):
    text = (run.folder / "config.toml").read_text("utf-8")
    if data.draw(st.booleans()):
        content = data.draw(damaged_bytes(text.encode()))
    else:
        content = as_toml(data.draw(damaged_tree(tomllib.loads(text))))
    Path("some.toml").write_bytes(content)
    with held():
        check_early([read_layer(Path("some.toml"))], [])


@fuzzed
@given(data=st.data())
def test_plans(data):
    plan = {
        "protocol": "digits/embedded", "methods": ["far", "dann"], "targets": ["uci"], "seeds": [0, 1],
        "settings": {"training.steps": 5, "network": {"width": 8}},
        "rows": [{"label": "x", "method": "far", "settings": {"method.gate": "conv"}}],
    }  # fmt: skip
    damaged = data.draw(st.one_of(damaged_tree(plan).map(as_toml), damaged_bytes(as_toml(plan))))
    Path("plan.toml").write_bytes(damaged)
    with held():
        plan_jobs(read_plan_file(Path("plan.toml")))


def as_toml(tree):
    """TOML, or where a tree has what TOML has not, the JSON of it."""
    try:
        return tomli_w.dumps(tree).encode()
    except (TypeError, ValueError, AttributeError, RecursionError):
        return json.dumps(tree).encode()


@st.composite
def damaged_records(draw, lines):
    """A file of records with wrong bytes, or more often with lines that are JSON and not what they should be."""
    if not draw(st.integers(0, 3)):
        return draw(damaged_bytes(lines))
    tree = draw(damaged_tree([json.loads(line) for line in lines.splitlines()]))
    return "".join(json.dumps(line) + "\n" for line in tree).encode()


@pytest.fixture
def small_pages(monkeypatch):
    monkeypatch.setattr("plotly.offline.get_plotlyjs", lambda: "")  # three megabytes in each


@fuzzed
@given(data=st.data())
def test_records(run, small_pages, data):
    lines = (run.folder / "records.jsonl").read_bytes()
    Path("records.jsonl").write_bytes(data.draw(damaged_records(lines)))
    with held(), open_folder(Path()) as folder:
        folder.check_data("toy", "another")
    with held():
        paces_of(read_runs(Path("records.jsonl")))
    with held():
        histories = [history_of(found, "some") for found in read_runs(Path("records.jsonl"))]
        write_report([Study(history, None, "") for history in histories], [], Path("page.html"))
    with held():
        table = make_table([Path("records.jsonl")], data.draw(st.sampled_from(LABEL_FREE)))
        for form in (as_text, as_markdown, as_values, as_csv, as_latex):
            form(table)
    with held():
        found = read_run(Path(), data.draw(st.sampled_from(LABEL_FREE)))
        assert repr(found)
        assert found.source_accuracy + found.seconds + found.step is not None


NAMES = ("a.png", "b.png", "c.png")


def save_images():
    for name in NAMES:
        Image.new("RGB", (8, 8)).save(name)
    return NAMES


@fuzzed
@given(data=st.data())
def test_manifests(data):
    rows = "path,domain,label,split\n" + "".join(f"{name},{name[0]},bus,train\n" for name in save_images())
    Path("some.csv").write_bytes(data.draw(damaged_bytes(rows.encode())))
    with held():
        list_manifest(Path("some.csv"), skip_bad=data.draw(st.booleans())).fingerprint()


def table(**options):
    """A manifest as the bytes of a Parquet file."""
    columns = {
        "path": NAMES, "domain": ["d0", "d1", "d1"], "label": [7, None, 7],
        "split": arrow.array(["train", "test", None]).dictionary_encode(), "day": np.arange(3).astype("datetime64[s]"),
    }  # fmt: skip
    # Old versions of Arrow unpickled this where it stands at a column of a file.
    trap = {"ARROW:extension:name": "arrow.py_extension_type", "ARROW:extension:metadata": pickle.dumps(Trap())}
    content = arrow.table(columns)
    content = content.append_column(arrow.field("trap", arrow.int64(), metadata=trap), arrow.array([1, 2, 3]))
    stream = io.BytesIO()
    parquet.write_table(content, stream, **options)
    return stream.getvalue()


TABLES = [
    table(), table(compression="none", use_dictionary=False), table(compression="zstd", data_page_version="2.0"),
    table(compression="gzip", row_group_size=1, write_page_index=True), table(compression="brotli", store_schema=False),
]  # fmt: skip


@fuzzed
@given(data=st.data())
def test_parquet_manifests(data):
    save_images()
    content = data.draw(st.sampled_from(TABLES))
    # Wrong bytes at the end, where a table says what is in it, are often refused at sight: elsewhere the end stays.
    place = len(content) - data.draw(st.sampled_from([0, 0, 8, 8 + int.from_bytes(content[-8:-4], "little")]))
    start, end = content[:place], content[place:]
    Path("some.parquet").write_bytes(data.draw(damaged_bytes(start)) + end)
    column = data.draw(st.sampled_from(["label", "day", "trap"]))
    with held():
        list_manifest(Path("some.parquet"), skip_bad=data.draw(st.booleans()), label=column).fingerprint()


def encoded(kind):
    rows, columns = np.mgrid[:40, :56]
    image = Image.fromarray(np.stack([rows, columns, rows + columns], axis=2).astype(np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    stream = io.BytesIO()
    (image.quantize(32) if kind == "GIF" else image).save(stream, kind, exif=exif)
    return stream.getvalue()


IMAGES = {kind: encoded(kind) for kind in ("PNG", "JPEG", "GIF", "TIFF", "BMP", "WEBP", "TGA", "PPM")}


@fuzzed
@given(data=st.data())
def test_images(data):
    content = data.draw(damaged_bytes(IMAGES[data.draw(st.sampled_from(sorted(IMAGES)))]))
    with held(IMAGE_MEGABYTES):
        assert read_square(content, 8, data.draw(st.sampled_from(["squash", "crop", "pad"]))).shape == (8, 8, 3)
