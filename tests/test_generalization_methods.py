"""CCSA, JiGen, CrossGrad and Epi-FCR together: what holds for all of them, and that each helps where it should."""

import math
from copy import deepcopy

import pytest
import torch
from torch import nn, tensor

from afield.data.batches import Batch
from afield.methods.create import create_method
from afield.methods.crossgrad import CrossGrad
from afield.methods.epi_fcr import EpiFCR
from afield.methods.jigen import JiGen
from support.comparing import same, swap_first_sources
from support.generalizing import LABEL_NETWORK, SOURCES, build, make_batch, trained
from support.stepping import take_step

METHODS = ("ccsa", "jigen", "crossgrad", "epi-fcr")


def losses_of(method, batch):
    """With the same draws each time."""
    torch.manual_seed(2)
    return method.losses(batch)


def descender(method, rate=0.05, weight=1.0):
    """What the loop's step does with losses."""
    optimiser = torch.optim.SGD(method.parameters(), lr=rate, momentum=0.9, weight_decay=5e-4)

    def descend(losses):
        optimiser.zero_grad()
        sum(value * (weight if name in method.ramped else 1) for name, value in losses.items()).backward()
        optimiser.step()

    return descend


@pytest.mark.parametrize("name", METHODS)
def test_a_target_is_not_looked_at(name):
    method, batch = build(name), make_batch(target=True)
    sources_only = Batch(batch.images[: batch.num_labelled], batch.labels, SOURCES)
    same(losses_of(deepcopy(method), batch), losses_of(method, sources_only))


@pytest.mark.parametrize("name", METHODS)
def test_losses_are_finite_and_one_step_moves_all_that_is_trained_and_nothing_else(name):
    method, batch = build(name), make_batch()
    before = {key: p.clone() for key, p in method.named_parameters()}
    losses = take_step(method, batch, descender(method))
    assert all(loss.isfinite() and loss.shape == () for loss in losses.values())
    moved = {key for key, p in method.named_parameters() if not torch.equal(p, before[key])}
    assert moved == set(trained(method))
    assert {key.split(".")[0] for key in set(before) - moved} == ({"random_classifier"} if name == "epi-fcr" else set())


@pytest.mark.parametrize(
    "name", ["ccsa", "crossgrad", "epi-fcr"]
)  # JiGen's one pass sees shuffled images, as the paper's
@pytest.mark.parametrize("hidden", [(), (6,)])
def test_running_statistics_are_those_of_the_images_inference_will_see(name, hidden):
    method, batch = build(name, hidden=hidden), make_batch()
    plain = deepcopy(method)
    losses_of(method, batch)
    plain.classifier(plain.pool(plain.backbone(batch.images)))
    for part in LABEL_NETWORK:
        same(getattr(method, part).state_dict(), getattr(plain, part).state_dict())


@pytest.mark.parametrize("name", METHODS)
def test_dropping_the_parts_of_training_leaves_a_plain_network_with_the_same_scores(name):
    method, images = build(name).eval(), make_batch().images
    before = method(images)
    same(before, method.classifier(method.pool(method.backbone(images))))
    method.drop_training_parts()
    assert torch.equal(method(images), before)
    assert {key.split(".")[0] for key in method.state_dict()} == LABEL_NETWORK


@pytest.mark.parametrize("name", METHODS)
def test_the_order_of_the_sources_does_not_matter(name, monkeypatch):
    """Swapping two sources, with what is theirs in the method, leaves every loss the same."""
    order, batch = [1, 0, 2], make_batch()
    method = build(name)
    rearranged = deepcopy(method)
    if name == "crossgrad":
        head = rearranged.domain_network[2][0]
        head.weight.data, head.bias.data = head.weight.data[order], head.bias.data[order]
    if name == "epi-fcr":
        for part in ("source_backbones", "source_classifiers"):
            setattr(rearranged, part, nn.ModuleList(getattr(rearranged, part)[i] for i in order))
    # Whatever a source draws, it draws in either order.
    monkeypatch.setattr(JiGen, "draw", lambda self, count: 1 + torch.arange(count) % (count // SOURCES))
    shifts = (1, 2) if name == "epi-fcr" else (1,)
    same(*(totals(m, b, shifts, monkeypatch) for m, b in ((method, batch), (rearranged, swap_first_sources(batch)))))


def totals(method, batch, shifts, monkeypatch):
    """The losses, summed over all the episodes there could be: a swap makes one shift of the other."""
    found = []
    for shift in shifts:
        monkeypatch.setattr(torch, "randint", lambda *_, shift=shift, **__: tensor([shift]))
        found.append(deepcopy(method).losses(batch))
    return {key: sum(losses[key] for losses in found) for key in found[0]}


@pytest.mark.parametrize("name", METHODS)
def test_a_bf16_run_in_uda_keeps_its_losses_near_those_of_fp32(train_toy, tmp_path, name):
    def losses(precision):
        settings = {"training.precision": precision, "training.evaluate_every": 1}
        return train_toy(tmp_path / precision, name, steps=1, settings=settings).records[1]["losses"]

    assert losses("bf16") == pytest.approx(losses("fp32"), rel=0.05, abs=0.02)


# Each helps where the shift is the one it is made for: the label goes with the domain in the sources, and the domain's
# mark with neither in the target.


def learn(name, seed, draw, prepare, steps, per_domain, peak):
    """Train as the loop would, and say how many of the target are right, in percent."""
    torch.manual_seed(seed)
    method = prepare(create_method(name, num_classes=2, num_sources=2, image_size=9, network={"width": 8}))
    generator = torch.Generator().manual_seed(100 + seed)
    rate, weight = torch.zeros(()), torch.zeros(())
    descend = descender(method, rate, weight)
    for step in range(steps):
        rate.fill_(peak * 0.5 * (1 + math.cos(math.pi * step / steps)))
        weight.fill_(2 / (1 + math.exp(-10 * step / steps)) - 1)
        images, labels = zip(*(draw(source, per_domain, generator) for source in (0, 1)), strict=True)
        take_step(method, Batch(torch.cat(images), torch.cat(labels), 2), descend)
    images, labels = draw(None, 4000, generator)
    with torch.no_grad():
        return 100 * (method.eval()(images).argmax(dim=1) == labels).double().mean().item()


def marked(source, count, generator):
    """Labels, and the mark +1 or -1 of the domain: in a source all but 2 % of the labels agree with it."""
    likely = 0.5 if source is None else (0.98, 0.02)[source]
    labels = (torch.rand(count, generator=generator) < likely).long()
    marks = torch.randint(2, (count,), generator=generator) if source is None else torch.full((count,), 1 - source)
    return labels, 2.0 * marks - 1


def vectors(source, count, generator):
    """The label at 0.5 in the first of six values and the domain's mark at 0.7 in the second, with noise."""
    labels, marks = marked(source, count, generator)
    values = 0.35 * torch.randn(count, 6, generator=generator)
    values[:, 0] += 0.5 * (2.0 * labels - 1)
    values[:, 1] += 0.7 * marks
    return values, labels


def bars(source, count, generator):
    """A lying or a standing bar somewhere on a ground whose tint is the domain's mark, with noise."""
    labels, marks = marked(source, count, generator)
    at = nn.functional.one_hot(torch.randint(9, (count,), generator=generator), 9).float()
    lying = at[:, None, :, None].expand(-1, 3, -1, 9)
    shapes = torch.where(labels.view(-1, 1, 1, 1) == 0, lying, lying.mT)
    tints = marks.view(-1, 1, 1, 1) * tensor([1.0, -1.0, 0.0]).view(1, 3, 1, 1)
    return shapes + tints + 0.5 * torch.randn(count, 3, 9, 9, generator=generator), labels


def linear(method):
    """A linear map in place of every backbone, so that vectors take the place of images."""
    method.backbone, method.pool = nn.Linear(6, 16), nn.Identity()
    if isinstance(method, CrossGrad):
        method.domain_network[0], method.domain_network[1] = nn.Linear(6, 16), nn.Identity()
    if isinstance(method, EpiFCR):
        method.source_backbones = nn.ModuleList(deepcopy(method.backbone) for _ in method.source_backbones)
    return method


SEEDS = range(4)
VECTORS = {"draw": vectors, "prepare": linear, "steps": 250, "per_domain": 32, "peak": 0.05}
BARS = {"draw": bars, "prepare": lambda method: method, "steps": 120, "per_domain": 16, "peak": 0.02}


@pytest.fixture(scope="module")
def baseline_of_vectors():
    return [learn("baseline", seed, **VECTORS) for seed in SEEDS]


@pytest.mark.parametrize(("name", "margin"), [("ccsa", 3), ("crossgrad", 3), ("epi-fcr", 2.5)])
def test_a_mark_of_the_domain_is_relied_on_less_than_by_the_baseline(baseline_of_vectors, name, margin):
    gains = [learn(name, s, **VECTORS) - known for s, known in zip(SEEDS, baseline_of_vectors, strict=True)]
    assert min(gains) > 0
    assert sum(gains) / len(gains) > margin


def test_solving_puzzles_turns_a_network_from_tint_to_shape():
    gains = [learn("jigen", seed, **BARS) - learn("baseline", seed, **BARS) for seed in SEEDS]
    assert min(gains) > 0
    assert sum(gains) / len(gains) > 20
