"""A NaN: the good weights stay, and the batch and the generators of the step that brought it are saved beside them."""

import json
from pathlib import Path

import pytest
import torch

from afield import AfieldError, load
from afield.bench.run import read_plans, run_bench
from afield.results.folder import RunFolder
from afield.training.checkpoint import load_checkpoint
from afield.training.loop import Loop
from support.benching import register_toy_protocol, write_plan
from support.resuming import every

SETTINGS = every(100, 4) | {"training.accumulate": 2, "data.augmentation": "digits"}


@pytest.fixture(scope="module")
def diverged(train_toy, tmp_path_factory):
    """A run whose seventh step breaks it, the batches it saw at each step, and the generator before that step."""
    folder, seen, states = tmp_path_factory.mktemp("diverged") / "run", [], []

    def train_step(self):
        plain = self.stream.draw

        def draw():
            seen.append((self.step, plain()))
            return seen[-1][1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.stream, "draw", draw)
            if self.step == 6:
                states.append(torch.get_rng_state())
                next(iter(self.method.parameters())).data.fill_(float("nan"))
            self.training()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loop, "_train_step", train_step)
        with pytest.raises(AfieldError) as caught:
            train_toy(folder, "baseline", settings=SETTINGS)
    return RunFolder(folder), seen, str(caught.value), states


@pytest.fixture
def plan(toy, monkeypatch, tmp_path):
    """A plan of one run whose rate is absurd, in the current folder."""
    register_toy_protocol(toy, monkeypatch)
    monkeypatch.chdir(tmp_path)
    write_plan("plan.toml", {"training.lr": 1e30}, methods=["baseline"], targets=["dusk"], seeds=[0])
    return Path("plan.toml")


def test_the_message_says_where_the_good_weights_are_and_where_the_batch(diverged):
    folder, _, said, _ = diverged
    assert (
        f"training diverged: NaN or infinity by step 7 in classification; {folder.last} keeps the good weights" in said
    )
    assert f"of step 4, {folder.diverged} the batch" in said
    assert "\n" not in said
    assert load_checkpoint(folder.last).step == 4
    assert all(value.isfinite().all() for value in load(folder.last).state_dict().values())


def test_the_batches_of_the_very_step_are_saved_as_it_saw_them(diverged):
    folder, seen, _, _ = diverged
    saved = load_checkpoint(folder.diverged)
    assert saved.step == 7
    batches = [batch for _, batch in seen[-2:]]
    assert len(saved.state["batches"]) == 2
    for found, batch in zip(saved.state["batches"], batches, strict=True):
        assert torch.equal(found["images"], batch.images)
        assert torch.equal(found["labels"], batch.labels)
    assert saved.state["losses"]["classification"].isnan()
    assert any(value.isnan().any() for value in saved.state["model"].values())


def test_the_generators_stand_as_before_the_step(diverged):
    before = load_checkpoint(diverged[0].diverged).state["before"]
    assert before["stream"]["step"] == 6 * 2
    assert torch.equal(before["generators"]["cpu"], diverged[3][0])


def test_a_benchmark_keeps_the_post_mortem(plan):
    assert run_bench(plan, "out", 1, progress=False).recorded == 0
    (file,) = Path("out/diverged").iterdir()
    (job,) = read_plans([plan])
    assert file.name == f"{job.slug}.ckpt"
    assert load_checkpoint(file).state["batches"]
    assert not Path("out/runs").exists()


def test_a_run_that_goes_on_well_leaves_no_post_mortem(diverged, train_toy):
    folder, *_ = diverged
    run = train_toy(folder.path, "baseline", settings=SETTINGS, resume=True)
    assert run.step == 12
    assert not folder.diverged.exists()
    assert json.loads(folder.records.read_text("utf-8").splitlines()[-1])["event"] == "end"
