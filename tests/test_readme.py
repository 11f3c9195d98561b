"""What README and docs say is so: examples run, the method table is complete, figures come from the records."""

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from types import ModuleType

import numpy as np
import pytest
import tomli_w

import afield
from afield.app.cli import main
from afield.bench.run import read_plans
from afield.config.plan import identity_of_record, plan_jobs, read_plan_file
from afield.data import registry as data_registry
from afield.results.records import read_runs
from support.command import COMMAND
from support.images import write_folder
from support.outside import forget

ROOT = Path(__file__).parents[1]
README_FILE = ROOT / "README.md"
README = README_FILE.read_text("utf-8")
DOCUMENTS = [README_FILE, *sorted((ROOT / "docs").glob("*.md"))]
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
METHODS_PAGE = (ROOT / "docs/methods.md").read_text("utf-8")
GUIDE = (ROOT / "docs/guide.md").read_text("utf-8")
MOST_LINES = 200


def load_script(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    # Before it runs: worker processes look functions up by their module's name.
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def images_of_cameras():
    """The names that the examples take for granted: images, labels and domains, of which camera4 has no labels."""
    cameras = [f"camera{1 + number % 4}" for number in range(48)]
    labels = [None if camera == "camera4" else ("bus", "car")[number // 4 % 2] for number, camera in enumerate(cameras)]
    images = np.random.default_rng(0).integers(0, 256, (len(cameras), 16, 16, 3), np.uint8)
    return images, labels, cameras


@pytest.mark.parametrize("document", [README_FILE, ROOT / "docs/guide.md", ROOT / "docs/data.md"], ids=lambda f: f.name)
def test_the_python_examples_run_as_written_with_fewer_steps(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(data_registry, "_builders", dict(data_registry.builders()))
    images, labels, domains = images_of_cameras()
    # A method of one's own is a file, which has a test of its own.
    examples = [code for code in PYTHON.findall(document.read_text("utf-8")) if "register_method" not in code]
    names = {"images": images, "labels": labels, "domains": domains}
    for example in examples:
        exec(compile(example.replace("steps=400", "steps=2"), document.name, "exec"), names)
    if document == README_FILE:
        assert len(examples) == 2
        assert (tmp_path / "runs/x/last.ckpt").exists()
        assert (tmp_path / "runs/b/last.ckpt").exists()


def test_the_commands_for_own_images_run_as_pasted_with_fewer_steps(tmp_path):
    classes = {"bus": 5, "car": 5}
    cameras = {"camera1": classes, "camera2": classes, "camera3": classes, "camera4": 6}
    write_folder(tmp_path / "photos", cameras, suffix=".jpg")
    section = README.split("## Your own images")[1].split("\n## ")[0]
    for path in re.findall(r"^ {4}(photos/\S+)", section, re.MULTILINE):
        assert (tmp_path / path).parent.is_dir(), "the folders shown are those that work"
    commands = re.findall(r"```bash\n(.*?)```", section, re.DOTALL)[0].splitlines()
    assert [shlex.split(command)[1] for command in commands] == ["data", "train", "evaluate", "predict"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "AFIELD_CACHE": str(tmp_path / "cache")}
    for command in commands:
        words = [*COMMAND, *shlex.split(command)[1:], *(["--steps", "2"] if " train " in command else [])]
        done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
        assert done.returncode == 0, (command, done.stderr)
    assert len((tmp_path / "predictions.csv").read_text("utf-8").splitlines()) == 7


def test_the_readme_is_short_and_its_links_lead_somewhere():
    assert len(README.splitlines()) < MOST_LINES
    for document in DOCUMENTS:
        for link in re.findall(r"\]\(([^)#]*)(?:#[^)]*)?\)", document.read_text("utf-8")):
            assert link.startswith("https://") or (document.parent / link).exists(), (document.name, link)


def heading_anchors(text):
    """The anchors of a document's headings, as they are made from their words."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_to_headings_name_headings():
    for document in DOCUMENTS:
        text = document.read_text("utf-8")
        for link, anchor in re.findall(r"\]\(([^)#:]*)#([^)]*)\)", text):
            there = (document.parent / link).read_text("utf-8") if link else text
            assert anchor in heading_anchors(there), (document.name, link, anchor)


@pytest.mark.usefixtures("own_methods")
def test_the_added_method_of_the_documents_works_as_written_with_fewer_steps(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    own_file, notebook, learning = PYTHON.findall(METHODS_PAGE)
    imported = {module.split(".")[0] for module in re.findall(r"^from (\S+) import", own_file, re.MULTILINE)}
    assert imported == {"afield", "torch", "pydantic"}
    Path("mean_matching.py").write_text(own_file, "utf-8")
    write_folder(Path("photos"), {"camera": 2}, suffix=".jpg")
    tiny = {"network.width": 8, "training.batch_size": 4, "training.steps": 2}
    settings = [word for key, value in tiny.items() for word in ("--set", f"{key}={value}")]
    commands = re.findall(r"```bash\n(.*?)```", METHODS_PAGE, re.DOTALL)[0].splitlines()
    assert [shlex.split(command)[1] for command in commands] == ["train", "train", "evaluate", "predict"]
    for number, command in enumerate(commands):
        forget()
        monkeypatch.setattr(sys, "argv", [*shlex.split(command), *(settings if not number else [])])
        with pytest.raises(SystemExit) as stopped:
            main()
        assert stopped.value.code == 0, capsys.readouterr().err
    with pytest.raises(afield.AfieldError, match="needs target images"):
        afield.train("digits", "dg", "uci", "./mean_matching.py", out="runs/dg")

    plan = re.findall(r"```toml\n(.*?)```", METHODS_PAGE, re.DOTALL)[0]
    Path("plan.toml").write_text(plan, "utf-8")
    assert [job.place.label for job in read_plans([Path("plan.toml")])][::15] == [
        "far",
        "mean-matching",
        "mean matching, weak",
    ]
    forget()
    few = {"targets": ["uci"], "seeds": [0], "settings": tiny}
    plan = tomllib.loads(plan) | few | {"methods": ["mean-matching"], "rows": []}
    Path("plan.toml").write_text(tomli_w.dumps(plan), "utf-8")
    names = {"__name__": "notebook"}
    exec(own_file, names)
    exec(notebook.replace("steps=400", "steps=2").replace("workers=2", "workers=1"), names)
    assert (names["result"].recorded, names["model"].config.method_name) == (1, "mean-matching")
    exec(learning, names)
    assert {part: how.rate for part, how in names["learning"](None).items()} == {"discriminator": 0.01, "classifier": 1}


@pytest.mark.usefixtures("own_methods")
def test_the_readmes_own_method_trains_by_its_command_with_fewer_steps(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (own_file,) = [block for block in PYTHON.findall(README) if "register_method" in block]
    Path("mean_matching.py").write_text(own_file, "utf-8")
    write_folder(Path("photos"), {"camera1": {"bus": 5, "car": 5}, "camera4": 8}, suffix=".jpg")
    (command,) = re.findall(r"^    (afield train .*mean_matching.py.*)$", README, re.MULTILINE)
    tiny = ["--set", "network.width=8", "--batch-size", "4", "--steps", "2"]
    monkeypatch.setattr(sys, "argv", [*shlex.split(command), *tiny])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 0, capsys.readouterr().err


def test_the_method_table_names_every_method():
    table = README.split("## Methods")[1].split("## ")[0]
    for name in afield.list_methods():
        assert f"`{name}`" in table, name


TABLES = load_script(ROOT / "docs/write_tables.py")
WRITTEN = [
    (file.name, command, quoted)
    for file in TABLES.FILES
    for command, quoted in TABLES.WRITTEN.findall(file.read_text("utf-8"))
]


@pytest.mark.parametrize(
    ("file", "command", "quoted"), WRITTEN, ids=[f"{file}: {command}" for file, command, _ in WRITTEN]
)
def test_a_table_is_the_one_its_command_prints(file, command, quoted):
    assert TABLES.output_of(command) == quoted


def test_tables_are_written_anew_and_the_rest_of_a_document_stays():
    stale = "before\n<!-- written by: afield methods -->\nstale\n<!-- end -->\nafter"
    first, *_, last = TABLES.rewritten(stale).splitlines()
    assert (first, last) == ("before", "after")
    assert "stale" not in TABLES.rewritten(stale)
    assert "far" in TABLES.rewritten(stale)


def test_the_records_are_of_plans_and_of_todays_methods():
    recorded = {identity_of_record(run[0]) for run in read_runs(ROOT / "results/digit5/records.jsonl")}
    plans = [plan_jobs(read_plan_file(file)) for file in (ROOT / "plans").glob("digit5*.toml")]
    assert recorded <= {job.identity for plan in plans for job in plan}


@pytest.mark.parametrize("plan", sorted((ROOT / "plans").rglob("*.toml")), ids=lambda path: path.stem)
def test_every_plan_is_of_todays_methods_and_options(plan):
    assert plan_jobs(read_plan_file(plan))


def test_the_plan_of_the_guide_is_one(tmp_path):
    file = tmp_path / "plan.toml"
    file.write_text(re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL)[0], "utf-8")
    jobs = read_plans([file])
    assert len(jobs) == 9
    assert {job.config.training.steps for job in jobs} == {300}
    assert jobs[-1].config.as_dict()["method"]["align_weight"] == 0.1


def test_the_demos_table_is_the_one_its_records_give():
    table = README.split("## What the demo prints")[1].split("```")[1]
    records = [json.loads(line) for line in (ROOT / "results/demo/records.jsonl").read_text("utf-8").splitlines()]
    rows = []
    for header, after in pairwise([i for i, record in enumerate(records) if record["event"] == "run"] + [len(records)]):
        last, end = records[after - 2], records[after - 1]
        target = 100 * last["target"]["street"]["accuracy"]
        sources = 100 * fmean(result["accuracy"] for result in last["sources"].values())
        rows.append([records[header]["config"]["method"]["name"], target, sources, end["seconds"]])
    assert [row[0] for row in rows] == ["baseline", "far"]
    for name, *numbers in rows:
        quoted = next(line for line in table.splitlines() if f" {name} " in line).replace("│", " ").split()
        assert quoted == [name, *(f"{number:.1f}" for number in numbers), "last"]


def test_settings_are_chosen_by_information_or_without_a_target_by_the_sources(tmp_path):
    script = load_script(ROOT / "benchmarks/label_free.py")

    def run(label, kind, sources, entropy, accuracy):
        config = {"method": {"name": "dann"}, "task": {"kind": kind, "target": "t"}}
        end = {
            "event": "evaluation", "step": 1, "sources": {"a": {"accuracy": sources}},
            "oracle": {"t": {"accuracy": accuracy}}, "unlabelled": {"t": {"entropy": entropy, "diversity": 2.0}},
        }  # fmt: skip
        return [{"event": "run", "label": label, "config": config}, end, {"event": "end", "step": 1, "seconds": 1.0}]

    for kind, best in (("uda", "sure"), ("dg", "good at home")):
        runs = [
            run("sure", kind, 0.8, 0.1, 0.3),
            run("good at home", kind, 0.9, 1.0, 0.2),
            run("?", kind, 0.7, 1.5, 1.0),
        ]
        file = tmp_path / f"{kind}.jsonl"
        file.write_text("".join(json.dumps(record) + "\n" for records in runs for record in records), "utf-8")
        assert [setting.label for setting in script.chosen(script.settings(file))] == [best]


def test_the_rows_of_chosen_settings_make_a_plan_in_which_the_usual_setting_is_the_method_itself(tmp_path):
    script = load_script(ROOT / "benchmarks/label_free.py")
    head = 'protocol = "digits/embedded"\nseeds = [0]\ntargets = ["uci"]\n'
    before, after = tmp_path / "before.toml", tmp_path / "after.toml"
    weights = {
        "strong": ("dann", "adversary_weight", 3.0),
        "usual": ("dan", "mmd_weight", 1.0),
        "no": ("dan", "mmd_weight", 2.0),
    }
    rows = [
        f'[[rows]]\nlabel = "{label}"\nmethod = "{method}"\nsettings = {{ "method.{option}" = {value} }}\n'
        for label, (method, option, value) in weights.items()
    ]
    before.write_text(head + "".join(rows), "utf-8")
    after.write_text(head + script.rows_of_plan(before, {"strong", "usual"}), "utf-8")
    jobs = plan_jobs(read_plan_file(after))
    assert [(job.place.label, job.config.method_name) for job in jobs] == [("dan", "dan"), ("strong", "dann")]
    assert jobs[1].config.method.adversary_weight == 3.0


def test_the_step_timer_times_a_method_beside_the_baseline_and_shows_what_it_wrote(tmp_path, monkeypatch, capsys):
    script, file = load_script(ROOT / "benchmarks/step_time.py"), tmp_path / "times.jsonl"
    small = ["--methods", "far", "--steps", "1", "--batch", "4", "--width", "8", "--size", "16"]
    monkeypatch.setattr(sys, "argv", ["step_time.py", *small, "--json", str(file)])
    script.main()
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    assert [(row["method"], row["images"]) for row in rows] == [("baseline", 16), ("far", 20)]
    assert rows[1]["ratio"] == pytest.approx(rows[1]["milliseconds"] / rows[0]["milliseconds"])
    assert "| far | " in script.recorded(file)
    assert "ms before" in script.recorded(file, file)
    other = ["--optimiser", "adam", "--neck", "12,6", "--hidden", "5", "--pool", "flatten", "--batch-norm", "each"]
    monkeypatch.setattr(sys, "argv", ["step_time.py", *small, *other, "--json", str(file)])
    script.main()
    row = json.loads(file.read_text("utf-8").splitlines()[-1])
    assert [row[name] for name in ("optimiser", "neck", "hidden", "pool", "batch_norm")] == [
        "adam", [12, 6], [5], "flatten", "each"
    ]  # fmt: skip
    first, second = [line for line in script.recorded(file).splitlines() if line.endswith(".")]
    assert second == first.removesuffix(".") + ", neck 12, 6, hidden 5, batch norm each, adam."
    assert script.described(row | {"backbone": "resnet18"}).count("resnet18") == 1
    monkeypatch.setattr(sys, "argv", ["step_time.py", "--show", str(tmp_path / "none")])
    with pytest.raises(SystemExit, match="cannot read"):
        script.main()
