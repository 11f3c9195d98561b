"""Plans of several protocols, and their table: what papers report, what others got, and ours."""

import json
from pathlib import Path

import pytest
import tomli_w
from rich.console import Console

from afield import AfieldError
from afield.bench.run import run_bench
from afield.config.cards import cards
from afield.config.catalogue import PRESETS
from afield.config.plan import plan_jobs, read_plan_file
from afield.config.protocols import Protocol, find_protocol, protocols
from afield.config.reported import KINDS, ReportedFigure, all_figures, reported_figures, source_named
from afield.results.records import read_runs, rewrite_records
from afield.results.show import as_markdown, as_text, as_values, reported_cell
from afield.results.table import make_table
from conftest import SMALL
from support.tables import PLAN, jobs_of, record

ROOT = Path(__file__).parents[1]


@pytest.fixture
def table_of(tmp_path):
    """The table of a plan's jobs with their accuracies."""

    def make(accuracies, **changes):
        rewrite_records(tmp_path / "records.jsonl", [line for job, a in accuracies for line in record(job, a)])
        (tmp_path / "plan.toml").write_text(tomli_w.dumps({**PLAN, **changes}), "utf-8")
        return make_table([tmp_path], plan=tmp_path / "plan.toml")

    return make


# Plans


def test_a_plan_of_several_protocols_runs_each_row_under_those_it_names():
    jobs = jobs_of()
    ran = {(job.place.label, job.place.protocol): job.config.method_name for job in jobs}
    assert ran == {
        ("source only", "pairs/sv-mt"): "baseline",
        ("source only", "pairs/mt-mm"): "baseline",
        ("source only", "rotated-mnist/domainbed"): "baseline",
        ("Ganin", "pairs/sv-mt"): "dann-paper",
        ("Ganin", "pairs/mt-mm"): "dann-paper",
        ("Ganin", "rotated-mnist/domainbed"): "dann",
        ("Tzeng", "pairs/sv-mt"): "adda",
    }
    assert len(jobs) == 2 * (3 + 2 + 2 * 6), "two seeds; rotated MNIST has six targets"
    assert len({job.identity for job in jobs}) == len({str(job) for job in jobs}) == len(jobs)
    order = list(dict.fromkeys(job.place.protocol for job in jobs))
    assert order == PLAN["protocols"], "protocol by protocol, so that each data set is loaded once"
    pair = jobs[0].config
    assert (pair.task.sources, pair.task.target, pair.data.name, pair.data.augmentation) == (
        ("sv",), "mt", "digit5", "none"
    )  # fmt: skip
    rotated = jobs[-1].config
    assert (rotated.task.kind, rotated.data.image_size, rotated.training.lr) == ("dg", 28, 0.1)


def test_settings_under_one_protocol_go_before_those_of_the_plan_and_after_those_of_a_row():
    mine = {"label": "mine", "method": "dann", "settings": {"training.lr": 0.3}}
    under = {"pairs/sv-mt": {"training.lr": 0.2, "network.weights": "a.pth"}}
    jobs = jobs_of(rows=[*PLAN["rows"], mine], settings={"training.lr": 0.1}, protocol_settings=under)
    found = {(job.place.label, job.place.protocol): job.config for job in jobs}
    assert found["source only", "pairs/mt-mm"].training.lr == 0.1
    assert found["source only", "pairs/mt-mm"].network.weights == ""
    assert found["source only", "pairs/sv-mt"].training.lr == 0.2
    assert found["source only", "pairs/sv-mt"].network.weights == "a.pth"
    assert found["mine", "pairs/sv-mt"].training.lr == 0.3


ROW = {"label": "mine", "method": "dann"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"protocol": "pairs/sv-mt"}, "one protocol with the key protocol, or several with protocols"),
        ({"protocols": []}, "one protocol with the key protocol, or several with protocols"),
        ({"protocols": ["pairs/sv-mt", "pairs/sv-mt"]}, "names protocol 'pairs/sv-mt' twice"),
        ({"protocols": ["pairs/sv-mm"]}, "unknown protocol 'pairs/sv-mm'"),
        ({"targets": ["mt"]}, "targets are of one protocol"),
        ({"protocol_settings": {"pairs/sv-mm": {}}}, "protocol_settings 'pairs/sv-mm'.*'pairs/sv-mt'"),
        ({"protocol_settings": {"pairs/sv-mt": {"data.image_size": 9}}}, "the plan itself decides data.image_size"),
        ({"rows": [{**ROW, "protocols": ["pairs/mt-up"]}]}, "unknown protocol of row 'mine' 'pairs/mt-up'"),
        ({"rows": [ROW, ROW]}, "names row 'mine' twice"),
        ({"rows": [ROW, {**ROW, "protocols": ["pairs/sv-mt"]}]}, "names row 'mine' twice"),
        ({"rows": [{**ROW, "method": "adda"}]}, "row 'mine': method 'adda' needs target images"),
        (
            {
                "rows": [
                    {**ROW, "protocols": ["pairs/sv-mt"]},
                    {**ROW, "method": "coral", "protocols": ["pairs/mt-mm"]},
                ]
            },
            "row 'mine' stands for two methods: dann and coral",
        ),
        ({"methods": ["adda"]}, "row 'adda': method 'adda' needs target images"),
    ],
)
def test_what_a_plan_cannot_mean_is_refused(tmp_path, changes, message):
    (tmp_path / "plan.toml").write_text(tomli_w.dumps({**PLAN, **changes}), "utf-8")
    with pytest.raises(AfieldError, match=message):
        plan_jobs(read_plan_file(tmp_path / "plan.toml"))


def test_a_benchmark_of_two_protocols_records_both_and_continues(toy, tmp_path, monkeypatch):
    for name, target in (("toy/one", "night"), ("toy/two", "dusk")):
        made = Protocol(name=name, version=1, data="toy", preset="toy", task="uda", targets=(target,))
        monkeypatch.setitem(protocols(), name, made)
    rows = [
        {"label": "both", "method": "baseline", "settings": {"training.steps": 3}},
        {"label": "one", "method": "dann", "protocols": ["toy/one"], "settings": {"training.steps": 2}},
    ]
    plan = {"protocols": ["toy/one", "toy/two"], "seeds": [0, 1], "rows": rows, "settings": SMALL}
    (tmp_path / "plan.toml").write_text(tomli_w.dumps(plan), "utf-8")
    result = run_bench(tmp_path / "plan.toml", tmp_path / "out", 1, progress=False)
    assert (result.total, result.recorded, result.failures) == (6, 6, {})
    assert len(read_runs(tmp_path / "out/records.jsonl")) == 6
    assert run_bench(tmp_path / "plan.toml", tmp_path / "out", 1, progress=False).recorded == 6
    assert len(read_runs(tmp_path / "out/records.jsonl")) == 6, "nothing runs twice"
    table = make_table([tmp_path / "out"], plan=tmp_path / "plan.toml")
    counts = {row.name: [cell.n for cell in row.targets.values()] for row in table.rows}
    assert counts == {"both": [2, 2], "one": [2, 0]}
    alone = make_table([tmp_path / "out"], protocol="toy/one")
    assert [row.name.split(" (")[0] for row in alone.rows] == ["both", "one"]


def test_the_plan_of_the_repository_has_five_seeds_and_every_figure_a_place():
    content = read_plan_file(ROOT / "plans/reproduce.toml")
    jobs = plan_jobs(content)
    assert content.seeds == (0, 1, 2, 3, 4)
    columns = [protocol.heading for protocol in content.named_protocols()]
    assert columns == ["sv → mt", "mt → up", "up → mt", "mt → mm", "rotated", "rotated, 1,000"]
    ran = {(job.place.protocol, job.config.method_name.removesuffix("-paper")) for job in jobs}
    assert {(figure.protocol, figure.method) for figure in all_figures()} <= ran
    assert not {("pairs/mt-mm", "adda"), ("pairs/sv-mt", "ccsa")} & ran


# What others report


def test_reported_figures_are_of_methods_and_protocols_that_exist_and_have_a_source():
    listed = json.loads((PRESETS / "reported.json").read_text("utf-8"))["sources"]
    for figure in all_figures():
        assert find_protocol(figure.protocol).name == figure.protocol
        assert figure.method in cards(), "the method itself, not a preset"
        assert 50 < figure.accuracy < 100
        assert source_named(figure.source)
    assert {figure.source for figure in all_figures()} == set(listed), "and no source stands for nothing"
    (mcd,) = reported_figures("pairs/sv-mt", "mcd", "paper")
    assert (mcd.accuracy, mcd.unverified) == (96.2, False)


def figure(accuracy, unverified=False):
    return ReportedFigure(
        protocol="p", method="m", kind="paper", accuracy=accuracy, source="saito", unverified=unverified
    )


@pytest.mark.parametrize(
    ("figures", "shown"),
    [
        ([], "-"),
        ([figure(76.0)], "76.0"),
        ([figure(80.0), figure(61.6, True), figure(70.7)], "[61.6] to 80.0"),
        ([figure(70.7), figure(70.7)], "70.7"),
    ],
)
def test_a_cell_has_one_figure_or_the_ends_of_several_and_brackets_what_nobody_looked_up(figures, shown):
    assert reported_cell(figures) == shown


# The table


def test_paper_and_re_runs_stand_below_ours_in_the_columns_that_a_row_has(table_of):
    jobs = jobs_of()
    accuracies = [(job, {0: 0.7, 1: 0.74}[job.seed]) for job in jobs if job.place.protocol != "pairs/mt-mm"]
    table = table_of(accuracies)
    assert list(table.columns.values()) == ["sv → mt", "mt → mm", "rotated"]
    lines = [line for line in as_markdown(table, []).splitlines() if line.startswith("|")]
    assert lines == [
        "| method | sv → mt | mt → mm | rotated |",
        "| --- | ---: | ---: | ---: |",
        "| source only | 72.0 ± 2.8 (2) | - | 72.0 ± 2.8 (2) |",
        "| *paper* | 54.9 to 67.1 | 52.2 | 98.0 |",
        "| *re-runs* | 57.5 to 59.2 | 56.6 | - |",
        "| Ganin | 72.0 ± 2.8 (2) | - | 72.0 ± 2.8 (2) |",
        "| *paper* | 73.9 | 76.7 | - |",
        "| *re-runs* | [61.6] to [73.4] | 74.0 to [86.5] | 97.8 |",
        "| Tzeng | 72.0 ± 2.8 (2) | - | - |",
        "| *paper* | 76.0 | - | - |",
        "| *re-runs* | [68.0] to 80.0 | - | - |",
    ]
    text = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    text.print(as_text(table))
    printed = text.export_text()
    assert max(map(len, printed.splitlines())) <= 120
    assert "re-runs" in printed
    assert "selector last" in printed
    row = as_values(table)["rows"][1]
    assert row["targets"]["sv → mt"]["n"] == 2
    assert {"accuracy": 70.7, "source": source_named("bousmalis"), "unverified": False} in row["re-runs"]["sv → mt"]
    assert list(row)[-2:] == list(KINDS)


def test_the_notes_say_what_the_figures_are_and_where_they_come_from(table_of):
    notes = "\n".join(table_of([(job, 0.5) for job in jobs_of()]).notes)
    for part in ("Selector `last`", "`rotated`: averages over the targets", "Tzeng et al., CVPR 2017", "In brackets"):
        assert part in notes
    assert notes.endswith("Nothing was searched.")
    assert source_named("later") not in notes, "a figure from memory has no source to name"
    certain = table_of([(job, 0.5) for job in jobs_of() if job.place.label == "source only"])
    assert "brackets" not in "\n".join(certain.notes)


def test_a_column_of_several_targets_is_the_average_of_seeds_that_have_them_all(table_of):
    rotated = [job for job in jobs_of() if job.config.method_name == "dann"]
    value = {str(job): 0.5 + 0.01 * number for number, job in enumerate(rotated)}
    first = [value[str(job)] for job in rotated if job.seed == 0]
    (row,) = table_of([(job, value[str(job)]) for job in rotated if (job.seed, job.target) != (1, "m75")]).rows
    cell = row.targets["rotated-mnist/domainbed"]
    assert (cell.n, cell.mean) == (1, pytest.approx(100 * sum(first) / 6))


def test_only_the_plans_own_runs_count_and_images_must_be_the_same(table_of, tmp_path):
    jobs = jobs_of(settings={"training.steps": 7})
    with pytest.raises(AfieldError, match="no run of the plan"):
        table_of([(job, 0.5) for job in jobs])
    one, other = jobs_of()[:2]
    rewrite_records(tmp_path / "records.jsonl", [*record(one, 0.5), *record(other, 0.5, checksum="decaf")])
    with pytest.raises(AfieldError, match="different images of the data set"):
        make_table([tmp_path], plan=tmp_path / "plan.toml")
    with pytest.raises(AfieldError, match="plan and protocol cannot both be given"):
        make_table([tmp_path], plan=tmp_path / "plan.toml", protocol="pairs/sv-mt")
