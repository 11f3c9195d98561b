"""Whose statistics batch norm takes: the methods against plain layers through which the domains pass one by one."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, softplus

from afield.config.network import NetworkOptions
from afield.data.batches import Batch
from afield.losses import classifier_discrepancy
from afield.methods.create import create_method
from afield.methods.far import Seen
from afield.methods.jigen import shuffle
from afield.networks import Layout, bare_backbones, build_backbone
from support.comparing import same
from support.stepping import take_step

KINDS = ["together", "apart", "each", "frozen"]
SOURCES, PER_DOMAIN, CLASSES, SIZE, WIDTH = 2, 4, 3, 8, 8
LABELLED = SOURCES * PER_DOMAIN
NECK, HIDDEN = (12, 10), 9


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A file of a digit network whose statistics are not those it began with."""
    path = tmp_path_factory.mktemp("weights") / "digit.pth"
    torch.manual_seed(3)
    backbone = build_backbone(NetworkOptions(width=WIDTH), SIZE)
    for _ in range(3):
        backbone(2 * torch.randn(8, 3, SIZE, SIZE) + 1)
    torch.save(backbone.state_dict(), path)
    return path


@pytest.fixture
def build(weights):
    """Make a method with a neck and hidden layers, in double precision."""

    def make(name, kind, *, sources=SOURCES, neck=NECK, **options):
        torch.manual_seed(0)
        network = {"width": WIDTH, "neck": list(neck), "hidden": [HIDDEN], "batch_norm": kind}
        if kind == "frozen":
            network["weights"] = str(weights)
        method = create_method(
            name, num_classes=CLASSES, num_sources=sources, image_size=SIZE, network=network, **options
        )
        return method.double()

    return make


def make_batch(target=True, sources=SOURCES):
    torch.manual_seed(1)
    images = torch.randn(sources + target, PER_DOMAIN, 3, SIZE, SIZE, dtype=torch.float64)
    images = images + torch.arange(sources + target).view(-1, 1, 1, 1, 1)
    return Batch(images.flatten(0, 1), torch.randint(CLASSES, (sources * PER_DOMAIN,)), sources)


class PlainBackbone(nn.Module):
    """The digit network and its neck, written out."""

    def __init__(self, method):
        super().__init__()
        a, b, c = WIDTH, WIDTH, 2 * WIDTH
        self.maps = nn.Sequential(
            nn.Conv2d(3, a, 5, padding=2, bias=False), nn.BatchNorm2d(a), nn.MaxPool2d(3, 2, 1), nn.ReLU(),
            nn.Conv2d(a, b, 5, padding=2, bias=False), nn.BatchNorm2d(b), nn.MaxPool2d(3, 2, 1), nn.ReLU(),
            nn.Conv2d(b, c, 5, padding=2, bias=False), nn.BatchNorm2d(c), nn.ReLU(),
        )  # fmt: skip
        self.neck = nn.Sequential(
            nn.Linear(c, NECK[0]), nn.BatchNorm1d(NECK[0]), nn.ReLU(),
            nn.Linear(NECK[0], NECK[1]), nn.BatchNorm1d(NECK[1]), nn.ReLU(),
        )  # fmt: skip
        take_over(self, method.backbone)
        if method.layout.kind == "frozen":
            self.maps.eval()

    def forward(self, images):
        return self.neck(self.maps(images).mean(dim=(2, 3)))


def plain_head(classifier):
    layers = nn.Linear(NECK[-1], HIDDEN), nn.BatchNorm1d(HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES)
    return take_over(nn.Sequential(*layers), classifier)


def take_over(plain, network):
    """Layers of one network have the same order in the other."""
    values = list(network.state_dict().values())
    plain.double().load_state_dict(dict(zip(plain.state_dict(), values, strict=True)))
    return plain


def one_by_one(network, values, *rows):
    """Parts of so many rows, each through the whole network."""
    return torch.cat([network(part) for part in values.split(rows)])


def aside(network, values, *rows):
    """The same, and the running statistics stay."""
    norms = [layer for layer in network.modules() if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d)]
    counts = [layer.num_batches_tracked.clone() for layer in norms]
    for layer in norms:
        layer.momentum = 0.0
    output = one_by_one(network, values, *rows)
    for layer, count in zip(norms, counts, strict=True):
        layer.momentum, layer.num_batches_tracked = 0.1, count
    return output


def parts(kind, sources=SOURCES, target=True, rows=PER_DOMAIN):
    """The rows that share their statistics."""
    if kind == "each":
        return [rows] * (sources + target)
    if kind == "apart" and target:
        return [sources * rows, rows]
    return [(sources + target) * rows]


def assert_equal_networks(plain, network):
    """In gradients and in running statistics."""
    for (name, ours), (_, theirs) in zip(plain.named_parameters(), network.named_parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None), name
        if ours.grad is not None:
            same(theirs.grad, ours.grad)
    for ours, theirs in zip(plain.buffers(), network.buffers(), strict=True):
        same(theirs, ours)


def step(method, batch):
    """The losses of a step's one update, backpropagated."""
    return take_step(method, batch, lambda losses: sum(losses.values()).backward())


def assert_same_losses(given, expected):
    assert given.keys() == expected.keys()
    for name, loss in expected.items():
        same(given[name], loss)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_plain_layers(build, kind):
    method, batch = build("baseline", kind), make_batch()
    plain, head = PlainBackbone(method), plain_head(method.classifier)
    rows = parts(kind, target=False)
    loss = cross_entropy(one_by_one(nn.Sequential(plain, head), batch.images[:LABELLED], *rows), batch.labels)
    loss.backward()
    assert_same_losses(step(method, batch), {"classification": loss})
    assert_equal_networks(plain, method.backbone)
    assert_equal_networks(head, method.classifier)
    for network in (method, plain, head):
        network.eval()
    same(method(batch.images), head(plain(batch.images)))


@pytest.mark.parametrize("minus_trains", ["all", "FR"])
@pytest.mark.parametrize("kind", KINDS)
def test_far_scores_f_plus_and_aside_f_and_f_minus(build, kind, minus_trains):
    method, batch = build("far", kind, minus_trains=minus_trains), make_batch()
    plain, head, by_hand = PlainBackbone(method), plain_head(method.classifier), deepcopy(method)
    rows = parts(kind)
    F = one_by_one(plain, batch.images, *rows)[:, :, None, None]
    A = by_hand.fa(F)
    gate = by_hand.fr(F - A)
    f_plus, f, f_minus = (maps.flatten(1) for maps in (A + gate * (F - A), A, A + (1 - gate) * (F - A)))
    judge = head if minus_trains == "all" else deepcopy(head)  # a copy, whose gradients reach no one
    f_minus = f_minus if minus_trains == "all" else f_minus.detach()
    scores = one_by_one(head, f_plus, *rows), aside(head, f, *rows), aside(judge, f_minus, *rows)
    losses = by_hand.losses_seen(Seen(F.flatten(1), A.flatten(1), f_plus, *scores), F, batch)
    sum(losses.values()).backward()
    assert_same_losses(step(method, batch), losses)
    assert_equal_networks(plain, method.backbone)
    assert_equal_networks(head, method.classifier)


@pytest.mark.parametrize("kind", KINDS)
def test_mcd_moves_statistics_in_its_first_update_alone(build, kind):
    method, batch, rows = build("mcd", kind, generator_updates=2), make_batch(), parts(kind)
    plain, heads = PlainBackbone(method), nn.ModuleList(map(plain_head, method.classifier))
    ours = torch.optim.SGD([*plain.parameters(), *heads.parameters()], lr=0.1)
    theirs = torch.optim.SGD(method.parameters(), lr=0.1)

    def classification(first, second):
        return cross_entropy(first[:LABELLED], batch.labels) + cross_entropy(second[:LABELLED], batch.labels)

    def discrepancy(first, second):
        return classifier_discrepancy(first[LABELLED:], second[LABELLED:])

    def descend(optimiser, loss, only=None):
        optimiser.zero_grad()
        loss.backward()
        for parameter in optimiser.param_groups[0]["params"]:
            if only is not None and all(parameter is not p for p in only.parameters()):
                parameter.grad = None
        optimiser.step()

    vectors = one_by_one(plain, batch.images, *rows)
    first = classification(*(one_by_one(head, vectors, *rows) for head in heads))
    descend(ours, first)
    scores = [aside(head, aside(plain, batch.images, *rows), *rows) for head in heads]
    kept, apart = classification(*scores), -discrepancy(*scores)
    descend(ours, kept + apart, only=heads)
    for _ in range(2):
        together = discrepancy(*(aside(head, aside(plain, batch.images, *rows), *rows) for head in heads))
        descend(ours, together, only=plain)

    losses = take_step(method, batch, lambda update: descend(theirs, sum(update.values())))
    assert_same_losses(losses, {"classification": first, "kept": kept, "apart": apart, "together": together})
    for network, by_hand in ((method.backbone, plain), (method.classifier, heads)):
        for value, expected in zip(network.state_dict().values(), by_hand.state_dict().values(), strict=True):
            same(value, expected)


@pytest.mark.parametrize("phase", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_a_classifier_of_dctn_sees_its_source_and_later_the_target(build, kind, phase):
    weights = {"confusion_weight": 0.0, "pseudo_label_weight": 0.0}
    method, batch = build("dctn", kind, discriminator_width=6, **weights), make_batch()
    method.phase = phase
    plain, heads = PlainBackbone(method), nn.ModuleList(map(plain_head, method.classifier))
    *sources, target = one_by_one(plain, batch.images, *parts(kind)).split(PER_DOMAIN)
    pairs = [torch.cat((source, target)) for source in sources]
    rows = parts(kind, sources=1, target=bool(phase))
    scores = [one_by_one(head, pair[: sum(rows)], *rows) for head, pair in zip(heads, pairs, strict=True)]
    told = [D(pair.detach()).squeeze(1) for D, pair in zip(method.discriminators, pairs, strict=True)]
    losses = {
        "classification": cross_entropy(torch.cat([own[:PER_DOMAIN] for own in scores]), batch.labels),
        "discriminators": sum(softplus(-s[:PER_DOMAIN]).mean() + softplus(s[PER_DOMAIN:]).mean() for s in told),
    }
    losses["classification"].backward()
    nothing = {"confusion": 0 * scores[0].sum(), "pseudo_labels": 0 * scores[0].sum()} if phase else {}
    assert_same_losses(step(method, batch), losses | nothing)
    assert_equal_networks(plain, method.backbone)
    assert_equal_networks(heads, method.classifier)


@pytest.mark.parametrize("kind", KINDS)
def test_the_classifier_of_jigen_sees_ordered_images_alone(build, kind):
    method, batch = build("jigen", kind, ordered_share=0.5), make_batch(target=False)
    plain, head = PlainBackbone(method), plain_head(method.classifier)
    ordered = PER_DOMAIN // 2
    puzzles = torch.tensor([0, 0, 3, 4, 0, 0, 5, 6])
    method.draw = lambda count: torch.arange(3, 3 + count)
    images = shuffle(batch.images, method.orders[puzzles])
    vectors = one_by_one(plain, images, *parts(kind, target=False))
    scores = one_by_one(head, vectors[puzzles == 0], *parts(kind, target=False, rows=ordered))
    losses = {
        "classification": cross_entropy(scores, batch.labels[puzzles == 0]),
        "jigsaw": 0.7 * cross_entropy(deepcopy(method.jigsaw)(vectors), puzzles),
    }
    sum(losses.values()).backward()
    assert_same_losses(step(method, batch), losses)
    assert_equal_networks(plain, method.backbone)
    assert_equal_networks(head, method.classifier)


def statistics(network):
    return {name: value.clone() for name, value in network.named_buffers() if "running" in name}


@pytest.mark.parametrize("name", ["baseline", "far", "mcd", "adda", "epi-fcr", "crossgrad"])
def test_frozen_statistics_stay_whatever_is_trained_and_evaluated(build, weights, name):
    method, batch = build(name, "frozen"), make_batch()
    kept = {key: value.double() for key, value in torch.load(weights).items() if "running" in key}
    start = statistics(method.backbone.neck)
    optimiser = torch.optim.SGD((p for p in method.parameters() if p.requires_grad), lr=0.1)

    def descend(losses):
        optimiser.zero_grad()
        sum(losses.values()).backward()
        optimiser.step()

    for phase in (0, 1):
        method.phase = phase
        method.train()
        take_step(method, batch, descend)
        method.eval()
        method(batch.images)
    method.train()
    take_step(method, batch, descend)
    backbones = bare_backbones(method)
    assert len(backbones) == {"adda": 2, "epi-fcr": 1 + SOURCES, "crossgrad": 2}.get(name, 1)
    for backbone in backbones:
        assert all(torch.equal(value, kept[key]) for key, value in statistics(backbone).items())
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in backbones[0].parameters())
    assert all(not torch.equal(value, start[key]) for key, value in statistics(method.backbone.neck).items())


def test_apart_the_target_takes_no_part_in_the_sources_batch_norm_and_together_it_does(build):
    def sources_features(kind, shift):
        method, batch = build("dann", kind), make_batch()
        batch.images[LABELLED:] += shift
        method.layout.note(SOURCES, PER_DOMAIN)
        return method.backbone(batch.images)[:LABELLED]

    assert torch.equal(sources_features("apart", 0), sources_features("apart", 3))
    assert not torch.equal(sources_features("together", 0), sources_features("together", 3))


def test_a_copy_of_a_method_has_a_batch_norm_of_its_own(build):
    method, batch = build("dann", "each"), make_batch()
    before, copy = statistics(method), deepcopy(method)
    step(copy, batch)
    assert all(torch.equal(value, before[name]) for name, value in statistics(method).items())
    assert all(not torch.equal(value, before[name]) for name, value in statistics(copy).items())


def test_a_layer_that_sees_other_rows_than_a_batchs_takes_all_together_and_says_so(build):
    method = build("dann", "each")
    method.layout.note(SOURCES, PER_DOMAIN)
    images = make_batch().images[: PER_DOMAIN + 1]
    with pytest.warns(UserWarning, match="'each' has no effect on a layer that sees"):
        features = method.backbone(images)
    same_network = build("dann", "together")
    torch.testing.assert_close(features, same_network.backbone(images))


def test_rows_are_divided_by_domain_where_they_fit_the_layout():
    layout = Layout("each")
    layout.note(SOURCES, PER_DOMAIN)
    assert layout.divide(3 * PER_DOMAIN) == [PER_DOMAIN] * 3
    assert layout.divide(PER_DOMAIN + 1) == []
    with layout.of((2, False), (3, True)):
        assert layout.divide(5) == [2, 3]
    assert layout.divide(PER_DOMAIN) == [PER_DOMAIN]


@pytest.mark.parametrize("kind", ["apart", "each"])
def test_outside_of_a_training_step_it_says_that_rows_are_not_divided(build, kind):
    method = build("dann", kind)
    with pytest.warns(UserWarning, match="is used outside of `training_step`"):
        method.losses(make_batch())
