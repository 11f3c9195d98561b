"""Benchmarks: nothing runs twice, and a kill loses nothing that was recorded. `test_bench_failures.py` has failures."""

import io
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
from rich.console import Console

from afield import AfieldError
from afield.bench import local, machine, processes, worker
from afield.bench.engines import Patience
from afield.bench.folder import BenchFolder, open_folder
from afield.bench.local import work_in_processes
from afield.bench.outcome import Failed
from afield.bench.progress import BenchProgress
from afield.bench.run import read_plans, run_bench
from afield.results.records import read_records, read_runs, rewrite_records
from afield.results.table import make_table
from afield.training import loop
from support.benching import DIVERGING, Told, bench_plan, count_trained, recorded, register_toy_protocol, write_plan
from support.children import alive, children
from support.command import COMMAND
from support.serve_or_die import serve_or_die


class Killed(BaseException):
    """Not an Exception: nothing may catch it, as nothing catches a kill."""


@pytest.fixture(autouse=True)
def home(toy, tmp_path, monkeypatch):
    """A folder to stand in, and a protocol over the toy data."""
    monkeypatch.chdir(tmp_path)
    register_toy_protocol(toy, monkeypatch)
    return tmp_path


@pytest.fixture
def trained(monkeypatch):
    return count_trained(monkeypatch)


ALL = [(label, target, seed) for label in ("baseline", "far") for target in ("dusk", "night") for seed in (0, 1)]


def test_every_method_target_and_seed_is_recorded_once_and_not_run_again(trained):
    result = bench_plan()
    assert (result.total, result.recorded, result.failures) == (8, 8, {})
    assert trained == ALL, "runs of one method are adjacent"
    assert list(recorded()) == ALL
    assert [file.name for file in Path("out").iterdir()] == ["records.jsonl"], "checkpoints are gone"
    before = Path("out/records.jsonl").read_bytes()
    assert bench_plan().recorded == 8
    assert len(trained) == 8
    assert Path("out/records.jsonl").read_bytes() == before


def test_a_record_names_protocol_and_row_and_its_table_follows(toy):
    bench_plan(targets=None, seeds=[3])
    header = recorded()["far", "night", 3][0]
    assert header["label"] == "far"
    assert header["protocol"] | {"name": "toy/test", "version": 1, "checksum": toy.checksum()} == header["protocol"]
    table = make_table([Path("out")])
    assert [row.name for row in table.rows] == ["baseline", "far"]
    assert (list(table.columns), table.rows[0].average.n) == (["day", "dusk", "fog", "night"], 1)


def test_two_plans_share_a_folder_and_what_they_have_in_common(trained):
    bench_plan(methods=["baseline"], seeds=[0])
    control = {"label": "control", "method": "baseline-align", "settings": {"method.align_weight": 0.0}}
    bench_plan(methods=["baseline", "baseline-align"], seeds=[0, 1], rows=[control])
    assert len(trained) == len(set(trained)) == len(recorded()) == 2 + 10
    assert recorded()["control", "dusk", 1][0]["config"]["method"]["align_weight"] == 0.0
    bench_plan(methods=["baseline"], seeds=[0], settings={"training.steps": 5})
    assert trained[12:] == [("baseline", "dusk", 0), ("baseline", "night", 0)], "with other settings it is another run"
    bench_plan(
        methods=["baseline"], seeds=[0], settings={"training.checkpoint_every": 7, "training.execution": "eager"}
    )
    assert len(trained) == 14, "how often a run is saved does not make it another"


def test_a_run_recorded_before_an_option_existed_is_not_run_again(trained):
    bench_plan(methods=["far"], seeds=[0])
    records = read_records(Path("out/records.jsonl"))
    for record in records:
        if record["event"] == "run":
            del record["config"]["training"]["clip_norm"], record["config"]["method"]["reduction"]
    rewrite_records(Path("out/records.jsonl"), records)
    bench_plan(methods=["far"], seeds=[0])
    assert len(trained) == 2


@pytest.fixture
def steps_recorded(monkeypatch):
    """Every evaluation of every run folder as it is written, and a way to be killed after one."""
    seen, plain = [], loop.append_record

    def watching(path, record):
        plain(path, record)
        if record["event"] == "evaluation":
            seen.append((path.parent.name.rpartition("-")[0], record["step"]))
            if seen[-1] == watching.fatal:
                raise Killed

    watching.fatal = None
    monkeypatch.setattr(loop, "append_record", watching)
    return seen, watching


def test_a_killed_benchmark_goes_on_where_it_was_and_ends_like_one_never_killed(steps_recorded):
    seen, kill = steps_recorded
    bench_plan(out="unbroken", targets=["dusk"])
    whole = list(seen)
    seen.clear()
    kill.fatal = ("far-dusk-seed0", 10)
    with pytest.raises(Killed):
        bench_plan(targets=["dusk"])
    assert list(recorded()) == [("baseline", "dusk", 0), ("baseline", "dusk", 1)]
    (under_way,) = Path("out/runs").iterdir()
    assert (under_way / "last.ckpt").exists()
    kill.fatal = None
    bench_plan(targets=["dusk"])
    # The last checkpoint was of step 8: the evaluation at 5 is kept, the one at 10 is made again, nothing else is.
    again = whole.index(("far-dusk-seed0", 10))
    assert seen == whole[: again + 1] + whole[again:]
    assert recorded() == recorded("unbroken")
    assert not Path("out/runs").exists()


def test_a_run_whose_checkpoint_is_no_use_starts_anew(steps_recorded):
    seen, kill = steps_recorded
    kill.fatal = ("baseline-dusk-seed0", 10)
    with pytest.raises(Killed):
        bench_plan(methods=["baseline"], seeds=[0])
    (under_way,) = Path("out/runs").iterdir()
    (under_way / "last.ckpt").write_bytes(b"half a checkpoint")
    seen.clear()
    kill.fatal = None
    assert bench_plan(methods=["baseline"], seeds=[0]).recorded == 2
    assert seen[:3] == [("baseline-dusk-seed0", step) for step in (5, 10, 12)]
    assert not Path("out/runs").exists()


def test_a_kill_while_a_run_is_being_recorded_loses_that_run_alone(trained):
    bench_plan(methods=["baseline"])
    file = Path("out/records.jsonl")
    whole, first_three = file.read_bytes(), b"".join(file.read_bytes().splitlines(keepends=True)[:15])
    expected = recorded()
    for cut in (1, 2, 40, len(whole) - len(first_three) - 1):
        file.write_bytes(whole[:-cut])
        trained.clear()
        bench_plan(methods=["baseline"])
        assert trained == [("baseline", "night", 1)]
        assert recorded() == expected
        assert file.read_bytes().startswith(first_three)


def test_checkpoints_that_a_kill_left_beside_their_record_are_removed_at_the_next_start(trained):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BenchFolder, "tidy", lambda self, job: None)
        bench_plan(methods=["baseline"], seeds=[0])
    assert len(list(Path("out/runs").iterdir())) == 2
    bench_plan(methods=["baseline"], seeds=[0])
    assert not Path("out/runs").exists()
    assert len(trained) == 2


def test_an_interrupt_says_what_is_recorded_and_the_same_command_goes_on(trained, monkeypatch, call):
    counting = worker.train_job

    def interrupted(job, folder):
        if len(trained) == 3:
            raise KeyboardInterrupt
        return counting(job, folder)

    monkeypatch.setattr(worker, "train_job", interrupted)
    write_plan("plan.toml")
    code, _, err = call("bench", "plan.toml", "--out", "out", "--workers", "1")
    assert code == 130
    assert "3 of 8 runs are recorded in out/records.jsonl" in err
    assert "finished runs are recorded, and the same command continues" in err
    monkeypatch.setattr(worker, "train_job", counting)
    code, out, err = call("bench", "plan.toml", "--out", "out", "--workers", "1")
    assert (code, len(trained)) == (0, 8)
    assert "3 of 8 runs are recorded, 5 to go" in err
    assert "8 of 8 runs are recorded" in out


def test_the_command_prints_a_line_a_run_and_exits_with_1_if_one_failed(monkeypatch, call):
    write_plan("plan.toml", methods=["baseline"], targets=["night"], seeds=[0], rows=[DIVERGING])
    code, out, err = call("bench", "plan.toml", "--out", "out")
    assert code == 1
    evaluation = recorded()["baseline", "night", 0][-2]
    accuracy = f"target night {evaluation['target']['night']['accuracy']:.1%} (labels not used in training)"
    assert f"1/2 baseline under toy/test, target night, seed 0: sources {sources(evaluation):.1%}, {accuracy}; " in err
    assert "2/2 too fast under toy/test, target night, seed 0: failed: training diverged" in err
    assert err.count("failed: too fast under toy/test, target night, seed 0: training diverged") == 1
    assert "1 of 2 runs are recorded" in out


def sources(evaluation):
    values = [result["accuracy"] for result in evaluation["sources"].values()]
    return sum(values) / len(values)


def test_one_bar_goes_over_all_runs_and_says_how_far_those_under_way_are(train_toy):
    label = "mine [/x] [bold]"  # shown as it is, though a terminal's library has such marks of its own
    write_plan("plan.toml", methods=[], rows=[{"label": label, "method": "far"}])
    jobs = read_plans([Path("plan.toml")])
    with open_folder(Path("out")) as folder:
        progress = BenchProgress(folder, jobs, jobs[1:], shown=False)
        screen = progress.console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)
        progress.begun(jobs[1])
        progress.begun(jobs[2])
        run = train_toy(folder.run_folder(jobs[1]), target="dusk", steps=6)
        screen.print(progress._render())
        progress.recorded(jobs[1], run.records)
        screen.print(progress._render())
    shown = screen.file.getvalue()
    before, after = (line for line in shown.splitlines() if " runs " in line)
    assert "1/4 runs" in before
    assert "17%" in before, "six of thirty-six steps"
    assert "2/4 runs" in after
    assert "33%" in after, "a run that has ended counts whole"
    assert f"{label} under toy/test, target dusk, seed 1: step 6, sources {run.source_accuracy:.1%}, target" in shown
    assert f"2/4 {label} under toy/test, target dusk, seed 1: sources {run.source_accuracy:.1%}" in shown
    assert f"{label} under toy/test, target night, seed 0: started" in shown


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"protocol": "toy/tset"}, "unknown protocol 'toy/tset'; did you mean 'toy/test'"),
        ({"protocol": None}, "'plan': a plan names one protocol with the key protocol, or several with protocols$"),
        ({"seeds": None}, "'plan.seeds': field required$"),
        ({"seeds": 3}, "plan.seeds"),
        ({"seeds": []}, "at least one method and one seed"),
        ({"seeds": [-1]}, "training.seed"),
        ({"seeds": [1, 1]}, "names seed '1' twice"),
        ({"metods": ["far"]}, "unknown config key 'plan.metods'; did you mean 'plan.methods'"),
        ({"methods": []}, "at least one method"),
        ({"methods": ["faar"]}, "row 'faar': unknown method 'faar'; did you mean 'far'"),
        ({"methods": ["far", "far"]}, "names row 'far' twice"),
        ({"targets": ["nihgt"]}, "unknown target of toy/test 'nihgt'; did you mean 'night'"),
        ({"targets": ["night", "night"]}, "names target 'night' twice"),
        ({"settings": {"training.setps": 3}}, "unknown config key 'training.setps'; did you mean 'training.steps'"),
        ({"settings": {"trainig": {"steps": 3}}}, "unknown config section 'trainig'"),
        ({"settings": {"steps": 3}}, "section.key, not 'steps'"),
        ({"settings": {"training.seed": 3}}, "the plan itself decides training.seed"),
        ({"settings": {"task": {"target": "day"}}}, "the plan itself decides task.target"),
        ({"settings": {"method": {"name": "far"}}}, "the plan itself decides method.name"),
        ({"settings": {"method.align_weight": 0.3}}, "row 'baseline': unknown config key 'method.align_weight'"),
        ({"rows": [{"label": "x", "metod": "far"}]}, "'plan.rows.0.metod'; did you mean 'plan.rows.0.method'"),
        ({"rows": [{"label": "x"}]}, "'plan.rows.0.method': field required$"),
        ({"rows": [{"label": "far", "method": "far"}]}, "row 'far': that is a method's name"),
        ({"rows": [{"label": "x", "method": "far-conv", "settings": {"method.gate": "both"}}]}, "row 'x': .*conv"),
    ],
)
def test_a_plan_that_cannot_be_run_is_refused_before_anything_is_written(trained, changes, message):
    with pytest.raises(AfieldError, match=message) as caught:
        bench_plan(**{"methods": ["baseline"], "seeds": [0]} | changes)
    assert "\n" not in str(caught.value)
    assert not Path("out").exists()
    assert trained == []


def test_settings_may_be_written_with_or_without_quotes():
    plan = 'protocol = "toy/test"\nmethods = ["far"]\ntargets = ["night"]\nseeds = [0]\n[settings]\n'
    Path("plan.toml").write_text(plan + 'training.steps = 5\n"training.lr" = 0.1\nnetwork.width = 8\n', "utf-8")
    (job,) = read_plans([Path("plan.toml")])
    config = job.config
    assert (config.training.steps, config.training.lr, config.network.width) == (5, 0.1, 8)


def test_a_folder_that_is_not_a_benchmarks_or_in_use_or_about_other_images_is_left_alone(train_toy, trained):
    train_toy("run", "baseline", 3)
    before = Path("run/records.jsonl").read_bytes()
    with pytest.raises(AfieldError, match="run holds a run of `afield train`"):
        bench_plan(out="run")
    assert Path("run/records.jsonl").read_bytes() == before
    with open_folder(Path("out")), pytest.raises(AfieldError, match="another `afield bench` is at work in out"):
        bench_plan()
    bench_plan(methods=["baseline"], seeds=[0])
    file = Path("out/records.jsonl")
    records = read_records(file)
    records[0]["protocol"]["checksum"] = "other"
    rewrite_records(file, records)
    with pytest.raises(AfieldError, match="other images of 'toy'"):
        bench_plan()
    assert len(trained) == 2
    with pytest.raises(AfieldError, match="at least one worker"):
        run_bench(Path("plan.toml"), Path("out"), 0)


def test_a_process_that_dies_fails_its_job_and_is_replaced(monkeypatch, tmp_path):
    monkeypatch.setattr(processes, "serve", serve_or_die)
    monkeypatch.setattr(processes, "parcel", lambda job, folder: (job, folder))
    monkeypatch.setattr(local, "machine_parts", lambda count: [{"CUDA_VISIBLE_DEVICES": "7"}] * count)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    tasks = [(job, tmp_path) for job in ("one", "fatal", "two", "three")]
    told = Told()
    outcomes = dict(work_in_processes(tasks, told, 1, Patience()))
    assert told.begun_jobs == ["one", "fatal", "two", "three"]
    assert outcomes.pop("fatal") == Failed("the process that trained it died (exit code 7)")
    numbers = [outcome["process"] for outcome in outcomes.values()]
    assert len(numbers) == 3
    assert numbers[0] != numbers[1], "the dead one was replaced"
    assert numbers[1] == numbers[2], "a process lives on from job to job"
    assert os.getpid() not in numbers
    assert not any(outcome["forked"] for outcome in outcomes.values()), "a forked process cannot use CUDA"
    assert all(outcome["environment"]["CUDA_VISIBLE_DEVICES"] == "7" for outcome in outcomes.values())
    assert os.environ.get("CUDA_VISIBLE_DEVICES") is None


def test_workers_share_the_gpus_and_the_processors(monkeypatch, home):
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    assert [tuple(part.values()) for part in machine.machine_parts(3)] == [("5", "0"), ("5", "1"), ("5", "0")]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    assert [tuple(part.values()) for part in machine.machine_parts(2)] == [("8", "4"), ("8", "7")]
    for device, count in (("auto", 4), ("cpu", 1)):
        write_plan("plan.toml", {"training.device": device})
        assert machine.usual_workers([(job, home) for job in read_plans([Path("plan.toml")])]) == count
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert machine.machine_parts(2) == [{"OMP_NUM_THREADS": "8"}] * 2
    assert machine.usual_workers([]) == 1


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks at processes by way of /proc")
def test_killed_outright_it_leaves_no_process_behind_and_called_again_runs_nothing_twice(capsys):
    # On the embedded digits, because every process knows them.
    tiny = {"network.width": 8, "training.batch_size": 4, "training.steps": 200, "training.device": "cpu"}
    often = {"training.checkpoint_every": 10, "training.evaluate_every": 100}
    changes = {"protocol": "digits/embedded", "methods": ["baseline"], "targets": ["uci"], "seeds": [0, 1, 2, 3]}
    write_plan("plan.toml", tiny | often, **changes)
    words = [*COMMAND, "bench", "plan.toml", "--out", "out", "--workers", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True)
    assert process.stderr
    # Both processes have just begun their second runs.
    assert next(line for line in process.stderr if line.startswith("2/4"))
    left = children(process.pid)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert len(left) >= 2
    while any(map(alive, left)):
        time.sleep(0.05)
    before = recorded()
    assert len(before) == 2
    for folder in Path("out/runs").iterdir():
        assert read_runs(folder / "records.jsonl") == [], "a process outlived the one that gave it the job"

    assert run_bench(Path("plan.toml"), Path("out"), 1).recorded == 4
    assert "2 of 4 runs are recorded, 2 to go" in capsys.readouterr().err
    after = recorded()
    assert set(after) == {("baseline", "uci", seed) for seed in range(4)}
    assert {key: after[key] for key in before} == before
    assert [record["step"] for record in after["baseline", "uci", 3][1:3]] == [100, 200]
    assert not Path("out/runs").exists()
