"""JiGen: its permutations, the tiles that they move, and what is asked of ordered and of shuffled images."""

from itertools import product

import pytest
import torch
from torch import nn, tensor
from torch.nn.functional import cross_entropy

from afield.methods.jigen import JiGen, permutations, shuffle
from support.comparing import same
from support.generalizing import LABEL_NETWORK, build, make_batch, reached


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
    images = torch.cat((images[:, :3], shuffled.view(3, 2, *shuffled.shape[1:])), dim=1).flatten(0, 1)
    features = method.pool(method.backbone(images))
    losses = method.losses(batch)
    same(
        losses["classification"],
        cross_entropy(method.classifier(batch.by_domain(features)[:, :3].flatten(0, 1)), labels[:, :3].flatten()),
    )
    answers = torch.cat((torch.zeros(3, 3, dtype=torch.int64), puzzles.view(3, 2)), dim=1).flatten()
    same(losses["jigsaw"], 0.3 * cross_entropy(method.jigsaw(features), answers))
    assert reached(method, losses["classification"]) == LABEL_NETWORK
    assert reached(method, losses["jigsaw"]) == {"backbone", "jigsaw"}
