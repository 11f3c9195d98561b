"""`afield table` on hand-made records: its forms, chosen rows, and what it refuses."""

import json
from functools import partial

import pytest

from afield.results.records import rewrite_records
from support.tables import TARGETS, make_run


@pytest.fixture
def command(tmp_path, call):
    """Call `afield table` on a folder of records."""
    runs = [make_run(m, t, seed, 0.5) for m in ("far", "baseline") for t in TARGETS for seed in range(2)]
    runs += [make_run("baseline-align", t, s, 0.4, label="control, of a kind") for t in TARGETS for s in range(2)]
    rewrite_records(tmp_path / "records.jsonl", [record for run in runs for record in run])
    return partial(call, "table", tmp_path)


def test_the_command_prints_json_markdown_and_text(command):
    code, out, _ = command("--json", "--selector", "source-val")
    values = json.loads(out)
    assert (code, values["selector"], len(values["rows"])) == (0, "source-val", 3)
    code, out, _ = command("--markdown", "--compare", "far,control, of a kind")
    assert "| far | 50.0 ± 0.0 (2) |" in out
    assert "`far` over `control, of a kind`: +10.0 ± 0.0 (standard error), ahead in 2 of 2" in out
    code, out, _ = command()
    assert code == 0
    assert "digit5/small, selector last" in out
    assert "control, of a kind" in out


def test_chosen_rows_stand_alone_in_the_tables_order_and_may_be_compared_with_others(command):
    chosen = ("--row", "control, of a kind", "--row", "baseline")
    code, out, _ = command("--markdown", *chosen, "--compare", "far,baseline")
    rows = [line.split(" | ")[0] for line in out.splitlines() if line.startswith("| ")]
    assert (code, rows[2:]) == (0, ["| baseline", "| *published*", "| control, of a kind", "| *published*"])
    assert "`far` over `baseline`" in out
    values = json.loads(command("--json", "--row", "far")[1])
    assert [row["method"] for row in values["rows"]] == ["far"]
    assert "far" in command("--row", "far")[1]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--row", "fra"], "unknown row 'fra'; did you mean 'far'"),
        (["--selector", "oracle"], "never chosen by 'oracle'"),
        (["--compare", "far"], "two rows"),
        (["--json", "--markdown"], "--json and --markdown cannot be combined"),
        (["--protocol", "digit5"], "did you mean 'digit5/small'"),
        (["nowhere"], "cannot read records nowhere"),
    ],
)
def test_the_command_refuses_in_one_line(command, words, part):
    code, out, err = command(*words)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert part in err
