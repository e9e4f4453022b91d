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
_PILLOW_CONTRAST = tl.constexpr(int(PixelOp.PILLOW_CONTRAST))
_PILLOW_SATURATION = tl.constexpr(int(PixelOp.PILLOW_SATURATION))
_PILLOW_HUE = tl.constexpr(int(PixelOp.PILLOW_HUE))
_PILLOW_GRAYSCALE = tl.constexpr(int(PixelOp.PILLOW_GRAYSCALE))
_POINT = tl.constexpr(int(PixelOp.POINT))

_HORIZONTALLY = tl.constexpr(FLIP_HORIZONTALLY)
_VERTICALLY = tl.constexpr(FLIP_VERTICALLY)

_TO_UNIT = tl.constexpr(1.0 / 255.0)
_FROM_UNIT = tl.constexpr(255.0 + 1.0 - 1e-3)
_SIXTH = tl.constexpr(1.0 / 6.0)


# The alignment of the tables changes from batch to batch; it must not trigger a recompilation.
@triton.jit(
    do_not_specialize=["steps", "done", "rounds", "height", "width"],
    do_not_specialize_on_alignment=["codes", "operands", "tables", "sums"],
)
def sum_kernel(
    x,
    codes,
    operands,
    tables,
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
    PILLOW: tl.constexpr,
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
    kind = _CONTRAST
    for k in range(steps):
        code = tl.load(codes + k)
        counted = _needs_mean(code)
        kind = tl.where(counted & (contrasts == done), code, kind)
        contrasts += counted.to(tl.int32)
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
                    tables,
                    steps,
                    sums,
                    height * width,
                    done,
                    True,
                    CHANNELS,
                    FLOATING,
                    PILLOW,
                    SLICES,
                )
                grey = _cut(_grey(red, green, blue, CHANNELS), floating)
                if PILLOW:
                    grey = tl.where(kind == _PILLOW_CONTRAST, _pillow_grey(red, green, blue, CHANNELS), grey)
                total += tl.where(j < width, grey, 0.0)
        tl.store(sums + done * SLICES + tl.program_id(0), tl.sum(total.to(tl.float64)))


@triton.jit(
    do_not_specialize=["flips_stride", "steps", "rounds", "height", "width"],
    do_not_specialize_on_alignment=["codes", "operands", "tables", "sums", "flips"],
)
def pixel_kernel(
    x,
    out,
    codes,
    operands,
    tables,
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
    PILLOW: tl.constexpr,
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
        red,
        green,
        blue,
        codes,
        operands,
        tables,
        steps,
        sums,
        height * width,
        -1,
        CONTRAST,
        CHANNELS,
        FLOATING,
        PILLOW,
        SLICES,
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
    tables,
    steps,
    sums,
    pixels,
    until,
    CONTRAST: tl.constexpr,
    CHANNELS: tl.constexpr,
    FLOATING: tl.constexpr,
    PILLOW: tl.constexpr,
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
        elif PILLOW:
            if op == _PILLOW_CONTRAST:
                if CONTRAST:
                    mean = _pillow_mean(sums + contrasts * SLICES, pixels, SLICES)
                    contrasts += 1
                    red = _pillow_blended(red, mean, a)
                    green = _pillow_blended(green, mean, a)
                    blue = _pillow_blended(blue, mean, a)
            elif op == _PILLOW_SATURATION:
                if CHANNELS == 3:
                    grey = _pillow_grey(red, green, blue, CHANNELS)
                    red = _pillow_blended(red, grey, a)
                    green = _pillow_blended(green, grey, a)
                    blue = _pillow_blended(blue, grey, a)
            elif op == _PILLOW_HUE:
                if CHANNELS == 3:
                    red, green, blue = _pillow_turned(red, green, blue, a)
            elif op == _PILLOW_GRAYSCALE:
                red = _pillow_grey(red, green, blue, CHANNELS)
                green = red
                blue = red
            elif op == _POINT:
                table = tables + a.to(tl.int32) * (256 * CHANNELS)
                red = tl.load(table + red.to(tl.int32)).to(tl.float32)
                if CHANNELS == 3:
                    green = tl.load(table + 256 + green.to(tl.int32)).to(tl.float32)
                    blue = tl.load(table + 512 + blue.to(tl.int32)).to(tl.float32)
                else:
                    green = red
                    blue = red
        step += 1
        op = _fetch(codes, step, steps, contrasts, until)
    return red, green, blue, floating


@triton.jit
def _fetch(codes, step, steps, contrasts, until):
    """Return the next code; END after the last one, and for the contrast at which to stop."""
    op = tl.load(codes + step, mask=step < steps, other=0)
    return tl.where(_needs_mean(op) & (contrasts == until), 0, op)


@triton.jit
def _needs_mean(op):
    return (op == _CONTRAST) | (op == _PILLOW_CONTRAST)


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
    red = _channel(sector, 0.0, high, falling, rising, lowest)
    green = _channel(sector, 4.0, high, falling, rising, lowest)
    blue = _channel(sector, 2.0, high, falling, rising, lowest)
    return red, green, blue


@triton.jit
def _channel(sector, ahead, high, falling, rising, lowest):
    """Return a channel by the sector of the hue.

    Red is high in sectors 5 and 0, falls in 1, is low in 2 and 3, and rises in 4. Green and blue are 4 and 2 sectors
    ahead of it.
    """
    here = sector + ahead
    here = tl.where(here >= 6.0, here - 6.0, here)
    return tl.where(
        (here == 0.0) | (here == 5.0),
        high,
        tl.where(here == 1.0, falling, tl.where(here == 4.0, rising, lowest)),
    )


# --- the same as Pillow computes it; see families/pillow_colour.py


@triton.jit
def _pillow_grey(red, green, blue, CHANNELS: tl.constexpr):
    """Return the grey of mode L. All numbers are whole and below 2**24, so float32 holds them."""
    grey = tl.floor((red * 19595.0 + green * 38470.0 + blue * 7471.0 + 32768.0) * (1.0 / 65536.0))
    return grey if CHANNELS == 3 else red


@triton.jit
def _pillow_mean(sums, pixels, SLICES: tl.constexpr):
    """Return the mean grey, rounded to a whole number."""
    total = tl.sum(tl.load(sums + tl.arange(0, SLICES)))
    return tl.floor(total / pixels.to(tl.float64) + 0.5).to(tl.float32)


@triton.jit
def _pillow_blended(x, other, factor):
    """Return ``other + factor * (x - other)``, truncated; product and sum are rounded separately."""
    return tl.floor(tl.minimum(tl.maximum((x - other) * factor + other, 0.0), 255.0))


@triton.jit
def _pillow_turned(red, green, blue, steps):
    """Turn the hue of colours by 256ths of the full circle: to mode HSV and back."""
    high = tl.maximum(tl.maximum(red, green), blue)
    chroma = high - tl.minimum(tl.minimum(red, green), blue)
    is_grey = chroma == 0.0
    divisor = tl.where(is_grey, 1.0, chroma)
    saturation = tl.div_rn(chroma, tl.where(is_grey, 1.0, high))
    from_red = tl.div_rn(high - red, divisor)
    from_green = tl.div_rn(high - green, divisor)
    from_blue = tl.div_rn(high - blue, divisor)
    after_green = 2.0 + from_red.to(tl.float64) - from_blue.to(tl.float64)
    after_blue = 4.0 + from_green.to(tl.float64) - from_red.to(tl.float64)
    sixths = tl.where(
        high == red, from_blue - from_green, tl.where(high == green, after_green, after_blue).to(tl.float32)
    )
    turn = sixths.to(tl.float64) / 6.0 + 1.0
    hue = tl.where(is_grey, 0.0, (turn - tl.floor(turn)).to(tl.float32))
    hue = tl.floor(hue.to(tl.float64) * 255.0).to(tl.float32) + steps
    hue = tl.where(hue >= 256.0, hue - 256.0, hue)
    strength = tl.floor(saturation.to(tl.float64) * 255.0) / 255.0

    turn = hue.to(tl.float64) * 6.0 / 255.0
    sector = tl.floor(turn)
    progress = (turn - sector).to(tl.float32)
    strength = strength.to(tl.float32)
    value = high.to(tl.float64)
    lowest = _pillow_part(value, strength.to(tl.float64))
    falling = _pillow_part(value, (strength * progress).to(tl.float64))
    rising = _pillow_part(value, strength.to(tl.float64) * (1.0 - progress.to(tl.float64)))
    sector = tl.where(sector >= 6.0, sector - 6.0, sector).to(tl.float32)
    red = _channel(sector, 0.0, high, falling, rising, lowest)
    green = _channel(sector, 4.0, high, falling, rising, lowest)
    blue = _channel(sector, 2.0, high, falling, rising, lowest)
    return red, green, blue


@triton.jit
def _pillow_part(value, share):
    return tl.floor(value * (1.0 - share) + 0.5).to(tl.float32)
