"""Try cheaper ways to do what transforms do, in a worker, on inputs that they got: time, and difference of the pixels.

The ways are those of :mod:`pipediag.analysis.recommend.cheaper` that have a key. On recorded inputs, the transform
itself and another way run in turns, with the same random draws. The generators are put back, and a way that fails is
left out.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import math
import statistics
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ...analysis.numbers.chain import grains_of
from ...analysis.recommend.cheaper import DRAFT, LOADING, to_try
from ...clock import time
from ...session import Alternative, Link
from ...usercode import randomness
from ...usercode.attributes import attribute, has_attribute
from ...usercode.chain import Apart
from ...usercode.dissect import with_feeds
from ...usercode.paths import private
from ...usercode.places import label, origin

#: Maximum seconds for all ways, calls of each, and turns of each call; fewer calls than ``_FEWEST`` tell nothing.
SECONDS, INPUTS, _TURNS, _FEWEST = 2.0, 8, 3, 3
#: A way that takes this many times as long in the calls so far is not tried further.
_WORSE = 1.5
#: Pillow's filters by the names of torchvision's.
_FILTERS = ("nearest", "bilinear", "bicubic", "box", "hamming", "lanczos")

#: Does to an input what a transform does.
Way = Callable[[Any], Any]


def tried(recorded: Sequence[Apart], files: Sequence[str], clock: Callable[[], float]) -> list[tuple[int, Alternative]]:
    """Return the ways that could be tried in place of transforms, and in place of decoding the JPEG ``files``.

    Each comes with the number of its link in the chain of the ``recorded`` samples, which is -1 for decoding; the
    training process knows the link's line (:func:`located`). ``clock`` gives the seconds that count.
    """
    until = time.perf_counter() + SECONDS
    found = []
    with randomness.undisturbed(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        inputs = _inputs(recorded, until)
        ways = [
            (position, key, fn, data)
            for position, (fn, data) in sorted(inputs.items())
            for key in to_try(Link(type(fn).__name__, origin=origin(fn), given=_given(data[0])))
        ]
        first = inputs.get(0, (None, []))[0]
        decodes = len(files) >= _FEWEST and type(first).__name__ in ("Resize", "RandomResizedCrop")
        left = len(ways) + decodes
        for position, key, fn, data in ways:
            made = partial(_WAYS[key], fn)
            one = _in_turns(fn, made, data, clock, (until - time.perf_counter()) / left)
            left -= 1
            if one is not None:
                found.append((position, Alternative(label(fn), "", key, *one)))
        if decodes:
            then = first if type(first).__name__ == "Resize" else None  # a crop of fewer pixels is another one
            one = _in_turns(_decoded, partial(_drafted, first), files, clock, until - time.perf_counter(), then)
            if one is not None:
                found.append((-1, Alternative(LOADING, "", DRAFT.key, *one)))
    return found


def located(found: Sequence[tuple[int, Alternative]], links: Sequence[Link]) -> list[Alternative]:
    """Return what was tried, each at the line of its transform; ``links`` are those of the chain, at their lines."""
    told = []
    for position, one in found:
        if position < 0:
            told.append(one)
        elif position < len(links):
            places = [grain.where for _, grain in grains_of(links[position]) if grain.name == one.name]
            told += [replace(one, where=where) for where in places[:1]]
    return told


def _given(data: Any) -> str:
    """Return the kind of a transform's input; see :attr:`pipediag.session.Link.given`."""
    return "tensor" if isinstance(data, torch.Tensor) else "picture" if has_attribute(data, "getbands") else ""


def _inputs(recorded: Sequence[Apart], until: float) -> dict[int, tuple[Any, list[Any]]]:
    """Return each link's transform with inputs that it gets; none of a transform that writes into its input.

    The links before it run again for that, as they do when samples are replayed.
    """
    found: dict[int, tuple[Any, list[Any]]] = {}
    for apart in recorded[:INPUTS]:
        raw, results = apart.linked, dict[int, Any]()
        try:
            for number, call in enumerate(raw.calls):
                given = private(call.arguments) if call.mutates else call.arguments
                args, kwargs = with_feeds(given, raw.feeds[number], results)
                results[number] = call.fn(*args, **kwargs)
                if len(args) == 1 and not kwargs and not call.mutates:
                    found.setdefault(apart.positions[number], (_unwrapped(call.fn), []))[1].append(args[0])
        except Exception:  # a draw that the recorded sample does not fit
            continue
        if time.perf_counter() > until:
            break
    return found


def _unwrapped(fn: Any) -> Any:
    """Return the transform that torchvision's RandomApply applies, if it is one; otherwise the transform itself."""
    inner = attribute(fn, "transforms", None)
    if type(fn).__name__ == "RandomApply" and origin(fn).startswith("torchvision.") and inner and len(inner) == 1:
        return inner[0]
    return fn


def _in_turns(
    fn: Way,
    made: Callable[[], Way | None],
    data: Sequence[Any],
    clock: Callable[[], float],
    seconds: float,
    then: Way | None = None,
) -> tuple[int, float, float, float | None] | None:
    """Return the number of inputs, the milliseconds for one of each of two ways, and the difference of their results.

    Each call has its turn before any has a second one. Results are compared after ``then``, if given. None if the other
    way does not exist or fails, and if there was no time for enough calls.
    """
    until = time.perf_counter() + seconds
    calls = list(itertools.islice(itertools.cycle(data[:INPUTS]), INPUTS))  # other draws, if the inputs are few
    took: list[tuple[list[float], list[float]]] = [([], []) for _ in calls]
    apart: list[float | None] = []
    try:
        instead = made()
        if instead is None:
            return None
        for way in (fn, instead):  # what is done only once
            way(data[0])
        draws = []
        for turn, (number, one) in itertools.product(range(_TURNS), enumerate(calls)):
            if time.perf_counter() > until and len(apart) >= _FEWEST:
                break
            draws += [randomness.state()] if turn == 0 else []
            results: list[Any] = [None, None]
            for which in (0, 1) if (turn + number) % 2 == 0 else (1, 0):
                randomness.restore(draws[number])
                began = clock()
                results[which] = (fn, instead)[which](one)
                took[number][which].append(clock() - began)
            if turn == 0:
                apart.append(_difference(*(results if then is None else map(then, results))))
            if _WORSE * sum(times[0] for times, _ in took if times) < sum(others[0] for _, others in took if others):
                break
    except Exception:  # this input or this version of a library does not fit
        return None
    known = [(statistics.median(times), statistics.median(others)) for times, others in took if times]
    ms, ms_instead = (1000 * statistics.fmean(column) for column in zip(*known, strict=True))
    if ms <= 0 or (len(known) < _FEWEST and ms_instead < _WORSE * ms):
        return None
    compared = [one for one in apart if one is not None]
    difference = round(statistics.fmean(compared), 4) if len(compared) == len(apart) else None
    return min(len(data), len(known)), round(ms, 4), round(ms_instead, 4), difference


def _difference(one: Any, other: Any) -> float | None:
    """Return the mean difference of two pictures in levels of 8 bits, or None if they cannot be compared."""
    before, after = _levels(one), _levels(other)
    if before is None or after is None or before.shape != after.shape:
        return None
    return float((before - after).abs().mean())


def _levels(data: Any) -> torch.Tensor | None:
    if has_attribute(data, "getbands"):
        from torchvision.transforms.functional import pil_to_tensor

        data = pil_to_tensor(data)
    if not isinstance(data, torch.Tensor):
        return None
    data = data.as_subclass(torch.Tensor)
    return 255 * data if data.is_floating_point() else data.float()


# The ways: each function returns what does the same as a transform in another way, or None if that does not exist.


def _without_hue(fn: Any) -> Way | None:
    if not fn.hue:
        return None
    other = copy.copy(fn)
    other.hue = None
    return other  # type: ignore[no-any-return]


def _on_tensors(fn: Any) -> Way | None:
    """Return the transform of v2 with the same settings, on tensors of uint8."""
    from torchvision.transforms import v2
    from torchvision.transforms.functional import pil_to_tensor

    kind = getattr(v2, type(fn).__name__)
    names = [name for name in inspect.signature(kind.__init__).parameters if has_attribute(fn, name)]
    same = fn if isinstance(fn, kind) else kind(**{name: getattr(fn, name) for name in names})
    return lambda picture: same(pil_to_tensor(picture))


def _in_two_steps(fn: Any) -> Way | None:
    """Return resizing by Pillow in two steps, of which the first averages whole pixels."""

    def resize(picture: Any) -> Any:
        box, (height, width) = _region(fn, picture)
        return picture.resize((width, height), resample=_filter(fn), box=box, reducing_gap=2.0)

    return resize


def _region(fn: Any, picture: Any) -> tuple[tuple[int, int, int, int], tuple[int, int]]:
    """Return the box of the picture that is resized, as left, top, right, lower; and the height and width it gets."""
    from torchvision.transforms.functional import _compute_resized_output_size

    width, height = picture.size
    if not has_attribute(fn, "scale"):  # Resize
        size = fn.size if isinstance(fn.size, (list, tuple)) else [fn.size]
        made = _compute_resized_output_size((height, width), list(size), max_size=attribute(fn, "max_size", None))
        return (0, 0, width, height), (int(made[0]), int(made[1]))
    if has_attribute(fn, "make_params"):
        drawn = fn.make_params([picture])
        top, left, high, wide = (drawn[name] for name in ("top", "left", "height", "width"))
    else:
        top, left, high, wide = fn.get_params(picture, fn.scale, fn.ratio)
    return (left, top, left + wide, top + high), (int(fn.size[0]), int(fn.size[1]))


def _filter(fn: Any) -> int:
    from PIL import Image

    name = str(attribute(fn.interpolation, "value", fn.interpolation))
    return int(Image.Resampling[name.upper()]) if name in _FILTERS else int(Image.Resampling.BILINEAR)


def _by_pillow(fn: Any) -> Way | None:
    from PIL import ImageFilter

    def blur(picture: Any) -> Any:
        if has_attribute(fn, "make_params"):
            sigma = fn.make_params([picture])["sigma"][0]
        else:
            sigma = fn.get_params(fn.sigma[0], fn.sigma[1])
        return picture.filter(ImageFilter.GaussianBlur(float(sigma)))

    return blur


_WAYS: dict[str, Callable[[Any], Way | None]] = {
    "hue": _without_hue,
    "tensor": _on_tensors,
    "reducing-gap": _in_two_steps,
    "pillow-blur": _by_pillow,
}


def _decoded(file: str) -> Any:
    from PIL import Image

    with Image.open(file) as picture:
        return picture.convert("RGB")


def _drafted(fn: Any) -> Way:
    """Return the decoding of a JPEG to the pixels that a resize needs.

    A crop is resized from a part of the picture: at least the share of its area that the transform's ``scale`` gives.
    """

    def decode(file: str) -> Any:
        from PIL import Image

        with Image.open(file) as picture:
            _, (height, width) = _region(fn, picture)
            part = math.sqrt(min(1.0, fn.scale[0])) if has_attribute(fn, "scale") else 1.0
            picture.draft("RGB", (math.ceil(width / part), math.ceil(height / part)))
            return picture.convert("RGB")

    return decode
