"""The kernels of `networks/depthwise.py`: convolutions in which every channel has a window of its own.

Maps lie in memory as one row of C channels per pixel, weights as one row of C channels per tap of the K x K window. A
program has a block of CHANNELS and, step by step, a TILE of pixels.
"""

import triton
import triton.language as tl

from afield.kernels.norms import _block


@triton.jit
def _pixels(x, image, i, j, inside, channel, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr):
    """The values of pixels of a map, 0 outside of it."""
    keep = (inside & (i >= 0) & (i < H) & (j >= 0) & (j < W))[:, None] & (channel < C)
    return tl.load(x + ((image * H + i) * W + j)[:, None] * C + channel, mask=keep, other=0.0).to(tl.float32)


@triton.jit
def _tap(weight, number, channel, C: tl.constexpr):
    return tl.load(weight + number * C + channel, mask=channel < C, other=0.0).to(tl.float32)


@triton.jit
def correlate(
    x, weight, y, rows, C: tl.constexpr, CHANNELS: tl.constexpr, TILE: tl.constexpr, K: tl.constexpr,
    STRIDE: tl.constexpr, TOP: tl.constexpr, LEFT: tl.constexpr, FLIP: tl.constexpr,
    H: tl.constexpr, W: tl.constexpr, OUT_H: tl.constexpr, OUT_W: tl.constexpr,
):  # fmt: skip
    """y of the convolution; with its taps in reverse order, dx of one of stride 1."""
    channel, row = _block(CHANNELS), tl.program_id(0) * TILE + tl.arange(0, TILE)
    i, j, image = row // OUT_W % OUT_H, row % OUT_W, row // (OUT_W * OUT_H)
    total = tl.zeros([TILE, CHANNELS], tl.float32)
    for tap in tl.static_range(K * K):
        h, w = i * STRIDE - TOP + tap // K, j * STRIDE - LEFT + tap % K
        value = _pixels(x, image, h, w, row < rows, channel, C, H, W)
        total += value * _tap(weight, K * K - 1 - tap if FLIP else tap, channel, C)
    tl.store(y + row[:, None] * C + channel, total, mask=(row < rows)[:, None] & (channel < C))


@triton.jit
def spread_strided(
    g, weight, dx, rows, C: tl.constexpr, CHANNELS: tl.constexpr, TILE: tl.constexpr, K: tl.constexpr,
    TOP: tl.constexpr, LEFT: tl.constexpr, H: tl.constexpr, W: tl.constexpr, OUT_H: tl.constexpr, OUT_W: tl.constexpr,
):  # fmt: skip
    """dx of a convolution of stride 2, in squares of 2 x 2 pixels: each of the four has taps of its own."""
    channel, row = _block(CHANNELS), tl.program_id(0) * TILE + tl.arange(0, TILE)
    high, wide = (H + 1) // 2, (W + 1) // 2
    i, j, image = row // wide % high, row % wide, row // (wide * high)
    for corner in tl.static_range(4):
        down, right = corner // 2, corner % 2
        total = tl.zeros([TILE, CHANNELS], tl.float32)
        for tap in tl.static_range(K * K):
            if (down + TOP + tap // K) % 2 == 0:  # noqa: SIM102, as Triton's `and` is not that of Python
                if (right + LEFT + tap % K) % 2 == 0:
                    u, v = i + (down + TOP - tap // K) // 2, j + (right + LEFT - tap % K) // 2
                    value = _pixels(g, image, u, v, row < rows, channel, C, OUT_H, OUT_W)
                    total += value * _tap(weight, tap, channel, C)
        h, w = 2 * i + down, 2 * j + right
        keep = ((row < rows) & (h < H) & (w < W))[:, None] & (channel < C)
        tl.store(dx + ((image * H + h) * W + w)[:, None] * C + channel, total, mask=keep)


@triton.jit
def _keep_sum(found, shares, place, channel, C: tl.constexpr):
    tl.store(shares + place * C + channel, tl.sum(found, 0), mask=channel < C)


@triton.jit
def weight_shares(
    g, x, shares, rows, steps, C: tl.constexpr, CHANNELS: tl.constexpr, TILE: tl.constexpr, K: tl.constexpr,
    STRIDE: tl.constexpr, TOP: tl.constexpr, LEFT: tl.constexpr,
    H: tl.constexpr, W: tl.constexpr, OUT_H: tl.constexpr, OUT_W: tl.constexpr,
):  # fmt: skip
    """What the outputs of each program add to the gradient of one row of taps: K is 3 or 5.

    The programs of the rows of taps come one after the other, so that they find the maps in the cache.
    """
    channel, down, first = _block(CHANNELS), tl.program_id(0) % K, tl.program_id(0) // K
    sum0 = tl.zeros([TILE, CHANNELS], tl.float32)
    sum1 = tl.zeros([TILE, CHANNELS], tl.float32)
    sum2 = tl.zeros([TILE, CHANNELS], tl.float32)
    sum3 = tl.zeros([TILE, CHANNELS], tl.float32)
    sum4 = tl.zeros([TILE, CHANNELS], tl.float32)
    for number in range(steps):
        row = (first * steps + number) * TILE + tl.arange(0, TILE)
        i, j, image, inside = row // OUT_W % OUT_H, row % OUT_W, row // (OUT_W * OUT_H), row < rows
        slope = tl.load(g + row[:, None] * C + channel, mask=inside[:, None] & (channel < C), other=0.0).to(tl.float32)
        h, w = i * STRIDE - TOP + down, j * STRIDE - LEFT
        sum0 += slope * _pixels(x, image, h, w, inside, channel, C, H, W)
        sum1 += slope * _pixels(x, image, h, w + 1, inside, channel, C, H, W)
        sum2 += slope * _pixels(x, image, h, w + 2, inside, channel, C, H, W)
        if K == 5:
            sum3 += slope * _pixels(x, image, h, w + 3, inside, channel, C, H, W)
            sum4 += slope * _pixels(x, image, h, w + 4, inside, channel, C, H, W)
    place = (first * K + down) * K
    _keep_sum(sum0, shares, place, channel, C)
    _keep_sum(sum1, shares, place + 1, channel, C)
    _keep_sum(sum2, shares, place + 2, channel, C)
    if K == 5:
        _keep_sum(sum3, shares, place + 3, channel, C)
        _keep_sum(sum4, shares, place + 4, channel, C)
