"""Two rows against each other: which runs are paired, and what a test may say of them."""

import json

import pytest
import tomli_w
from scipy.stats import ttest_rel, wilcoxon

from afield.results.comparison import CAVEAT, compare, remarks_on, signed_rank_test, t_test
from afield.results.table import make_table
from support.tables import PLAN, TARGETS, jobs_of, make_run, record, write_runs

# Accuracies of one number of test images: no two of these gains are equally large.
GAINS = {
    (t, seed): 0.01 + 0.0037 * i - 0.0051 * seed + 0.0007 * i**2 for i, t in enumerate(TARGETS) for seed in (0, 1, 2)
}


@pytest.fixture
def records(tmp_path):
    """Runs of `far` and `dann` with three seeds; `far` has a fourth, and `dann` lacks one of its targets."""
    runs = [make_run("dann", t, seed, 0.6) for t in TARGETS for seed in (0, 1, 2, 3) if (t, seed) != ("sv", 3)]
    runs += [make_run("far", *run, 0.6 + gain) for run, gain in GAINS.items()]
    runs += [make_run("far", t, 3, 0.6001 + number / 1000) for number, t in enumerate(TARGETS)]
    return write_runs(tmp_path / "records.jsonl", *runs)


def test_the_t_test_is_over_seeds_and_wilcoxons_over_pairs_of_runs(records):
    comparison = compare(make_table([records]), "far", "dann")
    averages = [100 * sum(GAINS[t, seed] for t in TARGETS) / 5 for seed in (0, 1, 2)]
    assert list(comparison.by_seed) == [0, 1, 2], "the fourth seed has no average in both rows"
    assert list(comparison.by_seed.values()) == pytest.approx(averages)
    assert len(comparison.by_pair) == 15 + 4
    over_seeds, over_pairs = comparison.tested()
    assert (over_seeds.n, over_pairs.n) == (3, 19)
    assert over_seeds.p == pytest.approx(ttest_rel(averages, [0, 0, 0]).pvalue)
    assert over_pairs.p == pytest.approx(wilcoxon(list(comparison.by_pair.values())).pvalue)


def test_a_test_does_not_depend_on_which_row_is_first(records):
    table = make_table([records])
    forth, back = compare(table, "far", "dann"), compare(table, "dann", "far")
    assert [verdict.p for verdict in forth.tested()] == pytest.approx([verdict.p for verdict in back.tested()])
    assert list(back.by_seed.values()) == pytest.approx([-gain for gain in forth.by_seed.values()])


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        (t_test([]), "paired t-test, n = 0 seeds: too few to say anything (at least 3)"),
        (t_test([1.0, 1.1]), "paired t-test, n = 2 seeds: too few to say anything (at least 3)"),
        (
            t_test([0.1 + 0.2, 0.3, 0.3]),
            "paired t-test, n = 3 seeds: no answer, as the gain is the same with every seed",
        ),
        (t_test([1.0, 2.0, 3.0]), "paired t-test, n = 3 seeds: p = 0.0742"),
        (t_test([100.0, 100.1, 100.2]), "paired t-test, n = 3 seeds: p < 0.0001"),
        (
            signed_rank_test([1.0, 2.0, 3.0, 4.0, 5.0, 0.0, 1e-14]),
            "Wilcoxon signed-rank test, n = 5 pairs of runs that differ: too few to say anything (at least 6)",
        ),
        (
            signed_rank_test([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
            "Wilcoxon signed-rank test, n = 6 pairs of runs that differ: p = 0.0312",
        ),
    ],
)
def test_a_verdict_names_its_method_and_n_and_says_where_n_is_too_small(verdict, said):
    assert str(verdict) == said


@pytest.mark.parametrize(("seeds", "said"), [(3, "-0.5 over 3 pairs of runs, ahead in 1"), (1, "+1.0 over 1 pair of")])
def test_of_one_target_the_gain_is_over_pairs_of_runs(tmp_path, seeds, said):
    gains = [0.01, -0.005, -0.02][:seeds]
    runs = [make_run("dann", "mm", seed, 0.6) for seed in range(seeds)]
    runs += [make_run("far", "mm", seed, 0.6 + gain) for seed, gain in enumerate(gains)]
    table = make_table([write_runs(tmp_path / "records.jsonl", *runs)])
    remarks = remarks_on(table, [compare(table, "far", "dann")], test=True)
    assert remarks[0].startswith(f"Run by run: `far` over `dann`: {said}")
    assert "too few seeds with all targets in both" in remarks[0]
    assert "p = " not in remarks[1]
    assert CAVEAT not in remarks, "there is no p-value to explain"


# Plans of several protocols


@pytest.fixture
def several(tmp_path):
    """The table of a plan with three seeds of which the rows have these accuracies, by label and job."""
    plan = {**PLAN, "seeds": [0, 1, 2]}
    (tmp_path / "plan.toml").write_text(tomli_w.dumps(plan), "utf-8")

    def make(accuracy):
        jobs = jobs_of(seeds=[0, 1, 2])
        runs = [record(job, value) for job in jobs if (value := accuracy(job)) is not None]
        return make_table([write_runs(tmp_path / "records.jsonl", *runs)], plan=tmp_path / "plan.toml")

    return make


def test_rows_of_several_protocols_are_paired_by_protocol_target_and_seed(several):
    def gain(job):
        angle = int(job.target[1:]) / 75 if job.place.protocol.startswith("rotated") else 0
        return 1 + job.seed + {"pairs/sv-mt": 3, "pairs/mt-mm": 6}.get(job.place.protocol, 0) + angle

    table = several(lambda job: 0.5 + (gain(job) / 100 if job.place.label == "Ganin" else 0))
    comparison = compare(table, "Ganin", "source only")
    assert len(comparison.by_pair) == 3 * (1 + 1 + 6)
    assert comparison.by_pair["rotated-mnist/domainbed", "m75", 2] == pytest.approx(4)
    # Each column weighs the same, and one of several targets is their average.
    assert comparison.by_seed == {seed: pytest.approx(1 + seed + (3 + 6 + 0.5) / 3) for seed in (0, 1, 2)}
    first, second, last = remarks_on(table, [comparison], test=True)
    assert first.startswith(
        "On the average of the columns that both rows have, seed by seed: `Ganin` over `source only`"
    )
    assert "+5.2 ± 0.6 (standard error), ahead in 3 of 3" in first
    assert "paired t-test, n = 3 seeds: p = 0.0" in second
    assert "Wilcoxon signed-rank test, n = 24 pairs of runs that differ: p < 0.0001" in second
    assert last == CAVEAT


def test_only_columns_that_both_rows_have_are_compared(several):
    table = several(lambda job: 0.5 + (0.01 * job.seed if job.place.label == "Tzeng" else 0))
    comparison = compare(table, "Tzeng", "source only")
    assert comparison.by_seed == {0: pytest.approx(0), 1: pytest.approx(1), 2: pytest.approx(2)}
    assert {protocol for protocol, _, _ in comparison.by_pair} == {"pairs/sv-mt"}
    apart = several(lambda job: 0.5 if (job.place.label == "Tzeng") == (job.place.protocol == "pairs/sv-mt") else None)
    nothing = compare(apart, "Tzeng", "source only")
    assert (nothing.by_seed, nothing.by_pair) == ({}, {})
    assert "too few seeds" in str(nothing)
    assert all(verdict.p is None and verdict.n == 0 for verdict in nothing.tested())


# The command


@pytest.fixture
def command(records, call):
    """Call `afield table` on the records, and take what it prints."""

    def printed(*words):
        code, out, err = call("table", records, *words)
        assert (code, err) == (0, "")
        return out

    return printed


def test_the_command_says_the_tests_results_below_the_table(command):
    words = ("--compare", "far,dann", "--test")
    for form in ([], ["--markdown"]):
        out = " ".join(command(*words, *form).split())
        assert "`far` against `dann`: paired t-test, n = 3 seeds: p = 0." in out
        assert "Wilcoxon signed-rank test, n = 19 pairs of runs that differ: p " in out
        assert CAVEAT in out
    assert r"\texttt{far} against \texttt{dann}: paired t-test" in command(*words, "--latex")
    assert "t-test" not in command("--compare", "far,dann")


def test_json_has_the_gains_and_the_tests(command):
    (values,) = json.loads(command("--compare", "far,dann", "--test", "--json"))["comparisons"]
    assert (values["first"], values["second"]) == ("far", "dann")
    assert [seed["seed"] for seed in values["seeds"]] == [0, 1, 2]
    assert len(values["pairs"]) == 19
    assert values["pairs"][0].keys() == {"target", "seed", "gain"}
    assert [(test["method"], test["n"]) for test in values["tests"]] == [
        ("paired t-test", 3),
        ("Wilcoxon signed-rank test", 19),
    ]
    assert all(0 < test["p"] < 1 for test in values["tests"])
    (untested,) = json.loads(command("--compare", "far,dann", "--json"))["comparisons"]
    assert "tests" not in untested
