import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from afield.data.normalise import Normalise
from afield.data.preprocessing import Preprocessing
from afield.data.strong_views import CHANGES, LIKELY, MOVED, StrongView, changed, moved, recoloured

AMOUNT = 0.2
FACTOR = 0.1 + 1.8 * AMOUNT
AS_PILLOW = {
    "none": lambda image: image,
    "levels": ImageOps.autocontrast,
    "brightness": lambda image: ImageEnhance.Brightness(image).enhance(FACTOR),
    "saturation": lambda image: ImageEnhance.Color(image).enhance(FACTOR),
    "contrast": lambda image: ImageEnhance.Contrast(image).enhance(FACTOR),
    "equalised": ImageOps.equalize,
    "negative": ImageOps.invert,
    "fewer": lambda image: ImageOps.posterize(image, int(4 + 4 * AMOUNT)),
    "sharpness": lambda image: ImageEnhance.Sharpness(image).enhance(FACTOR),
    "solar": lambda image: ImageOps.solarize(image, int(256 * AMOUNT)),
}


def smooth_image():
    """Of many colours, neither very dark nor very bright."""
    noise = np.random.default_rng(0).integers(20, 200, (16, 16, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((32, 32), Image.Resampling.BILINEAR)


def to_tensor(image):
    return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)[None] / 255


@pytest.mark.parametrize("name", AS_PILLOW)
def test_each_change_of_colours_is_pillows(name):
    image = smooth_image()
    which, amount = torch.tensor([CHANGES.index(name)]), torch.tensor([AMOUNT])
    inner = (..., slice(1, -1), slice(1, -1))  # Pillow leaves the edge as it is where it sharpens
    ours, pillows = recoloured(to_tensor(image), which, amount)[inner], to_tensor(AS_PILLOW[name](image))[inner]
    # Pillow rounds on its way, and equalises in steps of so many pixels.
    torch.testing.assert_close(ours, pillows, atol=(6 if name == "equalised" else 2) / 255, rtol=0)
    assert name == "none" or not torch.allclose(ours, to_tensor(image)[inner], atol=4 / 255)


def test_an_image_of_one_colour_stays_finite():
    for which in range(len(CHANGES)):
        view = recoloured(torch.full((1, 3, 8, 8), 0.3), torch.tensor([which]), torch.tensor([0.5]))
        assert view.isfinite().all()
        assert (view == view[..., :1, :1]).all()


def spot_after(name, amount):
    """Where a spot at the image's right, half-way down, comes to lie: across and down, from the middle."""
    image = torch.zeros(1, 3, 41, 41)
    image[..., 20, 32] = 1
    view = moved(image, torch.tensor([[CHANGES.index(name)]]), torch.tensor([[amount]]))[0, 0]
    places = torch.arange(41.0) - 20
    return float((view.sum(dim=0) * places).sum() / view.sum()), float((view.sum(dim=1) * places).sum() / view.sum())


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("turn", (12 * 0.75**0.5, -6.0)),  # by 30 degrees
        ("shear across", (12.0, 0.0)),  # what is half-way down stays
        ("shear down", (12.0, -3.6)),
        ("shift across", (12 - 0.3 * 41, 0.0)),
        ("shift down", (12.0, -0.3 * 41)),
        ("none", (12.0, 0.0)),
    ],
)
def test_an_image_moves_as_far_as_is_said(name, place):
    assert spot_after(name, 1.0) == pytest.approx(place, abs=0.2)


def test_two_moves_are_made_one_after_the_other():
    torch.manual_seed(0)
    images = torch.rand(5, 3, 16, 16)
    shift, amount = torch.full((2, 5), CHANGES.index("shift down")), torch.tensor([[0.5], [0.5]]).expand(2, 5)
    torch.testing.assert_close(moved(images, shift, amount), moved(images, shift[:1], amount[:1] + amount[1:]))


def test_each_change_is_as_likely_and_an_image_may_stay_as_it_is():
    torch.manual_seed(0)
    images = torch.rand(1, 3, 8, 8).expand(6000, -1, -1, -1).contiguous()
    same = (changed(images) - images).abs().amax(dim=(1, 2, 3)) < 1e-4
    # Neither change is made, or it is none. Posterising to eight bits and turning by nothing are rare.
    assert same.float().mean() == pytest.approx((1 - LIKELY * 14 / 15) ** 2, abs=0.03)
    moves = ((changed(torch.ones(6000, 3, 8, 8))[:, :, 0, 0] != 1).any(dim=1)).float().mean()
    assert moves > LIKELY * len(MOVED) / len(CHANGES)


def test_mixed_precision_leaves_a_view_as_it_is():
    ramp = torch.linspace(0, 1, 224).expand(32, 3, 224, 224)  # brightness tells a pixel's place
    views = []
    for mixed in (False, True):
        torch.manual_seed(0)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
            views.append(changed(ramp))
    assert torch.equal(*views)


def test_views_differ_follow_the_seed_and_stay_in_range():
    images = torch.rand(64, 3, 16, 16) * 2 - 1

    def views(seed):
        torch.manual_seed(seed)
        return StrongView()(images)

    assert views(0).shape == images.shape
    assert views(0).abs().max() <= 1
    assert torch.equal(views(0), views(0))
    assert not torch.equal(views(0), views(1))


def test_views_are_of_the_pixels_however_these_were_normalised():
    images = torch.rand(32, 3, 16, 16)
    found = []
    for mean, std in (((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)), ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))):
        normalise = Normalise(Preprocessing(16, mean, std))
        torch.manual_seed(0)
        found.append(normalise.undo(StrongView(normalise)(normalise(images))))
    torch.testing.assert_close(*found, atol=0.02, rtol=0)
