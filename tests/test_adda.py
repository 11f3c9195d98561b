"""ADDA: its two phases, and the game that its target encoder plays with the discriminator."""

import pytest
import torch
from torch import nn

from afield.config.training import TrainingOptions
from afield.training.checkpoint import load_checkpoint
from afield.training.optimisers import kinds_of
from support.adversarial import build, make_batch
from support.comparing import same
from support.resuming import Killed, kill_before_step
from support.stepping import take_step


def parts_changed_by(method, batch):
    """The parts whose state one update by plain SGD changes."""
    before = {name: value.clone() for name, value in method.state_dict().items()}
    optimiser = torch.optim.SGD(method.parameters(), lr=0.1)

    def descend(losses):
        optimiser.zero_grad(set_to_none=True)
        sum(losses.values()).backward()
        optimiser.step()

    take_step(method.train(), batch, descend)
    return {name.split(".")[0] for name, value in method.state_dict().items() if not torch.equal(value, before[name])}


def test_adda_first_trains_a_source_model_and_leaves_an_equal_copy_of_its_encoder():
    method, batch = build("adda"), make_batch()
    method.phase = 0
    assert list(method.losses(batch)) == ["classification"]
    for _ in range(2):
        assert parts_changed_by(method, batch) == {"backbone", "source_backbone", "classifier"}
        copy, encoder = method.source_backbone.state_dict(), method.backbone.state_dict()
        assert all(torch.equal(copy[name], value) for name, value in encoder.items())


def test_adda_then_adapts_the_target_encoder_alone():
    method, batch = build("adda"), make_batch()
    method.phase = 0
    parts_changed_by(method, batch)
    method.phase = 1
    for _ in range(2):
        assert parts_changed_by(method, batch) == {"backbone", "discriminator"}
    method.eval()
    same(method(batch.images), method.classifier(method.pool(method.backbone(batch.images))))
    before = method(batch.images)
    method.drop_training_parts()
    assert torch.equal(method.eval()(batch.images), before)


def test_adda_copies_encoders_without_buffers_too():
    method, batch = build("adda"), make_batch()
    method.backbone = nn.Conv2d(3, 16, 3).double()
    method.source_backbone = nn.Conv2d(3, 16, 3).double()
    parts_changed_by(method, batch)
    assert torch.equal(method.source_backbone.weight, method.backbone.weight)


@pytest.mark.parametrize("score", [0.0, 1.5, -1.5])
def test_addas_encoder_learns_with_inverted_labels(score):
    method, batch = build("adda"), make_batch()
    method.phase = 1
    for parameter in method.discriminator[-1].parameters():
        nn.init.zeros_(parameter)
    nn.init.constant_(method.discriminator[-1].bias, score)  # D("source") = sigmoid(score) everywhere
    D = torch.tensor(score).sigmoid()
    assert method.losses(batch)["discriminator"].item() == pytest.approx((-D.log() - (1 - D).log()).item(), rel=1e-6)
    F = method.backbone(method.images(batch))
    assert method.encoder_loss(F).item() == pytest.approx(-D.log().item(), rel=1e-6)


def test_addas_encoder_and_discriminator_learn_as_equals_by_the_authors_recipe():
    method = build("adda")
    kinds = kinds_of(method, TrainingOptions(), pretrained=False)
    assert set(kinds.values()) == {("sgd", 1.0, 5e-4, None)}, "first as all methods do"
    method.phase = 1
    kinds = kinds_of(method, TrainingOptions(), pretrained=False)
    parts = {
        part: {kind for name, kind in kinds.items() if name.startswith(part)}
        for part in ("backbone.", "discriminator.", "classifier.")
    }
    assert parts["backbone."] == parts["discriminator."] == {("adam", 0.004, 0.0, (0.5, 0.999))}
    assert TrainingOptions().lr * 0.004 == pytest.approx(2e-4)
    assert {kind.rate for kind in parts["classifier."]} == {0.0}


def test_addas_classifier_stands_still_while_the_encoder_adapts(train_toy, tmp_path):
    settings = {"method.discriminator_width": 16, "network.hidden": [8], "training.checkpoint_every": 6}
    with pytest.MonkeyPatch.context() as patch:
        kill_before_step(patch, 6)
        with pytest.raises(Killed):
            train_toy(tmp_path / "half", "adda", settings=settings)
    train_toy(tmp_path / "whole", "adda", settings=settings)
    half, whole = (load_checkpoint(tmp_path / name / "last.ckpt").state["model"] for name in ("half", "whole"))
    moved = {name.split(".")[0] for name, value in half.items() if not torch.equal(value, whole[name])}
    assert moved == {"backbone", "discriminator"}


def test_addas_discriminator_learns_first_and_the_encoder_then_deceives_it():
    batch, method, by_hand = make_batch(), build("adda"), build("adda")
    method.phase = by_hand.phase = 1
    parts_changed_by(method, batch)
    by_hand.train()
    optimiser = torch.optim.SGD(by_hand.parameters(), lr=0.1)
    C, pool = by_hand.classifier, by_hand.pool
    target = C(pool(by_hand.backbone(batch.images[batch.num_labelled :])))
    source = C(pool(by_hand.source_backbone(batch.images[: batch.num_labelled]))).detach()
    D = by_hand.discriminator
    (-(D(source).sigmoid().log().mean() + (1 - D(target.detach()).sigmoid()).log().mean())).backward()
    optimiser.step()
    optimiser.zero_grad()
    (-D(target).sigmoid().log().mean()).backward(inputs=list(by_hand.backbone.parameters()))
    optimiser.step()
    same(method.state_dict(), by_hand.state_dict())
