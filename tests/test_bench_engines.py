"""Engines on this machine: a process that is killed or hangs is replaced, and its run goes on."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from afield import AfieldError
from afield.bench import local, on_ray, processes, worker
from afield.bench.engines import Patience
from afield.bench.local import work_in_processes
from afield.bench.outcome import Failed
from afield.bench.processes import parcel
from afield.bench.run import read_plans, run_bench
from afield.training.stopping import HeldSignals
from support.benching import (
    Told,
    recorded,
    register_toy_protocol,
    step_of,
    wait_for,
    wait_until_further,
    write_digits_plan,
    write_plan,
)
from support.children import descendants
from support.command import COMMAND
from support.serve_or_die import serve_or_die

LINUX = pytest.mark.skipif(not Path("/proc").exists(), reason="looks at processes by way of /proc")


@pytest.fixture
def work(monkeypatch, tmp_path):
    """Work through jobs by stand-ins that may be killed or hang."""
    monkeypatch.setattr(processes, "serve", serve_or_die)
    monkeypatch.setattr(processes, "parcel", lambda job, folder: (job, folder))
    monkeypatch.setattr(local, "machine_parts", lambda count: [{}] * count)

    def run(*jobs, workers=1, **patience):
        told = Told()
        outcomes = list(work_in_processes([(job, tmp_path) for job in jobs], told, workers, Patience(**patience)))
        assert sorted(job for job, _ in outcomes) == sorted(jobs), "each job has one outcome"
        return dict(outcomes), told

    return run


def test_the_job_of_a_killed_process_is_tried_again_but_not_for_ever(work):
    outcomes, told = work("killed once", "killed", "fine", retries=2)
    assert told.begun_jobs == ["killed once"] * 2 + ["killed"] * 3 + ["fine"]
    died = "the process that trained it died (signal SIGKILL)"
    assert told.retries == [
        ("killed once", f"{died}; retry 1 of 2"), ("killed", f"{died}; retry 1 of 2"),
        ("killed", f"{died}; retry 2 of 2"),
    ]  # fmt: skip
    assert outcomes.pop("killed") == Failed(died)
    assert all("process" in outcome for outcome in outcomes.values())


def test_a_process_that_hangs_is_given_up_and_one_that_is_slow_is_not(work):
    outcomes, told = work("hung once", "slow", retries=1, stall_minutes=1.5 / 60)
    assert [job for job, _ in told.retries] == ["hung once"]
    assert "made no progress for 0.025 minutes; retry 1 of 1" in told.retries[0][1]
    assert all("process" in outcome for outcome in outcomes.values())


def test_after_a_cuda_error_the_next_job_gets_another_process(work):
    outcomes, _ = work("poisoned", "fine", "fine too")
    poisoned = outcomes.pop("poisoned")
    first, second = (outcome["process"] for outcome in outcomes.values())
    assert poisoned.reason == "AcceleratorError: CUDA error: device-side assert triggered"
    assert first == second != int(poisoned.trace)


def test_a_run_that_lacks_memory_beside_others_is_tried_again_alone_once(work):
    outcomes, told = work("slow", "too large", "large", "fine", workers=2)
    assert set(told.begun_jobs[:2]) == {"slow", "too large"}
    assert told.begun_jobs[-1] in ("large", "too large"), "those that are tried again come last"
    assert ("too large", "out of memory beside other runs; it will be tried again alone") in told.retries
    assert told.begun_jobs.count("too large") == 2
    assert outcomes.pop("too large") == Failed("out of memory", lacked_memory=True)
    assert all("process" in outcome for outcome in outcomes.values())


def test_one_worker_is_always_alone_so_that_a_run_without_enough_memory_has_failed(work):
    outcomes, told = work("too large", "fine")
    assert (told.begun_jobs, told.retries) == (["too large", "fine"], [])
    assert outcomes["too large"].lacked_memory


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"retries": -1}, "0 or more, not -1"),
        ({"stall_minutes": 0}, "more than 0 and at most 525600, not 0"),
        ({"stall_minutes": float("inf")}, "not inf"),
        ({"stall_minutes": 1e300}, r"not 1e\+300"),
        ({"engine": "rya"}, "unknown engine 'rya'; did you mean 'ray'"),
        ({"engine": "ray", "workers": 2}, "on Ray the resources per run decide"),
        ({"engine": "ray", "gpus_per_run": -1}, "0 GPUs or more"),
        ({"engine": "ray", "gpus_per_run": float("nan")}, "0 GPUs or more"),
        ({"engine": "ray", "gpus_per_run": 1.5}, "a part of one GPU or several whole ones, not 1.5"),
        ({"engine": "ray", "cpus_per_run": float("inf")}, "more than 0 processors"),
    ],
)
def test_what_no_engine_can_do_is_refused_at_once(tmp_path, options, message):
    with pytest.raises(AfieldError, match=message):
        run_bench(tmp_path / "no-plan.toml", tmp_path / "out", **options)


def test_without_ray_its_engine_is_refused_before_the_plan_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("afield.bench.run.find_spec", lambda name: None)
    with pytest.raises(AfieldError, match=r"^the engine ray needs Ray: pip install 'afield\[ray\]'$"):
        run_bench(tmp_path / "no-plan.toml", tmp_path / "out", engine="ray")
    assert not (tmp_path / "out").exists()


def test_a_node_that_does_not_see_the_folder_trains_in_one_of_its_own(toy, tmp_path, monkeypatch):
    register_toy_protocol(toy, monkeypatch)
    monkeypatch.setattr(HeldSignals, "insistent", True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    trained = []
    plain = worker.train_job
    monkeypatch.setattr(worker, "train_job", lambda job, folder: trained.append(folder) or plain(job, folder))
    write_plan(tmp_path / "plan.toml", {"training.steps": 1}, methods=["baseline"], targets=["dusk"], seeds=[0])
    (job,) = read_plans([tmp_path / "plan.toml"])
    folder = tmp_path / "out/runs" / job.slug
    folder.parent.mkdir(parents=True)
    with on_ray.marked(tmp_path / "out") as mark:
        for shown in (mark, "of another folder of that name"):
            records = on_ray.train_there(parcel(job, folder), folder, on_ray.Driver(tmp_path / "out", shown, 60))
            assert records[-1]["event"] == "end"
    own = trained[1]
    assert trained == [folder, own]
    assert own.is_relative_to(tmp_path / "temporary")
    assert (folder.exists(), own.exists()) == (True, False), "its records are on their way, and nothing else is needed"


@pytest.mark.parametrize(
    ("nodes", "has_room"),
    [
        ([({"CPU": 4.0, "GPU": 1.0}, True)], True),
        ([({"CPU": 4.0}, True), ({"CPU": 2.0, "GPU": 0.5}, True)], True),
        ([({"CPU": 4.0}, True), ({"CPU": 1.0, "GPU": 1.0}, True)], False),  # a run is on one node
        ([({"CPU": 4.0}, True), ({"CPU": 4.0, "GPU": 1.0}, False)], False),  # which has left
        ([], False),
    ],
)
def test_runs_that_wait_because_no_node_has_room_for_one_are_said_to_wait(nodes, has_room, recwarn):
    ray = SimpleNamespace(nodes=lambda: [{"Resources": has, "Alive": lives} for has, lives in nodes])
    on_ray.check_room(ray, {"num_cpus": 2, "num_gpus": 0.5})
    said = "no node of the cluster has 2 CPU and 0.5 GPU for a run; runs wait until one joins"
    assert [str(warning.message) for warning in recwarn] == ([] if has_room else [said])


WATCHED = """
import os, signal, time
from afield.bench.on_ray import Watchdog
with Watchdog({seconds}) as got_on:
    {then}
"""


@pytest.mark.parametrize(
    ("seconds", "then", "code"),
    [
        (0.5, "time.sleep(60)", -signal.SIGKILL),
        (0.5, "os.kill(os.getpid(), signal.SIGSTOP)", -signal.SIGKILL),  # in which no thread would run
        (5, "[(got_on(), time.sleep(0.01)) for _ in range(10)]", 0),
    ],
)
def test_a_task_that_hangs_or_stands_still_is_killed_for_ray_to_retry(seconds, then, code):
    watched = WATCHED.format(seconds=seconds, then=then)
    assert subprocess.run([sys.executable, "-c", watched], check=False).returncode == code


@LINUX
def test_a_killed_worker_is_replaced_and_a_terminated_benchmark_goes_on_from_its_last_step(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    write_digits_plan("plan.toml", [0])
    words = [*COMMAND, "bench", "plan.toml", "--out", "out", "--workers", "1", "--stall", "5"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: step_of("out") >= 50)
    (trainer,) = descendants(process.pid, "spawn_main")
    os.kill(trainer, signal.SIGKILL)
    reached = wait_until_further("out")
    process.terminate()
    _, said = process.communicate()
    assert process.returncode == 143
    assert "died (signal SIGKILL); retry 1 of 2" in said
    assert said.splitlines()[-1].startswith("afield: terminated; finished runs are recorded, and the same command")
    assert reached <= step_of("out") < 400

    assert run_bench("plan.toml", "out", 1, progress=False).recorded == 1
    assert run_bench("plan.toml", "unbroken", 1, progress=False).recorded == 1
    assert recorded() == recorded("unbroken"), "bit for bit the run that was never killed"
    assert not Path("out/runs").exists()
