"""A NaN: the good weights stay, and the batch and the generators of the step that brought it are saved beside them."""

import json

import pytest
import torch

from afield import AfieldError, load
from afield.results.folder import RunFolder
from afield.training.checkpoint import load_checkpoint
from afield.training.loop import Loop
from support.resuming import every

SETTINGS = every(100, 4) | {"training.accumulate": 2, "data.augmentation": "digits"}


@pytest.fixture(scope="module")
def diverged(train_toy, tmp_path_factory):
    """A run whose seventh step breaks it, and the batches it saw at each step."""
    folder, seen = tmp_path_factory.mktemp("diverged") / "run", []

    def train_step(self):
        plain = self.stream.draw

        def draw():
            seen.append((self.step, plain()))
            return seen[-1][1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.stream, "draw", draw)
            if self.step == 6:
                next(iter(self.method.parameters())).data.fill_(float("nan"))
            self.training()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loop, "_train_step", train_step)
        with pytest.raises(AfieldError) as caught:
            train_toy(folder, "baseline", settings=SETTINGS)
    return RunFolder(folder), seen, str(caught.value)


def test_the_message_says_where_the_good_weights_are_and_where_the_batch(diverged):
    folder, _, said = diverged
    assert (
        f"training diverged: NaN or infinity by step 7 in classification; {folder.last} keeps the good weights" in said
    )
    assert f"of step 4, {folder.diverged} the batch" in said
    assert "\n" not in said
    assert load_checkpoint(folder.last).step == 4
    assert all(value.isfinite().all() for value in load(folder.last).state_dict().values())


def test_the_batches_of_the_very_step_are_saved_as_it_saw_them(diverged):
    folder, seen, _ = diverged
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
    assert before["generators"]["cpu"].dtype == torch.uint8


def test_a_run_that_goes_on_well_leaves_no_post_mortem(diverged, train_toy):
    folder, _, _ = diverged
    run = train_toy(folder.path, "baseline", settings=SETTINGS, resume=True)
    assert run.step == 12
    assert not folder.diverged.exists()
    assert json.loads(folder.records.read_text("utf-8").splitlines()[-1])["event"] == "end"
