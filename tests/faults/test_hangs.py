"""Runs that really train, in processes that really watch over them: one that hangs is given up, a slow one is not."""

from afield.bench import local
from afield.bench.outcome import Failed
from afield.bench.processes import Worker
from afield.bench.run import run_bench
from support.benching import TINY_DIGITS, recorded, write_plan
from support.hanging import write_methods

STALL_SECONDS = 10  # more than a busy machine takes to open the data and to begin
STEPS = 20


class Ready(Worker):
    """A worker that has imported what it needs before it is given a job, so that only training counts as its time."""

    def __init__(self, part):
        super().__init__(part)
        self.connection.send("no job")
        assert isinstance(self.connection.recv(), Failed)


def bench(out, *methods, **patience):
    """Carry out a plan of some methods, one after the other."""
    steps = {"training.steps": STEPS, "training.evaluate_every": STEPS, "training.checkpoint_every": 2}
    rows = [f"methods.py:{name}" for name in methods]
    write_plan("plan.toml", TINY_DIGITS | steps, protocol="digits/embedded", methods=rows, targets=["uci"], seeds=[0])
    return run_bench("plan.toml", out, 1, **patience)


def test_a_run_that_hangs_is_tried_again_and_one_that_is_slow_is_not(tmp_path, monkeypatch, own_methods, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(local, "Worker", Ready)
    hung = write_methods("methods.py", STALL_SECONDS, STEPS)
    assert bench("out", "slow", "hangs-once", retries=1, stall_minutes=STALL_SECONDS / 60).failures == {}
    retries = [line for line in capfd.readouterr().err.splitlines() if "retry" in line]
    assert [line.split()[0] for line in retries] == ["hangs-once"]
    assert retries[0].endswith("the process that trained it made no progress for 0.166667 minutes; retry 1 of 1")
    assert hung.exists()
    assert bench("unbroken", "hangs-once").recorded == 1
    name = "hangs-once", "uci", 0
    assert recorded()[name] == recorded("unbroken")[name], "bit for bit the run that never hung"
