"""Random changes of photographs: what each does, what it leaves alone, and that the seed decides."""

import pytest
import torch

from afield.data import augmentation
from afield.data.augmentation import changed_by_kernels, changed_photos, changed_plainly, recoloured, resized_part
from support.interpreting import INTERPRETED, pass_in_interpreter

DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"


def photos(count=6, side=12, seed=0):
    return torch.randint(0, 256, (count, side, side, 3), dtype=torch.uint8, generator=seeded(seed))


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def all_changed(images, generator):
    return changed_photos(images, torch.arange(len(images)), generator)


def values(images):
    return images.permute(0, 3, 1, 2).float() / 255


def each(images, number):
    return torch.full((len(images),), float(number))


def test_the_whole_of_an_image_is_the_image():
    images = values(photos())
    one, zero = each(images, 1), each(images, 0)
    torch.testing.assert_close(resized_part(images, one, one, zero, zero), images)


def test_a_negative_width_mirrors():
    images = values(photos())
    one, zero = each(images, 1), each(images, 0)
    torch.testing.assert_close(resized_part(images, -one, one, zero, zero), images.flip(3))


def test_a_part_is_cut_where_it_was_asked_for():
    images = torch.zeros(1, 3, 16, 16)
    images[:, :, :8, 8:] = 1  # the upper right quarter
    half = each(images, 0.5)
    part = resized_part(images, half, half, half, -half)
    assert part[:, :, 1:-1, 1:-1].eq(1).all()
    assert resized_part(images, half, half, -half, half)[:, :, 1:-1, 1:-1].eq(0).all()


def test_factors_of_one_leave_the_colours():
    images = values(photos())
    one, zero = each(images, 1), each(images, 0)
    torch.testing.assert_close(recoloured(images, one, one, one, zero), images)


def test_each_change_of_colour_does_what_it_is_called():
    images = values(photos(1)) * 0.5
    one, zero, half = each(images, 1), each(images, 0), each(images, 0.5)
    torch.testing.assert_close(recoloured(images, half, one, one, zero), images / 2)
    luminance = torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)
    grey = (images * luminance).sum(dim=1, keepdim=True)
    torch.testing.assert_close(recoloured(images, one, one, zero, zero), grey.expand_as(images))
    flat = recoloured(images, one, zero, one, zero)
    torch.testing.assert_close(flat, grey.mean().expand_as(images))


def test_a_third_of_a_turn_of_the_hue_exchanges_the_channels_and_keeps_grey():
    red = torch.zeros(1, 3, 4, 4)
    red[:, 0] = 0.8
    one, third = each(red, 1), each(red, 2 * torch.pi / 3)
    turned = recoloured(red, one, one, one, third)
    torch.testing.assert_close(turned, red.roll(1, dims=1), atol=1e-5, rtol=0)
    grey = torch.full((1, 3, 4, 4), 0.4)
    torch.testing.assert_close(recoloured(grey, one, one, one, third), grey)


def test_photographs_are_changed_each_in_its_own_way_and_stay_colours():
    same = photos(1).expand(50, -1, -1, -1)
    changed = all_changed(same, seeded())
    assert changed.shape == same.shape
    assert changed.min() >= 0
    assert changed.max() <= 1
    assert len({image.numpy().tobytes() for image in changed}) == 50
    assert torch.equal(changed, all_changed(same, seeded()))
    assert not torch.equal(changed, all_changed(same, seeded(1)))


def test_colours_stay_exact_where_the_network_runs_in_bf16():
    images = photos()
    exact = all_changed(images, seeded())
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(all_changed(images, seeded()), exact)


def test_half_of_the_photographs_are_mirrored_and_a_tenth_is_grey():
    ramp = torch.arange(16).mul(16).to(torch.uint8).expand(2000, 16, 16)  # dark on the left, bright on the right
    coloured = torch.stack((ramp, ramp // 2, ramp // 4), dim=3)
    changed = all_changed(coloured, seeded())
    mirrored = (changed[:, :, 0].sum(dim=(1, 2)) > changed[:, :, -1].sum(dim=(1, 2))).float().mean()
    assert 0.45 < mirrored < 0.55
    grey = (changed.max(dim=3).values - changed.min(dim=3).values).amax(dim=(1, 2)) < 1e-3
    assert 0.07 < grey.float().mean() < 0.13


@pytest.mark.skipif(
    augmentation.kernels is None or not (INTERPRETED or DEVICE == "cuda"), reason="no GPU: run by the next test"
)
@pytest.mark.parametrize("shape", [(12, 12), (40, 37)], ids=["a tile", "tiles, the last not full"])
def test_the_kernels_change_as_torch_does(shape):
    pool = torch.randint(0, 256, (7, *shape, 3), dtype=torch.uint8, generator=seeded()).to(DEVICE)
    picks = torch.tensor([6, 0, 3, 3, 5], device=DEVICE)
    for seed in range(4):
        numbers = augmentation._drawn(len(picks), seeded(seed), torch.device("cpu")).to(DEVICE)
        found, wanted = changed_by_kernels(pool, picks, numbers), changed_plainly(pool[picks], numbers)
        torch.testing.assert_close(found, wanted, rtol=0, atol=2e-5)


@pytest.mark.skipif(INTERPRETED or augmentation.kernels is None, reason="needs Triton; runs the test above")
def test_the_kernels_agree_in_tritons_interpreter():
    pass_in_interpreter(__file__)
