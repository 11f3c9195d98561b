"""Benchmarks in which a run fails: it stops no other run, is reported as what it was, and is tried again."""

import json
from pathlib import Path

import pytest
import torch

from afield import AfieldError
from afield.bench import worker
from afield.training import loop
from support.benching import DIVERGING, bench_plan, count_trained, recorded, register_toy_protocol


@pytest.fixture(autouse=True)
def home(toy, tmp_path, monkeypatch):
    """A folder to stand in, and a protocol over the toy data."""
    monkeypatch.chdir(tmp_path)
    register_toy_protocol(toy, monkeypatch)


@pytest.fixture
def trained(monkeypatch):
    return count_trained(monkeypatch)


def test_a_failed_run_is_reported_and_does_not_stop_the_others(trained):
    result = bench_plan(methods=["baseline"], seeds=[0], rows=[DIVERGING, {**DIVERGING, "label": "far too fast"}])
    assert (result.total, result.recorded, len(result.failures)) == (6, 2, 4)
    assert "training diverged" in result.failures["too fast under toy/test, target dusk, seed 0"]
    assert list(recorded()) == [("baseline", "dusk", 0), ("baseline", "night", 0)]
    failures = [json.loads(line) for line in Path("out/failures.jsonl").read_text("utf-8").splitlines()]
    named = [(failure["label"], failure["target"], failure["seed"]) for failure in failures]
    assert named == trained[2:]
    assert all("diverged" in failure["reason"] and failure["trace"] is None for failure in failures)
    assert not Path("out/runs").exists() or not list(Path("out/runs").iterdir()), "a failed run starts anew"


def test_a_failed_run_is_tried_again_and_its_failure_forgotten_when_it_succeeds(trained, monkeypatch):
    counting = worker.train_job

    def failing(job, folder):
        if job.target == "dusk":
            counting(job, folder)
            raise RuntimeError("out of\nmemory")
        return counting(job, folder)

    monkeypatch.setattr(worker, "train_job", failing)
    assert bench_plan(seeds=[0]).failures == {
        f"{method} under toy/test, target dusk, seed 0": "RuntimeError: out of memory" for method in ("baseline", "far")
    }
    for line in Path("out/failures.jsonl").read_text("utf-8").splitlines():
        assert "Traceback" in json.loads(line)["trace"]
    monkeypatch.setattr(worker, "train_job", counting)
    trained.clear()
    assert bench_plan(seeds=[0], methods=["far"]).failures == {}
    assert trained == [("far", "dusk", 0)]
    (left,) = Path("out/failures.jsonl").read_text("utf-8").splitlines()
    assert json.loads(left)["label"] == "baseline"
    bench_plan(seeds=[0])
    assert not Path("out/failures.jsonl").exists()
    assert len(recorded()) == 4


def test_a_run_that_lacked_memory_goes_on_from_its_checkpoint_when_it_is_tried_again(monkeypatch):
    steps, plain = [], loop.Loop._train_step

    def lacking(run):
        steps.append(run.step)
        if run.step == 2 and steps.count(2) == 1:
            raise MemoryError
        plain(run)

    monkeypatch.setattr(loop.Loop, "_train_step", lacking)
    few = {"seeds": [0], "methods": ["baseline"], "targets": ["dusk"]}
    every = {"training.steps": 3, "training.checkpoint_every": 1}
    (reason,) = bench_plan(every, **few).failures.values()
    assert reason.startswith("out of memory: lower training.batch_size")
    assert bench_plan(every, **few).recorded == 1
    assert steps == [0, 1, 2, 2]


def test_memory_that_is_lacking_while_a_checkpoint_is_read_costs_no_steps(monkeypatch):
    steps, plain, restore = [], loop.Loop._train_step, loop.Loop._restore

    def stopping(run):
        steps.append(run.step)
        if run.step == 2 and steps.count(2) == 1:
            raise MemoryError
        plain(run)

    def lacking(run, checkpoint):
        steps.append("read")
        if steps.count("read") == 1:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        restore(run, checkpoint)

    monkeypatch.setattr(loop.Loop, "_train_step", stopping)
    monkeypatch.setattr(loop.Loop, "_restore", lacking)
    few = {"seeds": [0], "methods": ["baseline"], "targets": ["dusk"]}
    every = {"training.steps": 3, "training.checkpoint_every": 1}
    for _ in range(2):
        (reason,) = bench_plan(every, **few).failures.values()
        assert reason.startswith("out of memory: lower training.batch_size")
    assert bench_plan(every, **few).recorded == 1
    assert steps == [0, 1, 2, "read", "read", 2]


def test_a_failure_that_leaves_cuda_broken_is_recorded_as_what_it_was(monkeypatch):
    def broken(*_):
        raise RuntimeError("CUDA error: device-side assert triggered")  # as all of CUDA answers from then on

    monkeypatch.setattr(worker, "train_job", broken)
    monkeypatch.setattr(torch.cuda, "empty_cache", broken)
    result = bench_plan(seeds=[0], methods=["baseline"])
    assert set(result.failures.values()) == {"RuntimeError: CUDA error: device-side assert triggered"}
    assert len(result.failures) == 2, "the second was tried, too"


def test_weights_that_are_not_there_stop_a_benchmark_before_its_first_run(trained):
    settings = {"network.backbone": "resnet18", "network.pretrained": False, "network.pool": "average"}
    missing = {"label": "from a file", "method": "baseline", "settings": settings | {"network.weights": "none.pth"}}
    with pytest.raises(AfieldError, match=r"^from a file under toy/test, target dusk, seed 0: .*none\.pth"):
        bench_plan(methods=["baseline"], rows=[missing])
    assert trained == []
