"""Parts of a plan, and what a plan has still to do."""

from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from afield import AfieldError, files
from afield.app.cli import main
from afield.bench import folder as bench_folder
from afield.bench.estimate import dry_run
from afield.bench.folder import open_folder
from afield.bench.run import read_plans, run_bench
from afield.bench.shard import Shard, parse_shard
from afield.files import BusyFolderError, locked
from afield.results.records import read_records, rewrite_records
from afield.results.table import make_table
from afield.training.loop import Loop
from support.benching import recorded, register_toy_protocol, write_plan


@pytest.fixture(autouse=True)
def plan(toy, monkeypatch, tmp_path):
    """A plan of eight runs in the current folder."""
    register_toy_protocol(toy, monkeypatch)
    monkeypatch.chdir(tmp_path)
    write_plan("plan.toml", {"training.steps": 1}, methods=["baseline"], seeds=[0, 1, 2, 3])


def bench(shard=None):
    return run_bench("plan.toml", "out", 1, shard=shard, progress=False)


@pytest.mark.parametrize("count", [1, 2, 3, 8, 11])
def test_shards_are_together_the_plan_and_no_run_is_in_two(count):
    jobs = read_plans([Path("plan.toml")])
    parts = [Shard(number, count).of(jobs) for number in range(1, count + 1)]
    assert sum(map(len, parts)) == len({job.identity for part in parts for job in part}) == len(jobs) == 8
    assert parse_shard(f"1/{count}").of(jobs)[0] is jobs[0]


@pytest.mark.parametrize("text", ["0/8", "9/8", "3", "3/0", "a/b", "-1/8", "3/8/2", ""])
def test_a_shard_that_is_none_is_refused(text):
    with pytest.raises(AfieldError, match="such as 3/8"):
        parse_shard(text)


def test_shards_record_apart_and_the_table_of_their_folder_has_them_all():
    result = bench("2/2")
    assert (result.total, result.recorded) == (4, 4)
    assert [path.name for path in Path("out").iterdir()] == ["shard-2-of-2"]
    # Four parts of the same plan: the first and the third are not recorded, the second and the fourth are.
    assert [bench(f"{number}/4").recorded for number in (1, 2)] == [2, 2]
    assert sorted(path.name for path in Path("out").iterdir()) == ["shard-1-of-4", "shard-2-of-2"]
    # A benchmark of all runs adds those that no shard has.
    assert bench().recorded == 8
    assert len(recorded()) == 8
    assert len(read_records(Path("out/records.jsonl"))) == 2 * 3
    (row,) = make_table([Path("out")], plan=Path("plan.toml")).rows
    assert row.average.n == 4


def test_shards_may_be_at_work_together_but_not_beside_a_benchmark_of_all_runs():
    with open_folder(Path("out"), Shard(1, 2)), open_folder(Path("out"), Shard(2, 2)):
        with pytest.raises(AfieldError, match=r"another `afield bench` is at work in out$"):
            bench()
        with pytest.raises(AfieldError, match="at work in out/shard-1-of-2"):
            bench("1/2")
        with pytest.raises(AfieldError, match="at work in out/shard-1-of-2"):
            bench("2/3")  # two divisions have jobs in common
    with open_folder(Path("out")), pytest.raises(AfieldError, match=r"at work in out$"):
        bench("1/2")
    assert not Path("out").exists(), "nothing was trained, and nothing is left"


@pytest.mark.parametrize("moment", [0, 1, 2, 3])
def test_of_two_divisions_that_start_at_once_only_one_is_at_work(monkeypatch, moment):
    at_work, steps = [], 0

    def start(shard):
        with suppress(BusyFolderError):
            others.enter_context(open_folder(Path("out"), shard))
            at_work.append(shard)

    def step():
        nonlocal steps
        steps += 1
        if steps == moment + 1:
            start(Shard(1, 3))  # whose own steps come later than this one

    @contextmanager
    def locked_in_steps(*words, **options):
        step()
        with locked(*words, **options):
            step()
            yield

    monkeypatch.setattr(bench_folder, "locked", locked_in_steps)
    with ExitStack() as others:
        start(Shard(1, 2))
        assert len(at_work) == 1
        assert at_work[0].count == (2 if moment == 3 else 3), "whoever has its lock first"
    assert not list(Path().glob("out/*"))


def test_shards_of_a_division_that_look_at_an_older_one_at_once_do_not_refuse_each_other(monkeypatch):
    Path("out/shard-1-of-3").mkdir(parents=True)
    release, opened = files._release, []

    def after_another(descriptor):
        monkeypatch.setattr(files, "_release", release)
        with open_folder(Path("out"), Shard(2, 2)):
            opened.append(descriptor)
        release(descriptor)

    monkeypatch.setattr(files, "_release", after_another)
    with open_folder(Path("out"), Shard(1, 2)):
        assert opened, "the second was at work while the first looked"


def test_a_run_that_a_shard_began_goes_on_without_shards(monkeypatch):
    step = Loop._train_step

    def stopped(loop):
        if loop.step == 9:
            raise KeyboardInterrupt
        return step(loop)

    write_plan("plan.toml", {"training.steps": 12}, methods=["baseline"], seeds=[0])
    with monkeypatch.context() as once, pytest.raises(KeyboardInterrupt):
        once.setattr(Loop, "_train_step", stopped)
        bench("2/2")
    assert [one.state for one in dry_run([Path("plan.toml")], Path("out")).forecasts] == ["to train", "begun"]
    taken = []
    monkeypatch.setattr(Loop, "_train_step", lambda loop: taken.append(loop.step) or step(loop))
    assert bench().recorded == 2
    assert len(taken) < 12 + 12, "one of the two had steps behind it"
    assert not list(Path("out").rglob("runs"))
    assert len(recorded()) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--engine", "rya"], "unknown engine 'rya'; did you mean 'ray'?"),
        (["--keep", "lats"], "unknown selector 'lats'; did you mean 'last'?"),
        (["--address", "auto"], "the engine local has no --address; ray has"),
        (["--shard", ""], "a shard is a number of so many, such as 3/8, not ''"),
        (["--out", "plan.toml"], "plan.toml is not a folder"),
    ],
)
def test_a_dry_run_refuses_what_a_real_one_would(monkeypatch, capsys, words, message):
    monkeypatch.setattr("sys.argv", ["afield", "bench", "plan.toml", "--out", "out", "--dry-run", *words])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert capsys.readouterr().err == f"afield: {message}\n"


def test_a_dry_run_lists_what_is_recorded_and_estimates_the_rest_by_like_runs():
    write_plan("plan.toml", {"training.steps": 12}, methods=["baseline"], seeds=[0])
    bench()
    records = read_records(Path("out/records.jsonl"))
    for record in records:
        if record["event"] == "end":
            record["seconds"] = 3600.0  # 12 steps in an hour
    rewrite_records(Path("out/records.jsonl"), records)
    before = Path("out/records.jsonl").read_bytes()
    write_plan("plan.toml")
    *jobs, counts, estimate, nothing = dry_run([Path("plan.toml")], Path("out")).lines(workers=4)
    assert [line.split()[0] for line in jobs] == ["recorded", "to"] * 2 + ["to"] * 4
    assert jobs[1].endswith("1.00 h  baseline under toy/test, target dusk, seed 1")
    assert jobs[4].endswith(" ?  far under toy/test, target dusk, seed 0")
    assert counts == "2 of 8 runs are recorded, 6 to go"
    like = "by 2 recorded runs on cpu, 1 threads"
    assert estimate == f"about 2.00 hours of training for 2 of them, {like}; 0.50 with 4 at a time"
    assert nothing == "nothing to estimate from under toy/test: far"

    # More steps take longer; another folder's records will do; and a shard counts its own.
    write_plan("plan.toml", {"training.steps": 30}, methods=["baseline"])
    *jobs, counts, estimate = dry_run([Path("plan.toml")], Path("new"), Shard(1, 2), [Path("out")]).lines()
    assert len(jobs) == 2
    assert counts == "0 of 2 runs are recorded, 2 to go"
    assert estimate == f"about 5.00 hours of training, {like}"
    assert Path("out/records.jsonl").read_bytes() == before
    assert not Path("new").exists()
