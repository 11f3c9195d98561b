"""Strong views: an image changed as far as its class allows, to learn that a prediction should not change with it.

RandAugment (Cubuk et al. 2020, arXiv 1909.13719) as DAEL's authors have it: two changes, drawn from fifteen, one of
which changes nothing. Each is made with probability 0.6, by a random amount. torchvision's transform draws one set of
numbers for a whole batch; here each image has its own, drawn on the device, without the host.

Differences from the usual order: an image is moved once, by both changes if both move it, and recoloured after that.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, avg_pool2d, grid_sample, pad

from afield.data.augmentation import LUMINANCE
from afield.data.normalise import Normalise

ROUNDS, LIKELY = 2, 0.6
TURN, SHEAR, SHIFT = math.radians(30), 0.3, 0.3
WEAKEST, STRONGEST = 0.1, 1.9  # factors of brightness, contrast, saturation and sharpness
RECOLOURED = ("levels", "brightness", "saturation", "contrast", "equalised", "negative", "fewer", "sharpness", "solar")
MOVED = ("turn", "shear across", "shear down", "shift across", "shift down")
CHANGES = ("none", *RECOLOURED, *MOVED)


class StrongView:
    """Strong views of normalised images; of images in -1..1 if it is not said how they were normalised."""

    def __init__(self, normalise: Normalise | None = None) -> None:
        self.normalise = normalise

    def __call__(self, images: Tensor) -> Tensor:
        """Images (B, 3, H, W) to such views of them."""
        if self.normalise is None:
            return 2 * changed(((images + 1) / 2).clamp(0, 1)) - 1
        views: Tensor = self.normalise(changed(self.normalise.undo(images)))
        return views


def changed(pixels: Tensor) -> Tensor:
    """Images (B, 3, H, W) in 0..1, each changed in its own way."""
    with torch.autocast(pixels.device.type, enabled=False):  # bf16 knows places in an image to half a pixel only
        return _changed(pixels)


def _changed(pixels: Tensor) -> Tensor:
    shape, device = (ROUNDS, len(pixels)), pixels.device
    made = torch.rand(shape, device=device) < LIKELY
    change = torch.randint(len(CHANGES), shape, device=device) * made
    amount = torch.rand(shape, device=device)
    views = moved(pixels, change, 2 * amount - 1)
    for which, by in zip(change, amount, strict=True):
        views = recoloured(views, which, by)
    return views


def moved(pixels: Tensor, change: Tensor, amount: Tensor) -> Tensor:
    """Turned, sheared and shifted by amounts in -1..1 of what there is at most; what comes in is black."""
    whole = torch.eye(3, device=pixels.device).expand(len(pixels), 3, 3)
    for which, by in zip(change, amount, strict=True):
        turn, across, down, right, below = (
            torch.where(which == CHANGES.index(name), by * most, 0.0)
            for name, most in zip(MOVED, (TURN, SHEAR, SHEAR, 2 * SHIFT, 2 * SHIFT), strict=True)
        )
        none, cos, sin = torch.zeros_like(by), turn.cos(), turn.sin()
        rows = (cos, across - sin, right), (down + sin, cos, below), (none, none, none + 1)
        whole = whole @ torch.stack([torch.stack(row, dim=1) for row in rows], dim=1)
    grid = affine_grid(whole[:, :2], list(pixels.shape), align_corners=False)
    return grid_sample(pixels, grid, align_corners=False)


def recoloured(pixels: Tensor, change: Tensor, amount: Tensor) -> Tensor:
    """Each image with the one of these changes that is its own, if any, by an amount in 0..1."""
    change, amount = (values.view(-1, 1, 1, 1) for values in (change, amount))
    factor = WEAKEST + (STRONGEST - WEAKEST) * amount
    grey = torch.stack([share * pixels[:, channel] for channel, share in enumerate(LUMINANCE)]).sum(dim=0)[:, None]
    step = torch.exp2(4 - torch.floor(4 * amount))  # so many of 256 levels become one: 4 to 7 bits are kept
    views = {
        "levels": _stretched(pixels),
        "brightness": pixels * factor,
        "saturation": grey.lerp(pixels, factor),
        "contrast": grey.mean(dim=(2, 3), keepdim=True).lerp(pixels, factor),
        "equalised": _equalised(pixels),
        "negative": 1 - pixels,
        "fewer": torch.floor(255 * pixels / step) * step / 255,
        "sharpness": _smooth(pixels).lerp(pixels, factor),
        "solar": torch.where(pixels < amount, pixels, 1 - pixels),
    }
    result = pixels
    for name, view in views.items():
        result = torch.where(change == CHANGES.index(name), view.clamp(0, 1), result)
    return result


def _stretched(pixels: Tensor) -> Tensor:
    """Every channel from 0 to 1."""
    low, high = pixels.amin(dim=(2, 3), keepdim=True), pixels.amax(dim=(2, 3), keepdim=True)
    return torch.where(high > low, (pixels - low) / (high - low).clamp(min=1 / 255), pixels)


def _equalised(pixels: Tensor) -> Tensor:
    """Every channel with as many pixels of each brightness, as far as that goes."""
    levels = (255 * pixels.flatten(2)).round().long()
    counts = torch.zeros(*levels.shape[:2], 256, dtype=torch.int64, device=pixels.device)
    below = counts.scatter_add_(2, levels, torch.ones_like(levels)).cumsum(dim=2)
    lowest = counts.gather(2, levels.amin(dim=2, keepdim=True))
    share = (below - lowest) / (below[..., -1:] - lowest).clamp(min=1)
    return share.gather(2, levels).view(pixels.shape).to(pixels.dtype)


def _smooth(pixels: Tensor) -> Tensor:
    """Blurred a little: the mean of a pixel's neighbours, in which the pixel itself counts five times."""
    neighbours = 9 * avg_pool2d(pad(pixels, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    return (neighbours + 4 * pixels) / 13
