"""Records, selectors over them, and the result of a run that they give."""

import pytest

from afield import AfieldError
from afield.results.records import append_record, evaluations, read_records, rewrite_records
from afield.results.run import read_run
from afield.results.selection import select, target_score


def evaluation(step, sources, target):
    results = {name: {"accuracy": accuracy, "n": 10} for name, accuracy in zip("ab", sources, strict=True)}
    measured = {} if target is None else {"t": {"accuracy": target, "n": 10}}
    return {"event": "evaluation", "step": step, "sources": results, "target": measured}


RUN = [
    evaluation(1, (0.5, 0.5), 0.3), evaluation(2, (0.9, 0.7), 0.2), evaluation(3, (0.7, 0.9), 0.9),
    evaluation(4, (0.6, 0.6), 0.9), evaluation(5, (0.6, 0.6), 0.1),
]  # fmt: skip


@pytest.mark.parametrize(("selector", "step"), [("last", 5), ("source-val", 2), ("oracle", 3)])
def test_a_selector_chooses_and_of_equals_the_earliest(selector, step):
    assert select(RUN, selector)["step"] == step


def test_source_val_does_not_look_at_the_target():
    assert select([{**line, "target": {}} for line in RUN], "source-val")["step"] == 2


def test_selectors_that_cannot_choose_are_errors():
    with pytest.raises(AfieldError, match="unknown selector 'lsat'; did you mean 'last'"):
        select(RUN, "lsat")
    with pytest.raises(AfieldError, match="no evaluation"):
        select([], "last")
    with pytest.raises(AfieldError, match="needs a target"):
        select([evaluation(1, (0.1, 0.2), None)], "oracle")
    unlabelled = {**RUN[0], "target": {"t": {"accuracy": None, "n": 10}}}
    for call in (lambda: target_score(unlabelled), lambda: select([unlabelled, RUN[1]], "oracle")):
        with pytest.raises(AfieldError, match="target 't' has no labels, so its accuracy is unknown"):
            call()
    assert select([unlabelled, RUN[1]], "source-val") is RUN[1]


def test_a_run_is_seen_through_its_selector_and_never_through_the_oracle(tmp_path):
    rewrite_records(tmp_path / "records.jsonl", [{"event": "run"}, *RUN, {"event": "end", "step": 5, "seconds": 1.0}])
    run = read_run(tmp_path)
    assert (run.selector, run.step, run.accuracy) == ("last", 5, {"a": 0.6, "b": 0.6, "t": 0.1})
    assert run.checkpoint == tmp_path / "last.ckpt"
    chosen = run.select("source-val")
    assert (chosen.selector, chosen.step, chosen.accuracy) == ("source-val", 2, {"a": 0.9, "b": 0.7, "t": 0.2})
    assert chosen.checkpoint == tmp_path / "source-val.ckpt"
    with pytest.raises(AfieldError, match="never chosen by 'oracle'"):
        run.select("oracle")


def test_a_run_that_has_not_ended_has_no_result(tmp_path):
    rewrite_records(tmp_path / "records.jsonl", [{"event": "run"}, *RUN])
    with pytest.raises(AfieldError, match="has not ended"):
        read_run(tmp_path)


def test_records_tolerate_a_cut_last_line_and_no_other_damage(tmp_path):
    file = tmp_path / "records.jsonl"
    for line in RUN:
        append_record(file, line)
    whole = file.read_bytes()
    assert evaluations(read_records(file)) == RUN
    for cut in (1, 2, 30):
        file.write_bytes(whole[:-cut])
        assert read_records(file) == RUN[:-1]
    for damaged in (whole[3:], whole[:40] + b"\n" + whole[40:], b"\n" + whole, whole + b"\xff\xfe\n", whole + b"5\n"):
        file.write_bytes(damaged)
        with pytest.raises(AfieldError, match=r"records\.jsonl"):
            read_records(file)
    with pytest.raises(AfieldError, match="cannot read records"):
        read_records(tmp_path / "missing.jsonl")


def test_records_refuse_numbers_that_json_does_not_have(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        append_record(tmp_path / "records.jsonl", {"loss": float("nan")})
