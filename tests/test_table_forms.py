"""Tables as LaTeX and CSV, and from several files of records."""

import csv
import io
import re
from functools import partial

import pytest
import tomli_w

from afield.config.protocols import published_source
from afield.results.latex import as_latex, escaped
from afield.results.long_form import as_csv
from afield.results.table import make_table
from support.tables import PLAN, TARGETS, jobs_of, make_run, record, write_runs

ACCURACIES = {"far": 0.80, "dann": 0.75, "coral": 0.7999, "baseline": 0.60}


@pytest.fixture
def table_of(tmp_path):
    """The table of some runs; with a plan, of that."""

    def make(*runs, plan=None):
        write_runs(tmp_path / "records.jsonl", *runs)
        if plan:
            (tmp_path / "plan.toml").write_text(tomli_w.dumps(plan), "utf-8")
        return make_table([tmp_path], plan=tmp_path / "plan.toml" if plan else None)

    return make


@pytest.fixture
def made(table_of):
    """Four methods with two seeds each; one of them has no run on `mt`."""
    runs = [
        make_run(method, target, seed, accuracy + 0.02 * seed)
        for method, accuracy in ACCURACIES.items()
        for target in TARGETS
        for seed in (0, 1)
        if (method, target) != ("baseline", "mt")
    ]
    return table_of(*runs)


def latex_lines(table):
    """The cells of each line of the tabular, by the first of them; of lines of others' figures the last counts."""
    lines = re.findall(r"^    (.*) \\\\$", as_latex(table), re.MULTILINE)
    return {line.split(" & ")[0]: line.split(" & ")[1:] for line in lines}


def test_latex_marks_the_best_and_the_second_of_a_column_as_they_are_printed(made):
    lines = latex_lines(made)
    assert lines["method"] == [*TARGETS, "average"]
    assert set(lines["far"]) == set(lines["coral"]) == {r"\textbf{81.0} $\pm$ 1.4 (2)"}, "80.995 is printed as 81.0"
    assert set(lines["dann"]) == {r"\underline{76.0} $\pm$ 1.4 (2)"}
    assert lines["baseline"][:2] == [r"61.0 $\pm$ 1.4 (2)", "--"]


def test_latex_has_the_published_figures_in_italics_and_outside_the_ranking(made):
    published = latex_lines(made)[r"\quad \textit{published}"]
    assert len(published) == len(TARGETS) + 1
    assert all(re.fullmatch(r"\\textit\{[\d.]+\}|--", cell) for cell in published)


def test_latex_is_one_float_with_booktabs_and_the_notes_as_its_caption(made):
    text = as_latex(made, ["`far` over `dann`: +5 ± 1."])
    for part in (r"\toprule", r"\midrule", r"\bottomrule", r"\begin{tabular}{lrrrrrr}", r"\end{table}"):
        assert text.count(part) == 1
    assert r"\caption{\texttt{far} over \texttt{dann}: +5 $\pm$ 1. Target test accuracy" in text
    assert r"Selector \texttt{last}" in text
    assert "Bold: the best of our figures" in text
    assert text.count("{") == text.count("}")


def test_a_column_with_one_figure_has_no_best_one(table_of):
    (cell,) = {cell for cell in latex_lines(table_of(make_run("far", "mm", 0, 0.5)))["far"] if cell != "--"}
    assert cell == "50.0 (1)"


def test_what_latex_would_take_for_its_own_is_escaped(table_of):
    assert escaped("50 % of a_b & {c}\\d^2 ~ #1 `e_f` → <") == (
        r"50 \% of a\_b \& \{c\}\textbackslash{}d\textasciicircum{}2 \textasciitilde{} \#1 \texttt{e\_f} "
        r"$\rightarrow$ $<$"
    )
    table = table_of(make_run("far", "mm", 0, 0.5, label="[2] R&D"), make_run("far", "mm", 0, 0.6, label="*mine*"))
    assert {r"{[2] R\&D}", "{*mine*}"} <= set(latex_lines(table)), "not the option or the star of the line before"


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_csv_has_one_line_per_figure(made):
    rows = rows_of(as_csv(made))
    assert list(rows[0]) == ["protocol", "selector", "method", "target", "kind", "mean", "std", "n", "source"]
    assert {(row["protocol"], row["selector"]) for row in rows} == {("digit5/small", "last")}
    ours = {(row["method"], row["target"]): row for row in rows if row["kind"] == "measured"}
    assert set(ours) == {(method, target) for method in ACCURACIES for target in (*TARGETS, "average")}
    assert float(ours["far", "sv"]["mean"]) == pytest.approx(81.0)
    assert float(ours["far", "sv"]["std"]) == pytest.approx(2**0.5)
    assert (ours["far", "sv"]["n"], ours["far", "sv"]["source"]) == ("2", "")
    assert [ours["baseline", "mt"][key] for key in ("mean", "std", "n")] == ["", "", "0"]
    (published,) = [r for r in rows if (r["method"], r["target"], r["kind"]) == ("dann", "mm", "published")]
    assert (published["mean"], published["n"], published["source"]) == ("71.3", "", published_source())


def test_csv_and_latex_of_several_protocols_have_what_others_report(table_of):
    table = table_of(*(record(job, 0.7) for job in jobs_of()), plan=PLAN)
    rows = [row for row in rows_of(as_csv(table)) if (row["method"], row["target"]) == ("Tzeng", "sv → mt")]
    assert [(row["kind"], float(row["mean"])) for row in rows[:2]] == [("measured", 70.0), ("paper", 76.0)]
    assert rows[1]["source"].startswith("Tzeng et al.")
    assert "quoted from memory" in {row["source"] for row in rows if row["kind"] == "re-runs"}
    lines = latex_lines(table)
    assert lines["method"][0] == r"sv $\rightarrow$ mt"
    assert lines[r"\quad \textit{re-runs}"] == [r"\textit{[68.0] to 80.0}", "--", "--"]


def test_records_of_several_files_and_folders_are_one_table(tmp_path):
    (tmp_path / "folder").mkdir()
    runs = [make_run("far", target, seed, 0.5 + seed / 10) for seed in (0, 1) for target in TARGETS]
    write_runs(tmp_path / "folder/records.jsonl", *runs[:5])
    write_runs(tmp_path / "other.jsonl", *runs[5:])
    places = [tmp_path / "folder", tmp_path / "other.jsonl"]
    (row,) = make_table(places).rows
    assert (row.average.n, row.average.mean) == (2, pytest.approx(55.0))
    assert make_table([*places, places[0]]).rows == [row], "a run that is named twice counts once"


def test_several_files_may_be_of_one_plan(tmp_path):
    (tmp_path / "plan.toml").write_text(tomli_w.dumps(PLAN), "utf-8")
    records = [record(job, 0.5) for job in jobs_of()]
    places = [write_runs(tmp_path / "a.jsonl", *records[::2]), write_runs(tmp_path / "b.jsonl", *records[1::2])]
    table = make_table(places, plan=tmp_path / "plan.toml")
    assert [cell.n for cell in table.row("Ganin").targets.values()] == [2, 2, 2]


@pytest.fixture
def command(tmp_path, call):
    """Call `afield table` on a file of records."""
    runs = [make_run(m, t, seed, 0.5 + seed / 9) for m in ("far", "dann") for t in TARGETS for seed in range(2)]
    write_runs(tmp_path / "records.jsonl", *runs)
    return partial(call, "table", tmp_path)


def test_the_command_prints_either_form(command):
    code, out, _ = command("--latex", "--compare", "far,dann", "--row", "far")
    assert (code, out.splitlines()[0], "    dann &" in out) == (0, r"% needs \usepackage{booktabs}", False)
    assert r"\texttt{far} over \texttt{dann}: +0.0" in out
    code, out, _ = command("--csv", "--row", "far")
    assert (code, {row["method"] for row in rows_of(out)}) == (0, {"far"})


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--latex", "--csv"], "--latex and --csv cannot be combined"),
        (["--markdown", "--latex"], "--markdown and --latex cannot be combined"),
        (["--json", "--csv"], "--json and --csv cannot be combined"),
        (["--csv", "--compare", "far,dann"], "--csv cannot show what --compare computes"),
        (["--test"], "--compare far,baseline --test"),
    ],
)
def test_contradictory_options_are_refused_in_one_line(command, words, part):
    code, out, err = command(*words)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert part in err
