"""Random changes of training images that keep their class, made on the device to a whole batch at once.

Two recipes: `digits` shifts an image by a few pixels; `photos` does the field's usual: a random part of the image
resized to the whole (random resized crop), half of them mirrored, brightness, contrast, saturation and hue changed, and
one in ten made grey.

Each image has random numbers of its own, drawn on the device from the stream's generator. torchvision's transforms draw
one set of numbers for a whole batch. kornia's draw from the global generator, and the host asks what was drawn
(`bool(to_apply.any())`), so that a step could not be recorded as a CUDA graph. So the maps are torch's own,
`grid_sample` and a product with a 3 x 3 matrix of colours, or two kernels that do both and write nothing in between.
"""

import math
from functools import cache

import torch
from torch import Generator, Tensor
from torch.nn.functional import grid_sample

from afield.config.data import Augmentation
from afield.kernels import kernels_run

try:
    from afield.kernels import photos as kernels
except ImportError:  # without Triton
    kernels = None  # type: ignore[assignment]

SHIFT = 2  # pixels, of a digit
CROP = 0.7, 1.0  # share of a photograph's area that a crop keeps (DomainBed's)
RATIO = 3 / 4, 4 / 3  # width to height of a crop
JITTER = 0.3  # of brightness, contrast and saturation (DomainBed's)
HUE = 0.3 * 2 * math.pi  # largest turn of the hue, in radians (DomainBed's)
GREY = 0.1  # share of photographs made grey (DomainBed's)
IMAGES_AT_A_TIME = 8
TILE = 1024  # pixels that a program of the kernels has
LUMINANCE = (0.299, 0.587, 0.114)


def augment(pool: Tensor, picks: Tensor, recipe: Augmentation, generator: Generator) -> Tensor:
    """The picked images of a pool (N, H, W, 3), changed: uint8 or, for photographs, float in 0..1, channels last."""
    if recipe == "digits":
        return shifted(pool, picks, generator)
    if recipe == "photos":
        return changed_photos(pool, picks, generator)
    return pool[picks]


def shifted(pool: Tensor, picks: Tensor, generator: Generator, reach: int = SHIFT) -> Tensor:
    """Each image moved by its own random offset; its edges repeat. Images are square."""
    device, count, side = pool.device, len(picks), pool.shape[1]
    places = torch.arange(side, device=device).expand(2, count, side)
    offsets = torch.randint(-reach, reach + 1, (2, count, 1), generator=generator, device=device)
    places = (places + offsets).clamp(0, side - 1)
    return pool[picks[:, None, None], places[0, :, :, None], places[1, :, None, :]]


def changed_photos(pool: Tensor, picks: Tensor, generator: Generator) -> Tensor:
    """The picked photographs of a pool (N, H, W, 3) of bytes: cropped, mirrored and recoloured, as float in 0..1."""
    numbers = _drawn(len(picks), generator, pool.device)
    with torch.autocast(pool.device.type, enabled=False):  # bf16 has too few shades of a colour
        if pool.is_cuda and pool.is_contiguous() and not torch.compiler.is_compiling() and kernels_run(pool.device):
            with torch.cuda.device_of(pool):  # type: ignore[no-untyped-call]
                return changed_by_kernels(pool, picks, numbers)
        return changed_plainly(pool[picks], numbers)


def _drawn(count: int, generator: Generator, device: torch.device) -> Tensor:
    """What is changed of each image: width, height and place of the part, brightness, contrast, saturation, hue."""

    def draw(low: float, high: float) -> Tensor:
        return torch.rand(count, generator=generator, device=device) * (high - low) + low

    area, ratio = draw(*CROP), draw(math.log(RATIO[0]), math.log(RATIO[1])).exp()
    width, height = ((area * r).sqrt().clamp(max=1) for r in (ratio, 1 / ratio))
    mirror = torch.where(draw(0, 1) < 0.5, -1.0, 1.0)
    across, down = draw(-1, 1) * (1 - width), draw(-1, 1) * (1 - height)
    factors = [draw(1 - JITTER, 1 + JITTER) for _ in range(3)]
    factors[2] = torch.where(draw(0, 1) < GREY, torch.zeros_like(factors[2]), factors[2])
    return torch.stack((width * mirror, height, across, down, *factors, draw(-HUE, HUE)))


def changed_plainly(images: Tensor, numbers: Tensor) -> Tensor:
    """The images, changed by these numbers; (N, H, W, 3)."""
    # In host memory a few images at a time: what is made of them on the way then stays in the processor's caches.
    count = IMAGES_AT_A_TIME if images.device.type == "cpu" else len(images)
    changed = images.new_empty(len(images), 3, *images.shape[1:3], dtype=torch.float32)
    for start in range(0, len(images), count):
        part = slice(start, start + count)
        values = images[part].permute(0, 3, 1, 2).contiguous().float() / 255  # bytes are moved faster than floats
        wide, high, x, y, brightness, contrast, saturation, hue = numbers[:, part]
        recoloured(resized_part(values, wide, high, x, y), brightness, contrast, saturation, hue, changed[part])
    return changed.permute(0, 2, 3, 1)


def changed_by_kernels(pool: Tensor, picks: Tensor, numbers: Tensor) -> Tensor:
    """The same of images picked from a pool, without a copy of theirs on the way."""
    count, (high, wide) = len(picks), pool.shape[1:3]
    matrix, moved = _colour_change(*numbers[4:])
    table = torch.cat((numbers[:4].t(), matrix.flatten(1), moved[:, None]), dim=1)
    tiles = -(-high * wide // TILE)
    sums = table.new_empty(count, tiles)
    out = table.new_empty(count, high, wide, 3)
    sizes = {"H": high, "W": wide, "TILE": TILE, "TILES": tiles, "enable_fp_fusion": True}
    luminance, _, _ = _constants(pool.device)
    kernels.luminances[(count, tiles)](pool, picks, table, luminance, sums, **sizes)
    kernels.change[(count, tiles)](pool, picks, table, sums, out, ALL_TILES=1 << (tiles - 1).bit_length(), **sizes)
    return out


def resized_part(images: Tensor, width: Tensor, height: Tensor, across: Tensor, down: Tensor) -> Tensor:
    """The part of each image around (across, down), in -1..1, so wide and high (1: all of it), at the image's size.

    A negative width mirrors.
    """
    # Not by affine_grid, which also turns: here a column's place depends on the column alone, and a row's on the row.
    columns, rows = (_centres(size, images.device) for size in (images.shape[3], images.shape[2]))
    grid = images.new_empty(len(images), images.shape[2], images.shape[3], 2)
    grid[..., 0] = (width[:, None] * columns + across[:, None])[:, None, :]
    grid[..., 1] = (height[:, None] * rows + down[:, None])[:, :, None]
    return grid_sample(images, grid, padding_mode="border", align_corners=False)


def _centres(count: int, device: torch.device) -> Tensor:
    """The middles of so many pixels from -1 to 1."""
    return (2 * torch.arange(count, device=device) + 1) / count - 1


def recoloured(
    images: Tensor, brightness: Tensor, contrast: Tensor, saturation: Tensor, hue: Tensor, out: Tensor | None = None
) -> Tensor:
    """Images (N, 3, H, W) in 0..1 with factors of brightness, contrast and saturation, and a turn of the hue.

    All four are linear in a pixel's colour, but for the grey that contrast moves towards; so they are one 3 x 3 matrix
    and one added colour per image. Equal factors of 1 and no turn leave an image as it is.
    """
    matrix, moved = _colour_change(brightness, contrast, saturation, hue)
    luminance, _, _ = _constants(images.device)
    added = (moved * (images.mean(dim=(2, 3)) @ luminance))[:, None, None, None]
    return torch.clamp(torch.einsum("nij,njhw->nihw", matrix, images).add_(added), 0, 1, out=out)


def _colour_change(brightness: Tensor, contrast: Tensor, saturation: Tensor, hue: Tensor) -> tuple[Tensor, Tensor]:
    """The matrix of colours of each image, (N, 3, 3), and how much of its mean luminance is added."""
    luminance, identity, cross = _constants(hue.device)
    grey = luminance.expand(3, 3)  # a colour to its luminance, in all channels

    def each(values: Tensor) -> Tensor:
        return values[:, None, None]

    colours = each(saturation) * identity + each(1 - saturation) * grey
    matrix = each(brightness * contrast) * (colours @ _hue_turn(hue, identity, cross))
    return matrix, brightness * (1 - contrast)


@cache
def _constants(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Made once: recording a step, the host may not copy anything to the device."""
    cross = torch.tensor([[0.0, -1, 1], [1, 0, -1], [-1, 1, 0]]) / 3**0.5
    return torch.tensor(LUMINANCE, device=device), torch.eye(3, device=device), cross.to(device)


def _hue_turn(angle: Tensor, identity: Tensor, cross: Tensor) -> Tensor:
    """Matrices (N, 3, 3) that turn colours about the grey axis (Rodrigues' formula); grey stays as it is."""
    cos, sin = torch.cos(angle)[:, None, None], torch.sin(angle)[:, None, None]
    return cos * identity + sin * cross + (1 - cos) / 3
