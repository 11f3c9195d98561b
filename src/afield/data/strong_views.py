"""Strong views: an image changed as far as its class allows, to learn that a prediction should not change with it.

Both kinds take normalised images (B, 3, H, W), turn, shear, zoom, shift and recolour each, and cover a square of it.
They draw from torch's own generator, on the images' device, without the host.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

TURN, SHEAR, ZOOM, SHIFT = math.radians(20), 0.2, 0.2, 0.12
CONTRAST, COLOUR, NOISE, HOLE = 0.5, 0.5, 0.15, 0.3
GREY = 0.2  # share of photographs made grey


def strong_digits(images: Tensor) -> Tensor:
    """With noise as well; half of them inverted: a digit keeps its class in negative, and loses it in a mirror."""
    views = _moved(images)
    sign = torch.where(_draw(images, 1, 1, 1) > 0, 1.0, -1.0)
    views = views * sign * (1 + CONTRAST * _draw(images, 1, 1, 1)) + COLOUR * _draw(images, 3, 1, 1)
    views = views + NOISE * (_draw(images, 1, 1, 1) + 1) / 2 * torch.randn_like(views)
    return _holed(views)


def strong_photos(images: Tensor) -> Tensor:
    """Half of them mirrored, some grey, all of other saturation. None is inverted: a negative looks like nothing."""
    mirrored = torch.where(_draw(images, 1, 1, 1) > 0, images, images.flip(3))
    views = _moved(mirrored)
    grey = views.mean(dim=1, keepdim=True)
    saturation = torch.where(_draw(images, 1, 1, 1) < 2 * GREY - 1, 0.0, 1 + CONTRAST * _draw(images, 1, 1, 1))
    views = grey + (views - grey) * saturation
    views = views * (1 + CONTRAST * _draw(images, 1, 1, 1)) + COLOUR * _draw(images, 3, 1, 1)
    return _holed(views)


def _draw(images: Tensor, *shape: int) -> Tensor:
    """Uniform in -1..1, for each image."""
    return torch.rand(len(images), *shape, device=images.device) * 2 - 1


def _moved(images: Tensor) -> Tensor:
    """Turned, zoomed, sheared and shifted; the edges repeat."""
    turn, zoom, shear = TURN * _draw(images), 1 + ZOOM * _draw(images), SHEAR * _draw(images)
    cos, sin = torch.cos(turn) / zoom, torch.sin(turn) / zoom
    shift = 2 * SHIFT * _draw(images, 2)
    across = torch.stack((cos, shear * cos - sin, shift[:, 0]), dim=1)
    down = torch.stack((sin, shear * sin + cos, shift[:, 1]), dim=1)
    grid = affine_grid(torch.stack((across, down), dim=1), list(images.shape), align_corners=False)
    return grid_sample(images, grid, padding_mode="border", align_corners=False)


def _holed(views: Tensor) -> Tensor:
    """With a square of each set to 0."""
    *_, height, width = views.shape
    rows = torch.linspace(-1, 1, height, device=views.device).view(1, 1, height, 1)
    columns = torch.linspace(-1, 1, width, device=views.device).view(1, 1, 1, width)
    hole = ((rows - _draw(views, 1, 1, 1)).abs() < HOLE) & ((columns - _draw(views, 1, 1, 1)).abs() < HOLE)
    return views.masked_fill(hole, 0.0).contiguous(memory_format=torch.channels_last)
