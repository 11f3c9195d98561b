"""Records that lack something: whoever reads them does without it, or refuses them in one line."""

import copy
import shutil
from pathlib import Path

import pytest

from afield import AfieldError
from afield.analysis.report import write_report
from afield.analysis.study import Study
from afield.app.looking import read_named
from afield.app.report_commands import benchmark_of
from afield.bench.estimate import paces_of
from afield.bench.folder import open_folder
from afield.results.records import read_records, read_runs, rewrite_records
from afield.results.run import read_run
from afield.results.table import make_table
from support.resuming import every, killed_run


def paths_of(tree, path=()):
    """Where in a tree of dictionaries a key stands, and all those inside it."""
    for key, value in tree.items() if isinstance(tree, dict) else ():
        yield (*path, key)
        yield from paths_of(value, (*path, key))


def without(tree, path):
    """The tree without one of its keys."""
    changed = copy.deepcopy(tree)
    place = changed
    for key in path[:-1]:
        place = place[key]
    del place[path[-1]]
    return changed


READ = {"name", "kind", "target", "sources", "seed", "steps"}
"""Options of a stored config that are read one by one."""


def damaged(records):
    """Every way in which a line may lack a key."""
    for number, record in enumerate(records):
        for path in paths_of(record):
            if path != ("event",) and (path[0] != "config" or len(path) < 3 or path[2] in READ):
                yield f"{number}: {'.'.join(path)}", [*records[:number], without(record, path), *records[number + 1 :]]


@pytest.fixture(scope="module")
def run(train_toy, tmp_path_factory):
    return train_toy(tmp_path_factory.mktemp("run") / "run", "far", 2, settings=every(2, 2))


@pytest.fixture(scope="module")
def half_run(train_toy, tmp_path_factory):
    return killed_run(train_toy, tmp_path_factory.mktemp("half") / "run", every(1, 1))


def read_by_a_benchmark(path):
    with open_folder(path.parent) as folder:
        folder.check_data("toy", "another")
    paces_of(read_runs(path))


def read_by_a_report(path):
    (named,) = read_named([path])
    studies = [Study(history, None, "no checkpoint") for history in named.histories]
    write_report(studies, [benchmark_of(named)], Path("page.html"))


READERS = {
    "table": lambda path: make_table([path], "source-val"),
    "result": lambda path: read_run(path.parent, "source-val"),
    "benchmark": read_by_a_benchmark,
    "report": read_by_a_report,
}


@pytest.mark.parametrize("reader", READERS)
def test_a_line_that_lacks_any_key_is_read_without_it_or_refused(run, tmp_path, monkeypatch, reader):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("plotly.offline.get_plotlyjs", lambda: "")  # three megabytes in each page
    path, outcomes = Path("some/records.jsonl"), set()
    path.parent.mkdir()
    for what, records in damaged(read_records(run.folder / "records.jsonl")):
        rewrite_records(path, records)
        try:
            READERS[reader](path)
            outcomes.add("read")
        except AfieldError as error:
            assert len(str(error).splitlines()) == 1, what
            outcomes.add("refused")
        except Exception as error:
            raise AssertionError(f"without {what}") from error
    assert outcomes == {"read", "refused"}


def test_a_run_whose_records_lack_any_key_goes_on_or_is_refused(half_run, train_toy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcomes = set()
    for what, records in damaged(read_records(half_run / "records.jsonl")):
        shutil.copytree(half_run, "run", dirs_exist_ok=True)
        rewrite_records(Path("run/records.jsonl"), records)
        try:
            assert train_toy("run", "baseline", 3, settings=every(1, 1), resume=True).step == 3
            outcomes.add("went on")
        except AfieldError:
            outcomes.add("refused")
        except Exception as error:
            raise AssertionError(f"without {what}") from error
        shutil.rmtree("run")
    assert outcomes == {"went on", "refused"}
