"""CCSA, JiGen, CrossGrad and Epi-FCR: what their papers say, term by term, and that each helps where it should."""

import math
from copy import deepcopy
from itertools import combinations, product

import pytest
import torch
from torch import nn, tensor
from torch.nn.functional import cross_entropy

from afield.batches import Batch
from afield.catalogue import create_method
from afield.losses import ContrastiveAlignment, contrastive_alignment
from afield.methods.crossgrad import FURTHEST, CrossGrad
from afield.methods.epi_fcr import EpiFCR
from afield.methods.jigen import JiGen, permutations, shuffle
from test_resume import Killed, assert_equal_runs, every, kill_before_step

METHODS = ("ccsa", "jigen", "crossgrad", "epi-fcr")
SOURCES, PER_DOMAIN, CLASSES = 3, 5, 4
LABEL_NETWORK = {"backbone", "classifier"}


def build(name, *, sources=SOURCES, hidden=(), **options):
    """In double precision, so that what is equal on paper is equal to many digits here."""
    torch.manual_seed(0)
    network = {"width": 8, "hidden": list(hidden)}
    return create_method(
        name, num_classes=CLASSES, num_sources=sources, image_size=12, network=network, **options
    ).double()


def make_batch(target=False, sources=SOURCES):
    torch.manual_seed(1)
    images = torch.randn(sources + target, PER_DOMAIN, 3, 12, 12, dtype=torch.float64)
    images += torch.arange(sources + target).view(-1, 1, 1, 1, 1)
    return Batch(images.flatten(0, 1), torch.randint(CLASSES, (sources * PER_DOMAIN,)), sources)


def same(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)


def losses_of(method, batch):
    """With the same draws each time."""
    torch.manual_seed(2)
    return method.losses(batch)


def reached(method, loss):
    """The parts of which one loss trains a parameter."""
    grads = torch.autograd.grad(loss, trained(method).values(), retain_graph=True, allow_unused=True)
    names = zip(trained(method), grads, strict=True)
    return {name.split(".")[0] for name, grad in names if grad is not None and grad.abs().max() > 0}


def trained(method):
    return {name: p for name, p in method.named_parameters() if p.requires_grad}


def descender(method, rate=0.05, weight=1.0):
    """What the loop's step does with losses."""
    optimiser = torch.optim.SGD(method.parameters(), lr=rate, momentum=0.9, weight_decay=5e-4)

    def descend(losses):
        optimiser.zero_grad()
        sum(value * (weight if name in method.ramped else 1) for name, value in losses.items()).backward()
        optimiser.step()

    return descend


# All four


@pytest.mark.parametrize("name", METHODS)
def test_a_target_is_not_looked_at(name):
    method, batch = build(name), make_batch(target=True)
    sources_only = Batch(batch.images[: batch.num_labelled], batch.labels, SOURCES)
    same(losses_of(deepcopy(method), batch), losses_of(method, sources_only))


@pytest.mark.parametrize("name", METHODS)
def test_losses_are_finite_and_one_step_moves_all_that_is_trained_and_nothing_else(name):
    method, batch = build(name), make_batch()
    before = {key: p.clone() for key, p in method.named_parameters()}
    losses = method.update(batch, descender(method))
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
    swapped = Batch(
        batch.by_domain(batch.images)[order].flatten(0, 1), batch.by_domain(batch.labels)[order].flatten(), SOURCES
    )
    # Whatever a source draws, it draws in either order.
    monkeypatch.setattr(JiGen, "draw", lambda self, count: 1 + torch.arange(count) % (count // SOURCES))
    shifts = (1, 2) if name == "epi-fcr" else (1,)
    same(*(totals(m, b, shifts, monkeypatch) for m, b in ((method, batch), (rearranged, swapped))))


def totals(method, batch, shifts, monkeypatch):
    """The losses, summed over all the episodes there could be: a swap makes one shift of the other."""
    found = []
    for shift in shifts:
        monkeypatch.setattr(torch, "randint", lambda *_, shift=shift, **__: tensor([shift]))
        found.append(deepcopy(method).losses(batch))
    return {key: sum(losses[key] for losses in found) for key in found[0]}


@pytest.mark.parametrize("name", METHODS)
def test_a_killed_and_resumed_run_equals_the_unbroken_one(train_toy, tmp_path, name):
    settings = every(5, 3) | {"network.hidden": [8], "network.dropout": 0.5}
    unbroken = train_toy(tmp_path / "unbroken", name, steps=8, task="dg", settings=settings)
    with pytest.MonkeyPatch.context() as patch:
        kill_before_step(patch, 5)
        with pytest.raises(Killed):
            train_toy(tmp_path / "killed", name, steps=8, task="dg", settings=settings)
    torch.rand(7)  # the caller's own generator must not matter
    resumed = train_toy(tmp_path / "killed", name, steps=8, task="dg", settings=settings, resume=True)
    assert_equal_runs(resumed, unbroken)


@pytest.mark.parametrize("name", METHODS)
def test_a_bf16_run_in_uda_keeps_its_losses_near_those_of_fp32(train_toy, tmp_path, name):
    def losses(precision):
        settings = {"training.precision": precision, "training.evaluate_every": 1}
        return train_toy(tmp_path / precision, name, steps=1, settings=settings).records[1]["losses"]

    assert losses("bf16") == pytest.approx(losses("fp32"), rel=0.05, abs=0.02)


# CCSA


def pairwise(features, labels, margin):
    """The two means of the formula, a pair at a time."""
    aligned, separated = [], []
    for (i, a), (j, b) in combinations([(d, k) for d in range(len(labels)) for k in range(len(labels[0]))], 2):
        if i == j:
            continue
        distance = (features[i, a] - features[j, b]).norm()
        if labels[i, a] == labels[j, b]:
            aligned.append(0.5 * distance**2)
        else:
            separated.append(0.5 * max(0.0, margin - distance) ** 2)
    return sum(aligned) / max(1, len(aligned)), sum(separated) / max(1, len(separated))


@pytest.mark.parametrize("margin", [1.0, 3.0])
def test_contrastive_alignment_is_the_mean_over_cross_domain_pairs(margin):
    torch.manual_seed(0)
    features, labels = torch.randn(3, 4, 2, dtype=torch.float64), torch.randint(3, (3, 4))
    same(contrastive_alignment(features, labels, margin), pairwise(features, labels, margin))
    same(ContrastiveAlignment(margin)(features, labels), contrastive_alignment(features, labels, margin))


def test_alignment_and_separation_have_known_values():
    # One class 3 apart; another class 0.6 from it, within a margin of 1, and one 10 away, beyond it.
    features = tensor([[[0.0, 0.0]] * 3, [[3.0, 0.0], [0.0, 0.6], [10.0, 0.0]]])
    alignment, separation = contrastive_alignment(features, tensor([[0, 0, 0], [0, 1, 2]]))
    assert alignment.item() == pytest.approx(9 / 2)
    assert separation.item() == pytest.approx(0.4**2 / 2 / 2)
    # What lies in one domain makes no pair.
    assert contrastive_alignment(tensor([[[0.0], [9.0]], [[5.0], [5.0]]]), tensor([[0, 0], [1, 1]])) == (0, 0)


def test_alignment_pulls_and_separation_pushes_even_where_features_agree():
    labels = tensor([[0], [0]])
    features = tensor([[[0.0]], [[2.0]]], requires_grad=True)
    same(torch.autograd.grad(contrastive_alignment(features, labels)[0], features)[0], tensor([[[-2.0]], [[2.0]]]))
    near = tensor([[[0.0]], [[0.25]]], requires_grad=True)
    pushed = torch.autograd.grad(contrastive_alignment(near, tensor([[0], [1]]))[1], near)[0]
    same(pushed, tensor([[[0.75]], [[-0.75]]]))  # a descent moves them apart
    equal = torch.zeros(2, 3, 4, requires_grad=True)
    sum(contrastive_alignment(equal, tensor([[0, 0, 1], [0, 1, 1]]))).backward()
    assert equal.grad.isfinite().all()


def test_ccsa_weighs_its_losses_as_the_authors_mean_over_one_to_three_pairs():
    method, batch = build("ccsa", alpha=0.4, margin=2.0), make_batch()
    features = method.pool(method.backbone(batch.images))
    pulled, pushed = pairwise(batch.by_domain(features), batch.by_domain(batch.labels), 2.0)
    losses = method.losses(batch)
    same(losses["classification"], 0.6 * cross_entropy(method.classifier(features), batch.labels))
    # Squares without their halves, in one mean over a pair of one class and three of different classes.
    same(losses["alignment"], 0.4 * (2 * pulled) / 4)
    same(losses["separation"], 0.4 * 3 * (2 * pushed) / 4)
    assert reached(method, losses["alignment"]) == {"backbone"}
    assert method.ramped == {"alignment", "separation"}


# JiGen


def test_permutations_are_bijections_far_from_each_other_and_the_order_comes_first():
    table = permutations(72)
    assert table.shape == (72, 9)
    assert torch.equal(table[0], torch.arange(9))
    assert torch.equal(table.sort(dim=1).values, torch.arange(9).expand(72, 9))
    distances = (table[:, None] != table[None]).sum(dim=-1)
    assert distances[~torch.eye(72, dtype=torch.bool)].min() == 8
    assert distances[:9, :9].sum() == 9 * 9 * 8  # the first nine: 9 from each other, as no tenth could be


@pytest.mark.parametrize("count", [9, 31, 72])
def test_permutations_are_balanced(count):
    places = nn.functional.one_hot(permutations(count), 9).sum(dim=0)  # (place, tile)
    assert places.max() - places.min() <= 1
    assert places.sum() == 9 * count


def test_the_papers_thirty_puzzles_and_their_share_are_the_default():
    method = build("jigen")
    assert (method.options.jigsaw_weight, method.options.ordered_share) == (0.7, 0.6)
    assert torch.equal(method.orders, permutations(31))
    assert method.jigsaw.out_features == 31
    torch.manual_seed(0)
    assert torch.equal(method.draw(2000).unique(), torch.arange(1, 31))  # all of them, and never the ordered image


@pytest.mark.parametrize(("side", "before", "tile"), [(9, 0, 3), (12, 0, 4), (16, 0, 5), (32, 1, 10), (224, 1, 74)])
def test_tiles_come_to_their_places_and_the_frame_stays(side, before, tile):
    torch.manual_seed(0)
    images, orders = torch.rand(2, 3, side, side), permutations(72)[[30, 50]]
    shuffled = shuffle(images, orders)
    inside = torch.zeros(side, side, dtype=torch.bool)
    for image, place in product(range(2), range(9)):
        rows, columns = (
            [slice(before + at * tile, before + (at + 1) * tile) for at in divmod(int(number), 3)]
            for number in (place, orders[image, place])
        )
        assert torch.equal(shuffled[image, :, *rows], images[image, :, *columns])
        inside[*rows] = True
    assert torch.equal(shuffled[:, :, ~inside], images[:, :, ~inside])
    assert (side - 3 * tile) < 3
    assert torch.equal(shuffle(images, permutations(1).expand(2, -1)), images)
    assert torch.equal(shuffle(shuffled, orders.argsort(dim=1)), images)


def test_jigen_classifies_ordered_images_alone_and_asks_the_puzzle_of_all(monkeypatch):
    method, batch = build("jigen", jigsaw_weight=0.3), make_batch()
    puzzles = tensor([4, 1, 30, 7, 7, 12])
    monkeypatch.setattr(JiGen, "draw", lambda self, count: puzzles[:count])
    # 0.6 of five: three ordered and two shuffled images of each source.
    images, labels = batch.by_domain(batch.images), batch.by_domain(batch.labels)
    shuffled = shuffle(images[:, 3:].flatten(0, 1), permutations(31)[puzzles])
    features = method.pool(method.backbone(torch.cat((images[:, :3].flatten(0, 1), shuffled))))
    losses = method.losses(batch)
    same(losses["classification"], cross_entropy(method.classifier(features[:9]), labels[:, :3].flatten()))
    answers = torch.cat((torch.zeros(9, dtype=torch.int64), puzzles))
    same(losses["jigsaw"], 0.3 * cross_entropy(method.jigsaw(features), answers))
    assert reached(method, losses["classification"]) == LABEL_NETWORK
    assert reached(method, losses["jigsaw"]) == {"backbone", "jigsaw"}


# CrossGrad


def domain_loss(method, images):
    domains = torch.arange(SOURCES).repeat_interleave(len(images) // SOURCES)
    return cross_entropy(method.domain_network(images), domains)


@pytest.mark.parametrize("epsilon", [1e-3, 1e-2])
def test_the_perturbation_raises_the_domain_loss_by_its_squared_gradient(epsilon):
    method, x = build("crossgrad", epsilon=epsilon), make_batch().images.requires_grad_()
    loss = domain_loss(method, x)
    (gradient,) = torch.autograd.grad(loss, x, retain_graph=True)
    moved = method.moved(x, loss)
    assert not moved.requires_grad
    rise = (domain_loss(method, moved) - loss).item()
    assert rise > 0
    assert rise == pytest.approx(epsilon * len(x) * gradient.square().sum().item(), rel=0.05)


def test_an_image_moves_by_its_own_loss_whatever_the_batch_and_never_too_far():
    method = build("crossgrad", epsilon=2.0)
    method.domain_network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 12 * 12, SOURCES).double())
    images = make_batch().images
    moves = []
    for part in (images, images[:1]):
        x = part.clone().requires_grad_()
        labels = torch.zeros(len(x), dtype=torch.int64)
        moves.append(method.moved(x, cross_entropy(method.domain_network(x), labels))[:1] - images[:1])
    same(*moves)
    assert moves[0].abs().max() > 0
    x = images.clone().requires_grad_()
    assert (method.moved(x, 1e6 * domain_loss(method, x)) - images).abs().max().item() == pytest.approx(FURTHEST)


def test_crossgrad_trains_each_network_on_images_moved_by_the_other():
    method, batch = build("crossgrad", alpha=0.2, epsilon=0.5), make_batch()
    x, domains = batch.images.clone().requires_grad_(), torch.arange(SOURCES).repeat_interleave(PER_DOMAIN)
    plain_labels, plain_domains = cross_entropy(method(x), batch.labels), domain_loss(method, x)
    x_d, x_l = (
        (x + 0.5 * len(x) * torch.autograd.grad(loss, x)[0].clamp(-2 / len(x), 2 / len(x))).detach()
        for loss in (plain_domains, plain_labels)
    )
    losses = method.losses(batch)
    expected = {
        "classification": 0.8 * cross_entropy(method(batch.images), batch.labels),
        "moved_classification": 0.2 * cross_entropy(method(x_d), batch.labels),
        "domain": 0.8 * domain_loss(method, batch.images),
        "moved_domain": 0.2 * cross_entropy(method.domain_network(x_l), domains),
    }
    same(losses, expected)
    for name, loss in losses.items():
        assert reached(method, loss) == ({"domain_network"} if "domain" in name else LABEL_NETWORK)
        ours, theirs = (
            torch.autograd.grad(value, list(method.parameters()), retain_graph=True, allow_unused=True)
            for value in (loss, expected[name])
        )
        same(ours, theirs)  # and so the moves are constants


def test_without_a_step_crossgrad_learns_labels_as_the_baseline_does():
    method, baseline, batch = build("crossgrad", epsilon=0.0), build("baseline"), make_batch()
    baseline.load_state_dict({k: v for k, v in method.state_dict().items() if not k.startswith("domain_network")})
    losses = method.losses(batch)
    same(losses["classification"] + losses["moved_classification"], baseline.losses(batch)["classification"])


# Epi-FCR


@pytest.mark.parametrize("bf16", [False, True])
def test_each_loss_of_epi_fcr_trains_exactly_what_its_equation_names(bf16):
    method, batch = build("epi-fcr").float(), make_batch()
    routes = {
        "classification": LABEL_NETWORK,
        "specific": {"source_backbones", "source_classifiers"},
        "epif": {"backbone"},
        "epic": {"classifier"},
        "epir": {"backbone"},
    }
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        losses = method.losses(Batch(batch.images.float(), batch.labels, SOURCES))
    assert {name: reached(method, loss) for name, loss in losses.items()} == routes
    assert method.ramped == {"epif", "epic", "epir"}


def test_losses_of_epi_fcr_are_those_of_the_paper_with_partners_of_the_other_source():
    weights = {"feature_weight": 0.7, "classifier_weight": 0.3, "random_weight": 0.2}
    method, batch = build("epi-fcr", sources=2, **weights), make_batch(sources=2)
    by_hand = deepcopy(method)
    images, labels = batch.by_domain(batch.images), batch.by_domain(batch.labels)
    f = by_hand.pool(by_hand.backbone(batch.images))
    specific = epif = epic = 0
    for i, j in ((0, 1), (1, 0)):
        own = by_hand.source_classifiers[i](by_hand.pool(by_hand.source_backbones[i](images[i])))
        specific += cross_entropy(own, labels[i])
        epif += cross_entropy(by_hand.source_classifiers[j](batch.by_domain(f)[i]), labels[i]) / 2
    by_hand.source_backbones.eval()
    for i, j in ((0, 1), (1, 0)):
        foreign = by_hand.pool(by_hand.source_backbones[j](images[i]))
        epic += cross_entropy(by_hand.classifier(foreign), labels[i]) / 2
    expected = {
        "classification": cross_entropy(by_hand.classifier(f), batch.labels),
        "specific": specific,
        "epif": 0.7 * epif,
        "epic": 0.3 * epic,
        "epir": 0.2 * cross_entropy(by_hand.random_classifier(f), batch.labels),
    }
    same(method.losses(batch), expected)
    # Episodes have moved nothing of the partners: their statistics are those of their own images.
    same(method.source_backbones.state_dict(), by_hand.source_backbones.state_dict())
    assert method.source_backbones.training


@pytest.mark.parametrize("sources", [2, 3, 5])
def test_a_partner_is_never_of_the_same_source_and_all_others_have_their_turn(sources):
    method, images = build("epi-fcr", sources=sources), torch.zeros(sources, 1, 3, 12, 12, dtype=torch.float64)
    torch.manual_seed(0)
    met = torch.stack([method.episodes(images)[0] for _ in range(40)])
    for source in range(sources):
        assert set(met[:, source].tolist()) == set(range(sources)) - {source}


def test_partners_start_as_copies_of_the_aggregate_and_the_weights_are_the_authors():
    method = build("epi-fcr")
    assert len(method.source_backbones) == len(method.source_classifiers) == SOURCES
    for backbone in method.source_backbones:
        same(backbone.state_dict(), method.backbone.state_dict())
    assert list(method.options.model_dump().values()) == [2.0, 0.05, 0.1]


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
        method.update(Batch(torch.cat(images), torch.cat(labels), 2), descend)
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


@pytest.mark.parametrize(("name", "margin"), [("ccsa", 5), ("crossgrad", 3), ("epi-fcr", 2.5)])
def test_a_mark_of_the_domain_is_relied_on_less_than_by_the_baseline(baseline_of_vectors, name, margin):
    gains = [learn(name, s, **VECTORS) - known for s, known in zip(SEEDS, baseline_of_vectors, strict=True)]
    assert min(gains) > 0
    assert sum(gains) / len(gains) > margin


def test_solving_puzzles_turns_a_network_from_tint_to_shape():
    gains = [learn("jigen", seed, **BARS) - learn("baseline", seed, **BARS) for seed in SEEDS]
    assert min(gains) > 0
    assert sum(gains) / len(gains) > 20
