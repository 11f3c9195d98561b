"""The kernels of `networks/fused.py`: batch norm, max-pool and clipping.

Maps lie in memory as one row of C channels per pixel, of which a program has a block of CHANNELS. `table` holds the
mean, scale, bias and 1 / std of each channel, one after the other; `slopes` what the gradients take from each dx.
"""

import triton
import triton.language as tl


@triton.jit
def _values(pointer, place, keep):
    return tl.load(pointer + place, mask=keep, other=0.0).to(tl.float32)


@triton.jit
def _places(row, rows, channel, C: tl.constexpr):
    return row[:, None] * C + channel, (row < rows)[:, None] & (channel < C)


@triton.jit
def _block(CHANNELS: tl.constexpr):
    """The channels of this program."""
    return tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)


@triton.jit
def _clipped(result, least, most):
    """NaN stays NaN, as in PyTorch."""
    return tl.where(result <= least, least, tl.where(result >= most, most, result))


@triton.jit
def _is_open(result, least, most):
    """Where a gradient passes what clips."""
    return (result > least) & (result < most)


@triton.jit
def _constants(table, channel, C: tl.constexpr):
    """Mean, scale and bias of each channel."""
    inside = channel < C
    return _values(table, channel, inside), _values(table + C, channel, inside), _values(table + 2 * C, channel, inside)


@triton.jit
def _folded(block, TILE: tl.constexpr):
    """A block's tiles, added up; each thread has its place in every tile, so that no two need to talk."""
    return tl.sum(tl.reshape(block, [block.shape[0] // TILE, TILE, block.shape[1]]), 0)


@triton.jit
def moments(
    x, means, squares, rows, steps,
    C: tl.constexpr, CHANNELS: tl.constexpr, TILE: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Mean and sum of squared deviations of each program's rows; one of them as origin saves both from cancelling."""
    channel, step = _block(CHANNELS), tl.arange(0, TILE * UNROLL)
    first = tl.program_id(0) * steps * TILE * UNROLL
    count = tl.minimum(rows - first, steps * TILE * UNROLL)
    origin = _values(x + first * C, channel, channel < C)
    total = tl.zeros([TILE, CHANNELS], tl.float32)
    square = tl.zeros([TILE, CHANNELS], tl.float32)
    for number in range(steps):
        place, keep = _places(first + number * TILE * UNROLL + step, rows, channel, C)
        value = tl.where(keep, _values(x, place, keep) - origin, 0.0)
        total += _folded(value, TILE)
        square += _folded(value * value, TILE)
    mean = tl.sum(total, 0) / count
    spread = tl.sum(square, 0) - mean * mean * count
    place = tl.program_id(0) * C + channel
    tl.store(means + place, origin + mean, mask=channel < C)
    tl.store(squares + place, tl.where(spread < 0.0, 0.0, spread), mask=channel < C)


@triton.jit
def finish_moments(
    means, squares, weight, bias, running_mean, running_var, table, rows, chunk, programs, momentum, eps,
    C: tl.constexpr, PROGRAMS: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """All programs' moments in one (Chan's formula), and the running statistics as `nn.BatchNorm2d` moves them."""
    channel, program = tl.program_id(0) * GROUP + tl.arange(0, GROUP), tl.arange(0, PROGRAMS)
    inside = channel < C
    place, keep = _places(program, programs, channel, C)
    count = tl.where(program < programs, tl.minimum(rows - program * chunk, chunk), 0).to(tl.float32)[:, None]
    found = _values(means, place, keep)
    mean = tl.sum(found * count, 0) / rows
    spread = tl.sum(_values(squares, place, keep) + count * (found - mean) * (found - mean), 0)
    invstd = 1.0 / tl.sqrt(spread / rows + eps)
    tl.store(table + channel, mean, mask=inside)
    tl.store(table + C + channel, _values(weight, channel, inside) * invstd, mask=inside)
    tl.store(table + 2 * C + channel, _values(bias, channel, inside), mask=inside)
    tl.store(table + 3 * C + channel, invstd, mask=inside)
    old_mean, old_var = _values(running_mean, channel, inside), _values(running_var, channel, inside)
    tl.store(running_mean + channel, old_mean * (1.0 - momentum) + mean * momentum, mask=inside)
    tl.store(running_var + channel, old_var * (1.0 - momentum) + spread / (rows - 1) * momentum, mask=inside)


@triton.jit
def flat_forward(x, table, y, rows, least, most, C: tl.constexpr, CHANNELS: tl.constexpr, TILE: tl.constexpr):
    """y without pooling."""
    channel, row = _block(CHANNELS), tl.program_id(0) * TILE + tl.arange(0, TILE)
    place, keep = _places(row, rows, channel, C)
    mean, scale, bias = _constants(table, channel, C)
    result = (_values(x, place, keep) - mean) * scale + bias
    tl.store(y + place, _clipped(result, least, most), mask=keep)


@triton.jit
def pool_forward(
    x, table, y, peaks, codes, rows, least, most, C: tl.constexpr, CHANNELS: tl.constexpr, TILE: tl.constexpr,
    H: tl.constexpr, W: tl.constexpr, CLOSED: tl.constexpr,
):  # fmt: skip
    """A window's largest y is at its largest x, or smallest where the scale is negative: its peak, kept for later."""
    channel, row = _block(CHANNELS), tl.program_id(0) * TILE + tl.arange(0, TILE)
    high, wide = (H + 1) // 2, (W + 1) // 2
    i, j, image = row // wide % high, row % wide, row // (wide * high)
    mean, scale, bias = _constants(table, channel, C)
    sign = tl.where(scale < 0.0, -1.0, 1.0)
    outside = sign * float("-inf")
    best = tl.full([TILE, CHANNELS], float("-inf"), tl.float32)
    code = tl.zeros([TILE, CHANNELS], tl.int32)
    for tap in tl.static_range(9):
        h, w = 2 * i - 1 + tap // 3, 2 * j - 1 + tap % 3
        keep = ((row < rows) & (h >= 0) & (h < H) & (w >= 0) & (w < W))[:, None] & (channel < C)
        place = ((image * H + h) * W + w)[:, None] * C + channel
        value = tl.load(x + place, mask=keep, other=outside).to(tl.float32) * sign
        code = tl.where(value > best, tap, code)  # the first of equals, as in PyTorch
        best = tl.where(value > best, value, best)
    best *= sign
    result = (best - mean) * scale + bias
    place, keep = _places(row, rows, channel, C)
    tl.store(y + place, _clipped(result, least, most), mask=keep)
    tl.store(peaks + place, best, mask=keep)
    # What is not a number passes a gradient on, so that a run which diverges shows it.
    closed = (result <= least) | (result >= most)
    tl.store(codes + place, tl.where(closed, CLOSED, code).to(tl.uint8), mask=keep)


@triton.jit
def sums(
    g, x, table, totals, products, rows, steps, least, most,
    C: tl.constexpr, CHANNELS: tl.constexpr, TILE: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Each program's sums of g and g (x - mean) where nothing is clipped; with pooling, x are the peaks."""
    channel, step = _block(CHANNELS), tl.arange(0, TILE * UNROLL)
    mean, scale, bias = _constants(table, channel, C)
    total = tl.zeros([TILE, CHANNELS], tl.float32)
    product = tl.zeros([TILE, CHANNELS], tl.float32)
    for number in range(steps):
        row = (tl.program_id(0) * steps + number) * TILE * UNROLL + step
        place, keep = _places(row, rows, channel, C)
        value, slope = _values(x, place, keep) - mean, _values(g, place, keep)
        slope = tl.where(_is_open(value * scale + bias, least, most), slope, 0.0)
        total += _folded(slope, TILE)
        product += _folded(slope * value, TILE)
    place = tl.program_id(0) * C + channel
    tl.store(totals + place, tl.sum(total, 0), mask=channel < C)
    tl.store(products + place, tl.sum(product, 0), mask=channel < C)


@triton.jit
def finish_sums(
    totals, products, table, grad_weight, grad_bias, slopes, programs, count,
    C: tl.constexpr, PROGRAMS: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """The gradients of weight and bias, and what they take from dx: level + tilt (x - mean)."""
    channel, program = tl.program_id(0) * GROUP + tl.arange(0, GROUP), tl.arange(0, PROGRAMS)
    inside = channel < C
    place, keep = _places(program, programs, channel, C)
    scale, invstd = _values(table + C, channel, inside), _values(table + 3 * C, channel, inside)
    total = tl.sum(_values(totals, place, keep), 0)
    product = tl.sum(_values(products, place, keep), 0) * invstd
    tl.store(grad_weight + channel, product, mask=inside)
    tl.store(grad_bias + channel, total, mask=inside)
    tl.store(slopes + channel, scale * total / count, mask=inside)
    tl.store(slopes + C + channel, scale * invstd * product / count, mask=inside)


@triton.jit
def flat_backward(
    g, x, table, slopes, dx, rows, least, most, C: tl.constexpr, CHANNELS: tl.constexpr, TILE: tl.constexpr
):
    """dx without pooling."""
    channel, row = _block(CHANNELS), tl.program_id(0) * TILE + tl.arange(0, TILE)
    place, keep = _places(row, rows, channel, C)
    mean, scale, bias = _constants(table, channel, C)
    level, tilt = _values(slopes, channel, channel < C), _values(slopes + C, channel, channel < C)
    value = _values(x, place, keep) - mean
    dy = tl.where(_is_open(value * scale + bias, least, most), _values(g, place, keep), 0.0)
    tl.store(dx + place, scale * dy - level - tilt * value, mask=keep)


@triton.jit
def _window(g, codes, place, keep, CLOSED: tl.constexpr):
    return _values(g, place, keep), tl.load(codes + place, mask=keep, other=CLOSED)


@triton.jit
def pool_backward(
    g, x, codes, table, slopes, dx, rows, C: tl.constexpr, CHANNELS: tl.constexpr, TILE: tl.constexpr,
    H: tl.constexpr, W: tl.constexpr, CLOSED: tl.constexpr,
):  # fmt: skip
    """dx of the 2 x 2 pixels from each window's middle on: they lie in no windows but it and the three after it."""
    channel, row = _block(CHANNELS), tl.program_id(0) * TILE + tl.arange(0, TILE)
    high, wide = (H + 1) // 2, (W + 1) // 2
    i, j, image = row // wide % high, row % wide, row // (wide * high)
    mean, scale, _ = _constants(table, channel, C)
    level, tilt = _values(slopes, channel, channel < C), _values(slopes + C, channel, channel < C)

    place, here = _places(row, rows, channel, C)
    right, below = (j + 1 < wide)[:, None] & here, (i + 1 < high)[:, None] & here
    g0, code0 = _window(g, codes, place, here, CLOSED)
    g1, code1 = _window(g, codes, place + C, right, CLOSED)
    g2, code2 = _window(g, codes, place + wide * C, below, CLOSED)
    g3, code3 = _window(g, codes, place + (wide + 1) * C, right & below, CLOSED)
    dy0 = tl.where(code0 == 4, g0, 0.0)
    dy1 = tl.where(code0 == 5, g0, 0.0) + tl.where(code1 == 3, g1, 0.0)
    dy2 = tl.where(code0 == 7, g0, 0.0) + tl.where(code2 == 1, g2, 0.0)
    dy3 = tl.where(code0 == 8, g0, 0.0) + tl.where(code1 == 6, g1, 0.0)
    dy3 += tl.where(code2 == 2, g2, 0.0) + tl.where(code3 == 0, g3, 0.0)

    place = ((image * H + 2 * i) * W + 2 * j)[:, None] * C + channel
    right, below = (2 * j + 1 < W)[:, None] & here, (2 * i + 1 < H)[:, None] & here
    next_place, low_place, last_place, last = place + C, place + W * C, place + (W + 1) * C, right & below
    # All loads before the first store: none may pass it, for all the compiler knows.
    value0, value1 = _values(x, place, here), _values(x, next_place, right)
    value2, value3 = _values(x, low_place, below), _values(x, last_place, last)
    tl.store(dx + place, scale * dy0 - level - tilt * (value0 - mean), mask=here)
    tl.store(dx + next_place, scale * dy1 - level - tilt * (value1 - mean), mask=right)
    tl.store(dx + low_place, scale * dy2 - level - tilt * (value2 - mean), mask=below)
    tl.store(dx + last_place, scale * dy3 - level - tilt * (value3 - mean), mask=last)
