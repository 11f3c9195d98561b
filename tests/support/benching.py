"""Plans over the toy data, and what a benchmark has recorded."""

import time
from contextlib import suppress
from pathlib import Path

import tomli_w

from afield import AfieldError
from afield.bench import worker
from afield.bench.run import run_bench
from afield.config.protocols import Protocol, protocols
from afield.results.records import read_runs, record_files
from afield.training.checkpoint import load_checkpoint
from conftest import SMALL

PLAN = {"protocol": "toy/test", "methods": ["baseline", "far"], "targets": ["dusk", "night"], "seeds": [0, 1]}
QUICK = SMALL | {"training.steps": 12}
TINY_DIGITS = {
    "network.width": 8, "training.batch_size": 4, "training.steps": 400, "training.device": "cpu",
    "training.checkpoint_every": 50, "training.evaluate_every": 400,
}  # fmt: skip
"""On the embedded digits, which every process knows."""
DIVERGING = {"label": "too fast", "method": "baseline", "settings": {"training.lr": 1e30}}
"""A row whose runs fail."""


def register_toy_protocol(toy, monkeypatch):
    """A protocol over the toy data, for as long as a test runs."""
    targets = tuple(toy.domains)
    named = Protocol(name="toy/test", version=1, data="toy", preset="toy", task="uda", targets=targets)
    monkeypatch.setitem(protocols(), "toy/test", named)


def write_plan(path, settings=None, **changes):
    content = PLAN | {"settings": QUICK | (settings or {})} | changes
    Path(path).write_text(tomli_w.dumps({key: value for key, value in content.items() if value is not None}), "utf-8")


def bench_plan(settings=None, out="out", **changes):
    """Run a plan into a folder, in this process and silently."""
    write_plan("plan.toml", settings, **changes)
    return run_bench(Path("plan.toml"), Path(out), 1, progress=False)


def count_trained(monkeypatch):
    """Which runs train from now on, by label, target and seed."""
    calls, plain = [], worker.train_job

    def counting(job, folder):
        calls.append((job.place.label, job.target, job.seed))
        return plain(job, folder)

    monkeypatch.setattr(worker, "train_job", counting)
    return calls


def write_digits_plan(path, seeds, method="baseline", **settings):
    """A method on the embedded digits, at a small size."""
    changes = {"protocol": "digits/embedded", "methods": [method], "targets": ["uci"], "seeds": list(seeds)}
    write_plan(path, TINY_DIGITS | settings, **changes)


def recorded(folder="out"):
    """The finished runs of a folder by label, target and seed, without the time they took; none may be there twice."""
    found = {}
    for header, *rest, end in (run for file in record_files(Path(folder)) for run in read_runs(file)):
        config = header["config"]
        key = header["label"], config["task"]["target"], config["training"]["seed"]
        assert key not in found, f"{key} is recorded twice"
        found[key] = [header, *rest, end["step"]]
    return found


def saved_step(run):
    """The step of a run's last checkpoint; 0 if there is none yet, or none any more."""
    with suppress(AfieldError):  # which may have just been recorded
        return load_checkpoint(Path(run) / "last.ckpt").step
    return 0


def step_of(folder):
    """The step of the furthest checkpoint among the runs in progress; 0 if there is none yet."""
    return max(map(saved_step, Path(folder).glob("runs/*")), default=0)


def wait_for(condition):
    """Wait for what must happen, rather than for ever if it does not."""
    deadline = time.monotonic() + 300
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)
    return found


def wait_until_further(folder):
    """Wait until a run has saved more than now. It must not fall back meanwhile: that would be a start from step 0."""
    seen = [reached := step_of(folder)]
    wait_for(lambda: seen.append(step_of(folder)) or seen[-1] > reached)
    assert min(seen) == reached
    return seen[-1]


class Told:
    """A watcher that remembers what it was told."""

    def __init__(self):
        self.begun_jobs, self.retries = [], []

    def begun(self, job):
        self.begun_jobs.append(job)

    def retried(self, job, reason):
        self.retries.append((job, reason))
