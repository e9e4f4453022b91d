"""The shortest way through a chain of torchvision's transforms with one recording image.

A transform's own ``__call__`` looks for images in whatever structure it is given. With one image as the only input
there is nothing to look for: its ``make_params`` draws, its ``transform`` records. Both are the transform's own, so the
draws are what they would be; only classes that keep torchvision's ``forward`` are shortened, all others are called.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torchvision.transforms import v2
from torchvision.transforms.v2._transform import _RandomApplyTransform
from torchvision.transforms.v2._utils import check_type

from .images import after_calls, is_recording
from .tape import Tape

Draw = Callable[[Any], Any]


def direct(link: Any) -> Draw:
    """What to call with a recording image in place of ``link``."""
    called: Draw = link
    cls: Any = type(link)
    if not isinstance(link, nn.Module) or cls.__call__ is not nn.Module.__call__ or _hooked(link):
        return called
    if cls in (v2.Compose, nn.Sequential):
        return _in_turn([direct(part) for part in getattr(link, "transforms", link)])
    if cls is v2.RandomApply:
        draw = _in_turn([direct(part) for part in link.transforms])
        return lambda image: image if torch.rand(1) >= link.p else draw(image)
    if isinstance(link, v2.Transform) and cls.forward in (v2.Transform.forward, _RandomApplyTransform.forward):
        draw = _shortened(link, at_random=cls.forward is _RandomApplyTransform.forward)
        return _remembered(link, draw) if cls in _DETERMINISTIC else draw
    return called


#: Classes that draw nothing: what they do to an image follows from its shape and dtype.
_DETERMINISTIC = (v2.Resize, v2.CenterCrop, v2.Normalize, v2.ToDtype, v2.ConvertImageDtype, v2.Pad, v2.Grayscale)


def _remembered(link: Any, draw: Draw) -> Draw:
    """What ``draw`` records for images of one kind, as long as nobody changes the link."""
    made: dict[Any, Tape] = {}
    settings = copy.deepcopy(vars(link))

    def again(image: Any) -> Any:
        nonlocal settings
        if vars(link) != settings:
            made.clear()
            settings = copy.deepcopy(vars(link))
        tape = getattr(image, "tape", None)
        if tape is None:
            return draw(image)
        kind = (type(image), tape.state)
        known = made.get(kind)
        if known is None:
            after = draw(image)
            if type(after) is type(image) and after.tape.follows(tape):
                made[kind] = after.tape
            return after
        return after_calls(image, tape.then_as(known))

    return again


def _shortened(link: Any, at_random: bool) -> Draw:
    kinds: dict[type, bool] = {}
    make_params, transform = link.make_params, link.transform
    checks = type(link).check_inputs is not v2.Transform.check_inputs
    plain = type(link).make_params is v2.Transform.make_params

    def draw(image: Any) -> Any:
        kind = type(image)
        wanted = kinds.get(kind)
        if wanted is None:
            wanted = kinds[kind] = is_recording(image) and check_type(image, link._transformed_types)
        if not wanted:
            return link(image)
        if checks:
            link.check_inputs([image])
        if at_random and torch.rand(1) >= link.p:
            return image
        return transform(image, {} if plain else make_params([image]))

    return draw


def _in_turn(draws: list[Draw]) -> Draw:
    def draw(image: Any) -> Any:
        for one in draws:
            image = one(image)
        return image

    return draw


def _hooked(link: nn.Module) -> bool:
    return bool(link._forward_hooks or link._forward_pre_hooks)
