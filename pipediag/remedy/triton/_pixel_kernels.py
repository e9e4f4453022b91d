"""Define the kernels behind :mod:`.pixels`: an interpreter of pixel programs, and the mean grey for contrast."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from .pixels import FLIP_HORIZONTALLY, FLIP_VERTICALLY, PixelOp

_END = tl.constexpr(int(PixelOp.END))
_BRIGHTNESS = tl.constexpr(int(PixelOp.BRIGHTNESS))
_CONTRAST = tl.constexpr(int(PixelOp.CONTRAST))
_SATURATION = tl.constexpr(int(PixelOp.SATURATION))
_HUE = tl.constexpr(int(PixelOp.HUE))
_GAMMA = tl.constexpr(int(PixelOp.GAMMA))
_GRAYSCALE = tl.constexpr(int(PixelOp.GRAYSCALE))
_INVERT = tl.constexpr(int(PixelOp.INVERT))
_SOLARIZE = tl.constexpr(int(PixelOp.SOLARIZE))
_POSTERIZE = tl.constexpr(int(PixelOp.POSTERIZE))
_TO_FLOAT = tl.constexpr(int(PixelOp.TO_FLOAT))
_TO_UINT8 = tl.constexpr(int(PixelOp.TO_UINT8))

_HORIZONTALLY = tl.constexpr(FLIP_HORIZONTALLY)
_VERTICALLY = tl.constexpr(FLIP_VERTICALLY)

_TO_UNIT = tl.constexpr(1.0 / 255.0)
_FROM_UNIT = tl.constexpr(255.0 + 1.0 - 1e-3)
_SIXTH = tl.constexpr(1.0 / 6.0)


# The alignment of the tables changes from batch to batch; it must not trigger a recompilation.
@triton.jit(
    do_not_specialize=["steps", "done", "rounds", "height", "width"],
    do_not_specialize_on_alignment=["codes", "operands", "sums"],
)
def sum_kernel(
    x,
    codes,
    operands,
    sums,
    steps,
    done,
    rounds,
    height,
    width,
    stride_n,
    stride_c,
    stride_y,
    stride_x,
    CHANNELS: tl.constexpr,
    FLOATING: tl.constexpr,
    SLICES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Sum the greys of one slice of one sample before contrast number ``done`` of its program.

    Each lane sums its own pixels, and the lanes are summed in float64: for uint8 every sum is exact, and no sum depends
    on the order in which programs run.
    """
    n = tl.program_id(1).to(tl.int64)
    codes += n * steps
    operands += n * steps * 2
    sums += n * rounds * SLICES
    contrasts = 0
    for k in range(steps):
        contrasts += tl.where(tl.load(codes + k) == _CONTRAST, 1, 0)
    if contrasts > done:
        total = tl.zeros((BLOCK,), tl.float32)
        for i in range(tl.program_id(0), height, SLICES):
            for begin in range(0, width, BLOCK):
                j = begin + tl.arange(0, BLOCK)
                source = x + n * stride_n + i * stride_y + j * stride_x
                red, green, blue = _read(source, j < width, stride_c, CHANNELS)
                red, green, blue, floating = _run(
                    red,
                    green,
                    blue,
                    codes,
                    operands,
                    steps,
                    sums,
                    height * width,
                    done,
                    True,
                    CHANNELS,
                    FLOATING,
                    SLICES,
                )
                grey = _cut(_grey(red, green, blue, CHANNELS), floating)
                total += tl.where(j < width, grey, 0.0)
        tl.store(sums + done * SLICES + tl.program_id(0), tl.sum(total.to(tl.float64)))


@triton.jit(
    do_not_specialize=["flips_stride", "steps", "rounds", "height", "width"],
    do_not_specialize_on_alignment=["codes", "operands", "sums", "flips"],
)
def pixel_kernel(
    x,
    out,
    codes,
    operands,
    sums,
    steps,
    rounds,
    flips,
    flips_stride,
    mean_0,
    mean_1,
    mean_2,
    std_0,
    std_1,
    std_2,
    height,
    width,
    stride_n,
    stride_c,
    stride_y,
    stride_x,
    out_stride_n,
    out_stride_c,
    out_stride_y,
    out_stride_x,
    CONTRAST: tl.constexpr,
    CHANNELS: tl.constexpr,
    FLOATING: tl.constexpr,
    FLIP: tl.constexpr,
    NORMALIZE: tl.constexpr,
    SLICES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Run the whole program on one tile of one sample."""
    n = tl.program_id(1).to(tl.int64)
    tiles = tl.cdiv(width, COLUMNS)
    i = ((tl.program_id(0) // tiles) * ROWS + tl.arange(0, ROWS))[:, None]
    j = ((tl.program_id(0) % tiles) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    inside = (i < height) & (j < width)
    target = out + n * out_stride_n + i * out_stride_y + j * out_stride_x
    if FLIP:
        flip = tl.load(flips + n * flips_stride).to(tl.int32)
        i = tl.where((flip & _VERTICALLY) != 0, height - 1 - i, i)
        j = tl.where((flip & _HORIZONTALLY) != 0, width - 1 - j, j)
    codes += n * steps
    operands += n * steps * 2
    sums += n * rounds * SLICES
    red, green, blue = _read(x + n * stride_n + i * stride_y + j * stride_x, inside, stride_c, CHANNELS)
    red, green, blue, _ = _run(
        red, green, blue, codes, operands, steps, sums, height * width, -1, CONTRAST, CHANNELS, FLOATING, SLICES
    )
    if NORMALIZE:
        red = tl.div_rn(red - mean_0, std_0)
        green = tl.div_rn(green - mean_1, std_1)
        blue = tl.div_rn(blue - mean_2, std_2)
    _write(target, red, inside)
    if CHANNELS == 3:
        _write(target + out_stride_c, green, inside)
        _write(target + 2 * out_stride_c, blue, inside)


@triton.jit
def _read(source, inside, stride_c, CHANNELS: tl.constexpr):
    """Return three channels, which are equal if the image has one."""
    red = tl.load(source, mask=inside, other=0).to(tl.float32)
    if CHANNELS == 3:
        green = tl.load(source + stride_c, mask=inside, other=0).to(tl.float32)
        blue = tl.load(source + 2 * stride_c, mask=inside, other=0).to(tl.float32)
    else:
        green = red
        blue = red
    return red, green, blue


@triton.jit
def _write(target, value, inside):
    kind = target.dtype.element_ty
    if kind == tl.uint8:
        value = value.to(tl.int32)
    tl.store(target, value.to(kind), mask=inside)


# --- the interpreter


@triton.jit
def _run(
    red,
    green,
    blue,
    codes,
    operands,
    steps,
    sums,
    pixels,
    until,
    CONTRAST: tl.constexpr,
    CHANNELS: tl.constexpr,
    FLOATING: tl.constexpr,
    SLICES: tl.constexpr,
):
    """Run one program, or the part before contrast ``until``; return the pixel, and whether it is floating now."""
    floating = tl.full((), 1 if FLOATING else 0, tl.int32)
    contrasts = tl.full((), 0, tl.int32)
    step = tl.full((), 0, tl.int32)
    op = _fetch(codes, step, steps, contrasts, until)
    while op != _END:
        a = tl.load(operands + step * 2)
        b = tl.load(operands + step * 2 + 1)
        if op == _BRIGHTNESS:
            red = _bounded(red * a, floating)
            green = _bounded(green * a, floating)
            blue = _bounded(blue * a, floating)
        elif op == _CONTRAST:
            if CONTRAST:
                mean = _mean(sums + contrasts * SLICES, pixels, SLICES)
                contrasts += 1
                red = _blended(red, mean, a, b, floating)
                green = _blended(green, mean, a, b, floating)
                blue = _blended(blue, mean, a, b, floating)
        elif op == _SATURATION:
            if CHANNELS == 3:
                grey = _cut(_grey(red, green, blue, CHANNELS), floating)
                red = _blended(red, grey, a, b, floating)
                green = _blended(green, grey, a, b, floating)
                blue = _blended(blue, grey, a, b, floating)
        elif op == _HUE:
            if CHANNELS == 3:
                red, green, blue = _turned(
                    _to_unit(red, floating), _to_unit(green, floating), _to_unit(blue, floating), a
                )
                red = _from_unit(red, floating)
                green = _from_unit(green, floating)
                blue = _from_unit(blue, floating)
        elif op == _GAMMA:
            red = _from_unit(_power(_to_unit(red, floating), a, b), floating)
            green = _from_unit(_power(_to_unit(green, floating), a, b), floating)
            blue = _from_unit(_power(_to_unit(blue, floating), a, b), floating)
        elif op == _GRAYSCALE:
            red = _cut(_grey(red, green, blue, CHANNELS), floating)
            green = red
            blue = red
        elif op == _INVERT:
            red = _top(floating) - red
            green = _top(floating) - green
            blue = _top(floating) - blue
        elif op == _SOLARIZE:
            red = tl.where(red >= a, _top(floating) - red, red)
            green = tl.where(green >= a, _top(floating) - green, green)
            blue = tl.where(blue >= a, _top(floating) - blue, blue)
        elif op == _POSTERIZE:
            red = _posterized(red, a, b, floating)
            green = _posterized(green, a, b, floating)
            blue = _posterized(blue, a, b, floating)
        elif op == _TO_FLOAT:
            red = red * a
            green = green * a
            blue = blue * a
            if b != 1.0:  # a division rounded to nearest is expensive
                red = tl.div_rn(red, b)
                green = tl.div_rn(green, b)
                blue = tl.div_rn(blue, b)
            floating = tl.full((), 1, tl.int32)
        elif op == _TO_UINT8:
            floating = tl.full((), 0, tl.int32)
            red = _bounded(red * a, floating)
            green = _bounded(green * a, floating)
            blue = _bounded(blue * a, floating)
        step += 1
        op = _fetch(codes, step, steps, contrasts, until)
    return red, green, blue, floating


@triton.jit
def _fetch(codes, step, steps, contrasts, until):
    """Return the next code; END after the last one, and for the contrast at which to stop."""
    op = tl.load(codes + step, mask=step < steps, other=0)
    return tl.where((op == _CONTRAST) & (contrasts == until), 0, op)


@triton.jit
def _mean(sums, pixels, SLICES: tl.constexpr):
    """Return the mean grey, with the sum rounded to float32 before the division as in ATen."""
    total = tl.sum(tl.load(sums + tl.arange(0, SLICES)))
    return tl.div_rn(total.to(tl.float32), pixels.to(tl.float32))


# --- operations on single values


@triton.jit
def _top(floating):
    """Return the largest value of an image."""
    return tl.where(floating != 0, 1.0, 255.0)


@triton.jit
def _cut(x, floating):
    """Remove the fraction if the image has whole numbers."""
    return tl.where(floating != 0, x, tl.floor(x))


@triton.jit
def _bounded(x, floating):
    """Clamp to the range of an image, and remove the fraction if it has whole numbers."""
    return _cut(tl.minimum(tl.maximum(x, 0.0), _top(floating)), floating)


@triton.jit
def _to_unit(x, floating):
    return x * tl.where(floating != 0, 1.0, _TO_UNIT)


@triton.jit
def _from_unit(x, floating):
    return _cut(x * tl.where(floating != 0, 1.0, _FROM_UNIT), floating)


@triton.jit
def _grey(red, green, blue, CHANNELS: tl.constexpr):
    """Return the luma of ITU-R BT.601; ATen adds scaled tensors by fused multiply-adds."""
    return tl.fma(blue, 0.114, tl.fma(green, 0.587, red * 0.2989)) if CHANNELS == 3 else red


@triton.jit
def _blended(x, other, ratio, complement, floating):
    return _bounded(tl.fma(other, complement, x * ratio), floating)


@triton.jit
def _posterized(x, levels, step, floating):
    """Reduce to ``levels`` levels: each is the lowest of the values that it replaces."""
    level = tl.floor(x * (levels * tl.where(floating != 0, 1.0, 1.0 / 256.0)))
    return tl.minimum(tl.maximum(level, 0.0), levels - 1.0) * (step * tl.where(floating != 0, 1.0, 256.0))


@triton.jit
def _power(x, gamma, gain):
    """Return ``gain * x ** gamma``, computed in float64, so that a later truncation to uint8 does not depend on an
    approximation.

    Negative pixels, whose power is NaN in torch unless gamma is whole, count as 0.
    """
    logarithm = tl.log2(tl.where(x > 0.0, x, 1.0).to(tl.float64))
    power = tl.exp2(logarithm * gamma.to(tl.float64)).to(tl.float32)
    power = tl.where(x > 0.0, power, tl.where(gamma == 0.0, 1.0, 0.0))
    return tl.where(gain == 1.0, power, tl.minimum(tl.maximum(power * gain, 0.0), 1.0))


@triton.jit
def _turned(red, green, blue, angle):
    """Turn the hue of colours in [0, 1] by a fraction of the full circle: to HSV and back, as in torchvision."""
    high = tl.maximum(tl.maximum(red, green), blue)
    low = tl.minimum(tl.minimum(red, green), blue)
    spread = high - low
    even = high == low
    saturation = tl.div_rn(spread, tl.where(even, 1.0, high))
    divisor = tl.where(even, 1.0, spread)
    from_red = tl.div_rn(high - red, divisor)
    from_green = tl.div_rn(high - green, divisor)
    from_blue = tl.div_rn(high - blue, divisor)
    hue = tl.where(
        high == red,
        from_blue - from_green,
        tl.where(high == green, (from_red + 2.0) - from_blue, (from_green + 4.0) - from_red),
    )
    hue = hue * _SIXTH + 1.0
    hue = hue - tl.floor(hue)
    hue = hue + angle
    hue = hue - tl.floor(hue)

    sixths = hue * 6.0
    sector = tl.floor(sixths)
    fraction = sixths - sector
    part = saturation * fraction
    rest = 1.0 - saturation
    falling = tl.minimum(tl.maximum((1.0 - part) * high, 0.0), 1.0)
    rising = tl.minimum(tl.maximum((part + rest) * high, 0.0), 1.0)
    lowest = tl.minimum(tl.maximum(rest * high, 0.0), 1.0)
    # Rounding may bring the hue up to a full circle, which is in the first sector again.
    sector = tl.where(sector >= 6.0, 0.0, sector)
    red = tl.where(
        (sector == 0.0) | (sector == 5.0),
        high,
        tl.where(sector == 1.0, falling, tl.where(sector == 4.0, rising, lowest)),
    )
    green = tl.where(
        (sector == 1.0) | (sector == 2.0),
        high,
        tl.where(sector == 3.0, falling, tl.where(sector == 0.0, rising, lowest)),
    )
    blue = tl.where(
        (sector == 3.0) | (sector == 4.0),
        high,
        tl.where(sector == 5.0, falling, tl.where(sector == 2.0, rising, lowest)),
    )
    return red, green, blue
