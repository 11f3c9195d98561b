"""What must not grow: memory over the steps of a run. The time of long runs and large tables: benchmarks/growth.py."""

import gc
import tracemalloc

import torch

from afield.results import table
from afield.results.records import rewrite_records
from afield.training.heartbeat import heard_by
from support.memory import MEGABYTE, memory_of
from support.tables import make_run


def test_memory_does_not_grow_with_steps(train_toy, tmp_path, monkeypatch):
    """Neither Python's, nor tensors that something holds on to, over more steps than a table of rates has."""
    monkeypatch.setattr("afield.training.heartbeat.SECONDS_BETWEEN_BEATS", 0.0)
    monkeypatch.setattr("afield.training.rates.STEPS_OF_RATES", 64)
    steps, held, tensors = [0], {}, {}

    def look():
        steps[0] += 1
        if steps[0] in (100, 250):
            gc.collect()
            held[steps[0]] = tracemalloc.get_traced_memory()[0]
            tensors[steps[0]] = sum(isinstance(each, torch.Tensor) for each in gc.get_objects())

    settings = {"training.evaluate_every": 50, "training.checkpoint_every": 50, "training.batch_size": 2}
    tracemalloc.start()
    try:
        with heard_by(look):
            train_toy(tmp_path / "run", "baseline", 250, settings=settings)
    finally:
        tracemalloc.stop()
    assert tensors[250] <= tensors[100] + 5
    assert held[250] - held[100] < 150_000, "three evaluations' records are kept, and nothing of the steps"


BEGIN = """
def begin(steps):
    out, begun = sys.argv[1] + str(steps), []

    def stop():
        begun.append(0)
        if len(begun) == 20:
            raise KeyboardInterrupt

    settings = {"network.width": 8, "training.batch_size": 2, "training.device": "cpu", "training.warmup_steps": 9}
    with suppress(KeyboardInterrupt), heard_by(stop):
        afield.train("digits", target="uci", method="far", steps=steps, out=out, settings=settings, progress=False)
    assert len(begun) == 20

heartbeat.SECONDS_BETWEEN_BEATS = 0.0
begin(1_000)
"""


def test_a_run_of_twenty_million_steps_takes_no_more_memory_than_one_of_a_thousand(tmp_path):
    imports = "from contextlib import suppress; import afield; from afield.training import heartbeat; "
    imports += "from afield.training.heartbeat import heard_by"
    taken, _ = memory_of(imports + BEGIN, "begin(20_000_000)", tmp_path / "run")
    assert taken < 40 * MEGABYTE, "a number for each step would be 80 at least"


def test_a_table_looks_at_each_run_of_a_long_file_a_few_times_only(tmp_path, monkeypatch, count=600):
    """Not at every other run for each, which would take hours for a hundred thousand."""
    looked, plain = [0], table.shared_settings

    def counting(runs):
        looked[0] += len(runs)
        return plain(runs)

    monkeypatch.setattr(table, "shared_settings", counting)
    labels = ["baseline", "far", "dann"]
    runs = [make_run(labels[number % 3], "street", number // 3, 0.5) for number in range(count)]
    rewrite_records(tmp_path / "records.jsonl", [record for run in runs for record in run])
    made = table.make_table([tmp_path / "records.jsonl"])
    assert [row.targets["street"].n for row in made.rows] == [count // 3] * 3
    assert looked[0] <= 4 * count
