"""JiGen: domain generalization by solving jigsaw puzzles (Carlucci et al. 2019, arXiv 1903.06864).

    L = L_c(ordered images) + alpha L_p(all images)      equation 1

An image is cut into 3 x 3 tiles, which one of P permutations shuffles. A second head on the same features tells which
it was, and 0 for an ordered image; the shuffled images are not classified. Sources are pooled.

Differences from the paper:
- The share beta of ordered images is the same in every batch and for every source, not a probability for each image.
  In the authors' code, of the others one in P + 1 is left in order too.
- That shuffled images are not classified is what the paper says; in the authors' code it is a switch, off by default.
- The paper searches P permutations of large Hamming distance greedily. Ours are the best there are, by construction:
  see `permutations`.
- Where 3 does not divide the side of an image, as in 32 = 3 * 10 + 2, the tiles are cut from the middle and the frame
  around them stays (the authors resize to 222 or 225). The authors also grey single tiles at random; we do not.
"""

from itertools import product

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from afield import Batch, Losses, Method, MethodOptions, Shape, register_method
from afield.precision import in_float32

SIDE = 3
TILES = list(product(range(SIDE), repeat=2))


class JiGenOptions(MethodOptions):
    """Options of JiGen."""

    jigsaw_weight: float = Field(0.7, ge=0, description="alpha, weight of the jigsaw loss (authors' script: 0.7)")
    ordered_share: float = Field(
        0.6, gt=0, le=1, description="beta, share of the images that stay ordered (paper: 0.6; their script: 0.9)"
    )
    permutations: int = Field(30, ge=1, le=71, description="P, ways to shuffle the tiles (paper: 30)")


def permutations(count: int) -> Tensor:
    """(count, 9): row p names the tile that goes to each place; row 0 leaves them in order.

    Rows are the maps t -> a t + b of the field of nine elements, a not 0: the tile (row, column) is the number row +
    column i, modulo 3, with i * i = -1. Two such maps agree in one place at most, and those of one a in none. So any
    two rows differ in 8 places or 9, which is the largest least distance of more than nine permutations; and each tile
    comes to each place as often as any other, or once more.
    """
    factors = sorted(TILES[1:], key=lambda factor: factor != (1, 0))  # 1 first, whose first row is the order itself
    rows = [
        [SIDE * ((a * r - b * c + s) % SIDE) + (a * c + b * r + t) % SIDE for r, c in TILES]
        for (a, b), (s, t) in product(factors, TILES)
    ]
    return torch.tensor(rows[:count])


def shuffle(images: Tensor, orders: Tensor) -> Tensor:
    """Images (B, C, H, W) with their tiles moved: place k of image i gets its tile orders[i, k]."""
    count, channels, *size = images.shape
    height, width = (length // SIDE for length in size)
    top, left = (length % SIDE // 2 for length in size)
    middle = (..., slice(top, top + SIDE * height), slice(left, left + SIDE * width))
    tiles = images[middle].reshape(count, channels, SIDE, height, SIDE, width).permute(0, 2, 4, 1, 3, 5)
    moved = tiles.flatten(1, 2).gather(1, orders[:, :, None, None, None].expand(-1, -1, channels, height, width))
    shuffled = images.clone()
    shuffled[middle] = moved.view(tiles.shape).permute(0, 3, 1, 4, 2, 5).reshape_as(images[middle])
    return shuffled


@register_method("jigen", summary="solving jigsaw puzzles beside classification", reference="Carlucci et al. 2019")
class JiGen(Method):
    """Classifier and jigsaw head on one backbone, whose one pass sees ordered and shuffled images together."""

    Options = JiGenOptions
    sees_target = False
    training_only = frozenset({"jigsaw", "orders"})
    options: JiGenOptions
    orders: Tensor

    def __init__(self, shape: Shape, options: JiGenOptions) -> None:
        super().__init__(shape, options)
        self.jigsaw = nn.Linear(self.pool.width, 1 + options.permutations)
        self.register_buffer("orders", permutations(1 + options.permutations))

    def losses(self, batch: Batch) -> Losses:
        """Shuffle the rest of each source's images, and read both heads. A stream's images come in random order."""
        ordered = max(1, round(self.options.ordered_share * batch.per_domain))
        images, labels = batch.by_domain(self.images(batch)), batch.by_domain(batch.labels)[:, :ordered]
        puzzles = torch.zeros_like(batch.by_domain(batch.labels))
        puzzles[:, ordered:] = self.draw(batch.num_labelled - labels.numel()).view(batch.num_sources, -1)
        features = self.pool(self.backbone(shuffle(images.flatten(0, 1), self.orders[puzzles.flatten()])))
        with self.layout.of(*[(ordered, False)] * batch.num_sources):
            scores = self.classifier(batch.by_domain(features)[:, :ordered].flatten(0, 1))
        return {
            "classification": cross_entropy(scores, labels.flatten()),
            "jigsaw": self.options.jigsaw_weight * cross_entropy(in_float32(self.jigsaw, features), puzzles.flatten()),
        }

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # it would draw other numbers
    def draw(self, count: int) -> Tensor:
        """So many puzzles, none of them the ordered image."""
        return torch.randint(1, len(self.orders), (count,), device=self.orders.device)
