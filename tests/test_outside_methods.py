"""Methods that are not part of afield train, resume, bench, evaluate and predict like its own.

Nothing is imported because a checkpoint, a record or a run's folder says so.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import tomli_w
from PIL import Image

import afield
from afield.config import cards
from afield.results.records import read_records
from afield.results.run import read_run
from afield.results.table import make_table
from afield.training.checkpoint import load_checkpoint, save_checkpoint
from support.command import COMMAND
from support.outside import METHOD, forget, install, write_file, write_package
from support.resuming import Killed, assert_equal_runs, kill_before_step

TINY = {"network.width": 8, "training.batch_size": 4, "training.steps": 2, "training.device": "cpu"}
PLACES = {
    "file": ("methods/mine.py", "mine.py"),
    "module": ("some_package.mine:Mine", "some_package.mine:Mine"),
    "package": ("from-package", "other_package.mine:Mine"),
}
"""How each method is given, and what records call its place."""
TRAP = "from pathlib import Path\nPath('sprung').touch()\n" + METHOD.format(name="trap")


@pytest.fixture
def home(tmp_path, monkeypatch, own_methods):
    """A folder to stand in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def library(home, monkeypatch):
    """A file with a method, and on Python's path a module with one and an installed package with one."""
    write_file(home / "methods/mine.py")
    write_package(home / "library")
    value = write_package(home / "library", "other_package", "from-package")
    install(home / "library", "some-plugin", f"from-package = {value}")
    monkeypatch.syspath_prepend(str(home / "library"))
    return home / "library"


@pytest.mark.parametrize("place", PLACES)
def test_a_method_from_outside_trains_resumes_evaluates_and_predicts(library, train_toy, call, place):
    (given, origin), name = PLACES[place], f"from-{place}"
    unbroken = train_toy("unbroken", given, 6, settings={"method.weight": 0.3})
    header = unbroken.records[0]
    assert header["config"]["method"] == {"name": name, "weight": 0.3}
    assert header["origin"] == load_checkpoint(unbroken.checkpoint).origin == origin
    with pytest.MonkeyPatch.context() as patch:
        kill_before_step(patch, 5)
        with pytest.raises(Killed):
            train_toy("killed", given, 6, settings={"method.weight": 0.3})
    Image.new("RGB", (16, 16), "red").save("red.png")
    forget()
    again = [] if place == "package" else ["--method", given]  # a package's method is known by its name
    if again:
        for command in (["train", "--out", "killed", "--resume"], ["evaluate", "killed"], ["predict", "killed", "x"]):
            code, _, err = call(*command)
            assert (code, err.count("\n")) == (2, 1)
            assert f" method '{name}' is not part of afield: name the {place} it is in again, such as " in err
            assert err.endswith(f"--method {origin}\n")
    assert call("train", "--out", "killed", "--resume", *again)[0] == 0
    assert_equal_runs(read_run(Path("killed")), unbroken)
    forget()
    code, out, _ = call("evaluate", "killed", "--domain", "night", "--json", *again)
    assert (code, json.loads(out)["night"]["accuracy"]) == (0, unbroken.accuracy["night"])
    forget()
    code, out, _ = call("predict", "killed", "red.png", *again)
    assert (code, out.splitlines()[1][:8]) == (0, "red.png,")
    assert afield.load("killed").config.method.weight == 0.3, "it is known by now"


def test_a_checkpoint_is_not_loaded_as_another_method(library, train_toy):
    run = train_toy("run", "methods/mine.py", 1)
    for other in ("far", "some_package.mine:Mine"):
        with pytest.raises(afield.AfieldError, match=r"last\.ckpt is of method 'from-file', not"):
            afield.load(run.folder, method=other)
    forget()
    with pytest.raises(afield.AfieldError, match=r"again, such as method='mine\.py'$"):
        afield.load(run.folder)
    assert afield.load(run.folder, method=Path("methods/mine.py")).config.method_name == "from-file"


def test_a_run_cannot_be_resumed_as_another_method(library, train_toy):
    train_toy("run", "methods/mine.py", 1)
    with pytest.raises(afield.AfieldError, match="from-module: the run was started with from-file"):
        afield.train(out="run", resume=True, method="some_package.mine:Mine", progress=False)


NOTEBOOK = """
import afield
from pydantic import Field
from torch.nn.functional import cross_entropy

SCALE = 2.0

class Options(afield.MethodOptions):
    weight: float = Field(1.0, ge=0, description="weight")

def loss(scores, labels):
    return SCALE * cross_entropy(scores, labels)

for summary in ("a cell", "the same cell, run again"):

    @afield.register_method("from-notebook", summary=summary, reference="none")
    class Mine(afield.Method):
        Options = Options

        def losses_of(self, F, batch):
            scores = self.scores_of(F[: batch.num_labelled])
            return {"classification": self.options.weight * loss(scores, batch.labels)}

run = afield.train("digits", target="uci", method=Mine, out="run", settings=TINY, progress=False)
assert afield.load("run").config.method.weight == 1.0
result = afield.run_bench("plan.toml", "out", 2)
assert (result.total, result.failures) == (4, {}), result
"""


def write_plan(**content):
    shared = {"protocol": "digits/embedded", "targets": ["uci"], "seeds": [0], "settings": TINY}
    Path("plan.toml").write_text(tomli_w.dumps(shared | content), "utf-8")


def test_a_notebook_benches_its_own_method_and_all_others_in_two_processes(library):
    row = {"label": "weak", "method": "methods/mine.py", "settings": {"method.weight": 0.1}}
    write_plan(methods=["from-notebook", "some_package.mine:Mine", "from-package"], rows=[row])
    path = os.pathsep.join([str(library), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    script = f"TINY = {TINY}\n{NOTEBOOK}"
    done = subprocess.run(
        [sys.executable, "-"], input=script, env=environment, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    file = Path("out/records.jsonl")
    origins = {record["label"]: record["origin"] for record in read_records(file) if record["event"] == "run"}
    assert origins == {
        "from-notebook": "__main__:Mine",
        "from-module": "some_package.mine:Mine",
        "from-package": "other_package.mine:Mine",
        "weak": "mine.py",
    }
    assert str(library.parent) not in file.read_text("utf-8")
    names = ["from-notebook (method.weight=1)", "from-module (method.weight=1)", "from-package (method.weight=1)"]
    assert {row.name for row in make_table([Path("out")]).rows} == {*names, "weak"}
    assert not cards.outside_cards(), "a table imports no method"

    write_plan(methods=["some_package.mine:Mine", "from-package"], rows=[row])
    before = file.read_bytes()
    assert afield.run_bench("plan.toml", "out", 1, progress=False).recorded == 3
    assert file.read_bytes() == before, "what is recorded is not run again"
    assert [row.name for row in make_table([Path("out")], plan=Path("plan.toml")).rows] == [
        "from-module", "from-package", "weak",
    ]  # fmt: skip


def test_a_method_from_a_file_trains_on_two_devices(library):
    settings = TINY | {"training.devices": 2}
    run = afield.train(target="uci", method="methods/mine.py", out="run", settings=settings, progress=False)
    assert run.records[0]["origin"] == "mine.py"


def test_mistakes_are_one_line_of_the_command_and_exit_code_2(home):
    Path("broken.py").write_text("import afield\n\nx = = 3\n", "utf-8")
    Path("empty.py").write_text("import afield\n", "utf-8")
    decorator = "@afield.register_method('x', summary='', reference='')"
    Path("wrong.py").write_text(f"import afield\n\n{decorator}\nclass Wrong:\n    pass\n", "utf-8")
    expected = {
        "./broken.py": "./broken.py, line 3: SyntaxError: invalid syntax",
        "empty.py": "empty.py registers no method: decorate a subclass of afield.Method with @afield.register_method",
        "./missing.py": "there is no file ./missing.py to take a method from",
        "wrong.py": "wrong.py, line 3: 'x' is registered on Wrong, which is not a subclass of afield.Method",
    }
    words = [*COMMAND, "train", "--target", "uci", "--steps", "2", "--out", "runs/new", "--method"]
    for given, line in expected.items():
        done = subprocess.run([*words, given], text=True, capture_output=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (2, "", f"afield: {line}\n")
    assert not Path("runs").exists()


def test_nothing_is_imported_because_a_stored_file_says_so(home, train_toy, call):
    run = train_toy("run", "baseline", 1)
    Path("trap.py").write_text(TRAP, "utf-8")
    for name in ("./trap.py", "trap:Mine", "trap"):
        stored = load_checkpoint(run.checkpoint)
        config = {**stored.config, "method": {"name": name}}
        save_checkpoint(Path("bad.ckpt"), replace(stored, config=config, origin="trap.py"))
        assert call("evaluate", "bad.ckpt")[0] == 2
        assert call("predict", "bad.ckpt", "red.png")[0] == 2
        Path("run/config.toml").write_text(tomli_w.dumps(config), "utf-8")
        assert call("train", "--out", "run", "--resume")[0] == 2
        assert call("train", "--config", "run/config.toml", "--out", "new")[0] == 2
        lines = Path("run/records.jsonl").read_text("utf-8").replace('"name": "baseline"', f'"name": "{name}"')
        Path("strange.jsonl").write_text(lines, "utf-8")
        code, out, _ = call("table", "strange.jsonl")
        assert (code, name in out) == (0, True)
        assert not Path("sprung").exists()
    Path("mine.toml").write_text('[method]\nname = "./trap.py"\n', "utf-8")
    settings = [word for key, value in TINY.items() for word in ("--set", f"{key}={value}")]
    code, _, err = call(
        "train", "--config", "mine.toml", "--data", "toy", "--target", "night", "--out", "new", *settings
    )
    assert code == 0, err
    assert Path("sprung").exists(), "a config file of the user's own is the user's word"
