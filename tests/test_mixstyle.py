"""MixStyle: mixed statistics, partners of other domains, where in a backbone it acts, and that it acts in training."""

from copy import deepcopy

import pytest
import torch
from torch import tensor
from torch.distributions import Beta

import afield
from afield import AfieldError
from afield.data.batches import Batch
from afield.methods.create import create_method
from afield.methods.mixstyle import draw_partners, mix_styles
from support.comparing import normal, same
from support.generalizing import SOURCES, build, make_batch
from support.networks import FAMILIES

CPU = torch.device("cpu")


def statistics(maps):
    """Mean and deviation of each channel of each image."""
    return maps.mean(dim=(2, 3)), maps.std(dim=(2, 3), correction=0)


def loss_of(method, batch, seed=2):
    torch.manual_seed(seed)
    return method.losses(batch)["classification"]


# The formula.


def test_means_and_deviations_are_mixed_and_the_rest_of_a_map_stays():
    torch.manual_seed(0)
    maps, partners, shares = 5 * normal(4, 3, 6, 6) + normal(4, 3, 1, 1), tensor([2, 3, 1, 0]), torch.rand(4, 1, 1, 1)
    mixed = mix_styles(maps, partners, shares.double())
    for before, after in zip(statistics(maps), statistics(mixed), strict=True):
        share = shares[:, :, 0, 0]
        torch.testing.assert_close(after, share * before + (1 - share) * before[partners], rtol=1e-6, atol=1e-6)
    for maps_ in (maps, mixed):
        mean, deviation = (value[:, :, None, None] for value in statistics(maps_))
        maps_ -= mean
        maps_ /= deviation
    torch.testing.assert_close(mixed, maps, rtol=1e-6, atol=1e-6)


def test_a_share_of_1_leaves_a_map_and_a_share_of_0_gives_it_its_partners_style():
    torch.manual_seed(0)
    maps, partners = normal(4, 3, 6, 6), tensor([2, 3, 1, 0])
    same(mix_styles(maps, partners, torch.ones(4, 1, 1, 1)), maps)
    swapped = mix_styles(maps, partners, torch.zeros(4, 1, 1, 1))
    for value, own in zip(statistics(swapped), statistics(maps), strict=True):
        torch.testing.assert_close(value, own[partners], rtol=1e-5, atol=1e-6)


def test_statistics_are_constants_for_the_gradient():
    torch.manual_seed(0)
    maps, partners, shares = normal(4, 3, 6, 6).requires_grad_(), tensor([2, 3, 1, 0]), torch.full((4, 1, 1, 1), 0.25)
    seen = normal(4, 3, 6, 6)
    (gradient,) = torch.autograd.grad((seen * mix_styles(maps, partners, shares)).sum(), maps)
    sigma = (maps.detach().var(dim=(2, 3), correction=0, keepdim=True) + 1e-6).sqrt()
    same(gradient, seen * (0.25 * sigma + 0.75 * sigma[partners]) / sigma)


def test_a_map_without_contrast_is_mixed_without_dividing_by_zero():
    maps = torch.ones(2, 3, 4, 4, requires_grad=True)
    mixed = mix_styles(maps, tensor([1, 0]), torch.full((2, 1, 1, 1), 0.5))
    torch.testing.assert_close(mixed, torch.ones_like(mixed))
    assert torch.autograd.grad(mixed.sum(), maps)[0].isfinite().all()


# Partners.


@pytest.mark.parametrize("domains", [2, 3, 4])
def test_each_image_meets_one_of_another_domain_and_each_is_met_once(domains):
    met = set()
    for seed in range(20):
        torch.manual_seed(seed)
        partners = draw_partners(domains, 5, CPU)
        assert sorted(partners.tolist()) == list(range(5 * domains))
        pairs = {(own // 5, other // 5) for own, other in enumerate(partners.tolist())}
        assert len(pairs) == domains, "the images of a domain meet those of one other"
        assert all(own != other for own, other in pairs)
        met |= pairs
    assert len(met) == domains * (domains - 1), "and in time all others"


def test_with_one_source_images_meet_others_of_it():
    torch.manual_seed(0)
    assert sorted(draw_partners(1, 6, CPU).tolist()) == list(range(6))


# In training.


def test_without_mixing_it_is_the_baseline_and_mixing_changes_it():
    plain, batch = build("baseline"), make_batch()
    expected = loss_of(plain, batch)
    for probability, equal in ((0.0, True), (1.0, False)):
        method = build("mixstyle", probability=probability)
        method.load_state_dict(plain.state_dict())
        assert torch.equal(loss_of(method, batch), expected) == equal


def test_it_mixes_as_often_as_it_is_told_and_with_shares_of_the_beta_distribution(monkeypatch):
    method = build("mixstyle", probability=0.25)
    maps = normal(3 * SOURCES, 2, 4, 4)
    torch.manual_seed(0)
    mixed = [not torch.equal(method.mixer(maps), maps) for _ in range(400)]
    assert 0.18 < sum(mixed) / len(mixed) < 0.32
    drawn = []
    plain = Beta.sample
    monkeypatch.setattr(Beta, "sample", lambda self: drawn.append(self) or plain(self))
    method.mixer(maps)
    assert torch.allclose(drawn[0].concentration0, tensor(0.1))
    assert torch.allclose(drawn[0].concentration1, tensor(0.1))
    assert drawn[0].batch_shape[0] == len(maps), "each image has a share of its own"


def test_it_acts_in_training_only_and_a_copy_acts_by_itself():
    method = build("mixstyle", probability=1.0).eval()
    plain = build("baseline").eval()
    plain.load_state_dict(method.state_dict())
    images = make_batch().images
    assert torch.equal(method(images), plain(images))
    copy = deepcopy(method).train()
    assert torch.equal(method(images), plain(images)), "the copy's mode is its own"
    torch.manual_seed(0)
    first = copy.backbone(images)
    assert not torch.equal(first, copy.backbone(images))


def test_a_target_is_not_looked_at():
    method, batch = build("mixstyle", probability=1.0), make_batch(target=True)
    sources_only = Batch(batch.images[: batch.num_labelled], batch.labels, SOURCES)
    assert torch.equal(loss_of(deepcopy(method), batch), loss_of(method, sources_only))


def test_maps_keep_the_type_that_autocast_gave_them():
    method = build("mixstyle", probability=1.0).float()
    assert method.mixer(torch.randn(2 * SOURCES, 2, 4, 4).bfloat16()).dtype == torch.bfloat16


def test_a_trained_one_predicts_without_mixing(train_toy, tmp_path, toy):
    run = train_toy(tmp_path / "run", "mixstyle", 3, task="dg", settings={"method.probability": 1.0})
    model = afield.load(run.checkpoint)
    images = torch.rand(4, 3, model.preprocessing.image_size, model.preprocessing.image_size)
    assert torch.equal(model(images), model(images))


# Where it acts.


def hooked(backbone, image_size, **options):
    method = create_method(
        "mixstyle", backbone=backbone, image_size=image_size, num_classes=3, num_sources=2, **options
    )
    return [name for name, part in method.backbone.named_modules() if part._forward_hooks]


@pytest.mark.parametrize(
    ("backbone", "size", "stages", "places"),
    [
        ("digit", 32, 2, ["1", "3"]),
        ("digit", 32, 1, ["1"]),
        ("resnet18", 64, 2, ["model.layer1", "model.layer2"]),
        ("resnet18", 64, 3, ["model.layer1", "model.layer2", "model.layer3"]),
        (*FAMILIES["mobilenet"][:2], 2, ["model.blocks.1", "model.blocks.2"]),
        (*FAMILIES["convnext"][:2], 2, ["model.stages.0", "model.stages.1"]),
    ],
)
def test_it_acts_after_the_early_stages(backbone, size, stages, places):
    assert hooked(backbone, size, stages=stages) == places


def test_a_neck_does_not_hide_the_backbone():
    assert hooked("digit", 32, network={"neck": [6]}) == ["backbone.1", "backbone.3"]


@pytest.mark.parametrize("family", ["vit", "deit", "swin"])
def test_a_backbone_without_early_maps_is_refused_in_one_line(family):
    name, size, _ = FAMILIES[family]
    with pytest.raises(AfieldError, match=f"^backbone '{name}' has 0 early stages that give maps of channels, not 2$"):
        hooked(name, size)
    with pytest.raises(AfieldError, match=r"^backbone 'digit' has 2 early stages"):
        hooked("digit", 32, stages=3)
