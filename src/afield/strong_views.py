"""Strong views: an image changed as far as its class allows, to learn that a prediction should not change with it."""

import math

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

TURN, SHEAR, ZOOM, SHIFT = math.radians(20), 0.2, 0.2, 0.12
CONTRAST, COLOUR, NOISE, HOLE = 0.5, 0.5, 0.15, 0.3


def strong_view(images: Tensor) -> Tensor:
    """Normalised images (B, 3, H, W), each turned, sheared, zoomed, shifted, recoloured, blurred by noise and holed.

    Half of them are also inverted: a digit keeps its class in negative. Draws from torch's own generator, on the
    images' device, without the host.
    """
    count, _, height, width = images.shape
    device = images.device

    def draw(*shape: int) -> Tensor:
        """Uniform in -1..1."""
        return torch.rand(count, *shape, device=device) * 2 - 1

    turn, zoom, shear = TURN * draw(), 1 + ZOOM * draw(), SHEAR * draw()
    cos, sin = torch.cos(turn) / zoom, torch.sin(turn) / zoom
    shift = 2 * SHIFT * draw(2)
    across = torch.stack((cos, shear * cos - sin, shift[:, 0]), dim=1)
    down = torch.stack((sin, shear * sin + cos, shift[:, 1]), dim=1)
    grid = affine_grid(torch.stack((across, down), dim=1), list(images.shape), align_corners=False)
    views = grid_sample(images, grid, padding_mode="border", align_corners=False)
    sign = torch.where(draw(1, 1, 1) > 0, 1.0, -1.0)
    views = views * sign * (1 + CONTRAST * draw(1, 1, 1)) + COLOUR * draw(3, 1, 1)
    views = views + NOISE * (draw(1, 1, 1) + 1) / 2 * torch.randn_like(views)
    rows = torch.linspace(-1, 1, height, device=device).view(1, 1, height, 1)
    columns = torch.linspace(-1, 1, width, device=device).view(1, 1, 1, width)
    hole = ((rows - draw(1, 1, 1)).abs() < HOLE) & ((columns - draw(1, 1, 1)).abs() < HOLE)
    return views.masked_fill(hole, 0.0).contiguous(memory_format=torch.channels_last)
