"""Run one recording image through a chain of torchvision transforms by the shortest path.

A transform's own ``__call__`` searches its input for images. With one image as its input the search is unnecessary: the
transform's own ``make_params`` draws, and its own ``transform`` records. Only classes that keep torchvision's
``forward`` take this path; all others are called.

If the calls that ``transform`` makes can be derived (:mod:`.record.templates`), they are derived once and then
written to the tape directly. They are derived again if an attribute of the transform, a method of its class or a
functional changes. The user's own subclasses, and transforms with hooks, always run in full.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F
from torchvision.transforms.v2._transform import _RandomApplyTransform
from torchvision.transforms.v2._utils import check_type

from ...usercode.attributes import attribute
from ...usercode.links import is_called_plainly
from ..ops.table import FUNCTIONALS
from .images import TENSORS, is_recording
from .tape import session
from .templates import Drawn, Template, fact, templates_of

Draw = Callable[[Any], Any]

_MOST = 256  # limit on cached paths through one body


def direct(link: Any) -> Draw:
    """Return the function to call with a recording image in place of ``link``, until its :func:`code_of` changes."""
    cls: Any = type(link)
    if not _is_called_plainly(link):
        return _called(link)
    if cls in _CHAINS and is_torchs(link.forward):
        draw = _in_turn([direct(part) for part in _parts(link)])
        return (lambda image: image if _skips(link.p) else draw(image)) if cls is v2.RandomApply else draw
    if isinstance(link, v2.Transform) and cls.forward in (v2.Transform.forward, _RandomApplyTransform.forward):
        known = is_torchs(cls, link.check_inputs, link.transform, link._call_kernel)
        known = known and not any(map(callable, vars(link).values()))  # user code, which may do anything
        return _Known(link) if known else _Shortened(link)
    return _called(link)


def code_of(link: Any) -> tuple[Any, ...]:
    """Return everything that :func:`direct` depends on, except the attributes of single transforms."""
    if not isinstance(link, (v2.Transform, nn.Sequential)):
        return (id(link),)
    code = (id(link), _is_called_plainly(link), *[attribute(link, name, None) for name in _METHODS])
    return (*code, *map(code_of, _parts(link))) if type(link) in _CHAINS else code


def functionals() -> tuple[Any, ...]:
    """Return the functionals that transforms call, as they are bound now."""
    return tuple([getattr(F, name, None) for name in FUNCTIONALS])


_CHAINS = (v2.Compose, nn.Sequential, v2.RandomApply)
_METHODS = ("forward", "check_inputs", "make_params", "transform", "_call_kernel", "_transformed_types")


def _parts(chain: Any) -> list[Any]:
    return list(attribute(chain, "transforms", chain))


def _is_called_plainly(link: Any) -> bool:
    """Return whether calling the link only calls its class's ``forward``."""
    own = isinstance(link, nn.Module) and type(link).__call__ is nn.Module.__call__
    return own and is_called_plainly(link)


def is_torchs(*methods: Any) -> bool:
    """Return whether all methods are torch's or torchvision's own."""
    return all(str(getattr(method, "__module__", "")).startswith(("torch.", "torchvision.")) for method in methods)


def _called(link: Any) -> Draw:
    """Return a function that calls the link itself, which may keep the image."""

    def draw(image: Any) -> Any:
        if is_recording(image):
            image.tape.open = False
        return link(image)

    return draw


def _in_turn(draws: list[Draw]) -> Draw:
    def draw(image: Any) -> Any:
        for one in draws:
            image = one(image)
        return image

    return draw


def _skips(p: Any) -> bool:
    """Return whether ``torch.rand(1) >= p``, as torchvision's classes decide. Numbers are compared in a third of the
    time of tensors."""
    drawn = torch.rand(1)
    value = drawn.item()
    return bool(value >= p if abs(value - p) > 0.01 else drawn >= p)  # a tensor rounds p to its own dtype first


class _Shortened:
    """Transform that gets one image as its only input."""

    def __init__(self, link: Any) -> None:
        self._link = link
        self._call = _called(link)
        self._checks = _has_own(link, "check_inputs")
        self._at_random = type(link).forward is _RandomApplyTransform.forward
        self._draws = _has_own(link, "make_params")
        self._takes: dict[type, bool] = {}

    def __call__(self, image: Any) -> Any:
        link = self._link
        if not self._is_taken(image):
            return self._call(image)
        image.tape.open = False
        if self._checks:
            link.check_inputs([image])
        if self._at_random and _skips(link.p):
            return image
        return self._recorded(image, link.make_params([image]) if self._draws else {})

    def _is_taken(self, image: Any) -> bool:
        kind = type(image)
        if kind not in self._takes:
            self._takes[kind] = is_recording(image) and check_type(image, self._link._transformed_types)
        return self._takes[kind]

    def _recorded(self, image: Any, drawn: Drawn) -> Any:
        return self._link.transform(image, drawn)


def _has_own(link: Any, method: str) -> bool:
    return getattr(getattr(link, method), "__func__", None) is not getattr(v2.Transform, method)


class _Known(_Shortened):
    """One of torchvision's own transforms. Its body is skipped once its calls are known."""

    def __init__(self, link: Any) -> None:
        super().__init__(link)
        self._attributes = vars(link)
        self._own = operator.itemgetter("training", *(self._attributes.keys() - vars(nn.Module()).keys()))
        self._begin()

    def _begin(self) -> None:
        """Forget what is known about the body and note the current settings."""
        self._settings = _copied(self._own(self._attributes))
        self._ways: dict[Any, list[Template] | None] = {}  # paths through the body; None if the calls cannot be derived
        self._facts: tuple[str, ...] = ()  # names of drawn values that decide which path is taken
        self._checked: set[type] = set()  # image types that passed its check, which looks at types only

    def __call__(self, image: Any) -> Any:
        try:
            changed = self._own(self._attributes) != self._settings
        except (RuntimeError, ValueError):  # tensors and arrays cannot be compared this way
            changed = True
        if changed:
            self._begin()
        kind, link = type(image), self._link
        if kind not in self._checked or session.refused:
            return self._checking(image)
        if self._at_random and _skips(link.p):
            return image
        if self._draws:
            drawn = link.make_params([image])
            way = self._way(kind, drawn)
        else:
            drawn, way = _NOTHING, kind
        templates = self._ways.get(way)
        tape = image.tape
        if templates is None:
            tape.open = False
            return self._recorded(image, drawn)
        if not tape.open:
            tape = tape.copy()
            tape.open = True
            image = image.of(tape)
        for template in templates:
            template.onto(tape, drawn)
        return image

    def _way(self, kind: type, drawn: Drawn) -> Any:
        if not self._facts:
            return kind, *map(type, drawn.values())
        return kind, *map(type, drawn.values()), *[fact(drawn[name]) for name in self._facts]

    def _checking(self, image: Any) -> Any:
        if type(image) in TENSORS and self._is_taken(image):
            self._link.check_inputs([image])
            self._checked.add(type(image))
        return super().__call__(image)

    def _recorded(self, image: Any, drawn: Drawn) -> Any:
        made = super()._recorded(image, drawn)
        if type(image) not in self._checked or session.refused:
            return made
        facts = tuple([name for name, value in drawn.items() if name in self._facts or fact(value) is not None])
        if facts != self._facts or len(self._ways) >= _MOST:
            self._facts = facts
            self._ways.clear()
        way = self._way(type(image), drawn) if self._draws else type(image)
        if way not in self._ways:
            self._ways[way] = templates_of(self._link.transform, image, drawn, made)
        return made


_NOTHING: Drawn = {}


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(part) for key, part in value.items()}
    if type(value) in (list, tuple, set):
        return type(value)(map(_copied, value))
    return value
