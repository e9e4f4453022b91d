"""Run one recording image through a chain of torchvision transforms by the shortest path.

A transform's own ``__call__`` searches its input for images. With one image as its input the search is unnecessary: the
transform's own ``make_params`` draws, and its own ``transform`` records. Only classes that keep torchvision's
``forward`` take this path; all others are called.

If the calls that ``transform`` makes can be derived (:class:`Template`), they are derived once and then
written to the tape directly. They are derived again if an attribute of the transform, a method of its class or a
functional changes. The user's own subclasses, and transforms with hooks, always run in full.
"""

from __future__ import annotations

import enum
import functools
import inspect
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F
from torchvision.transforms.v2._transform import _RandomApplyTransform
from torchvision.transforms.v2._utils import check_type

from ...usercode import randomness
from ...usercode.attributes import attribute, is_exactly
from ...usercode.links import is_called_plainly
from ..ops.library_code import is_original
from ..ops.op import NotRecordable, Op, State
from ..ops.table import FUNCTIONALS
from .call import Call
from .functional_calls import writes
from .images import TENSORS, blank
from .session import session, why_not_now
from .substitutes import is_recording
from .tape import Tape

#: Values that a transform has drawn for a sample, by their names in the transform.
Drawn = dict[str, Any]

_STATES = 256  # limit on image states with a cached encoder


class Token:
    """Placeholder for a drawn value. It can only be passed on."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def _looked_at(self, *_: Any) -> Any:
        raise LookedAt(self.name)

    # Any other operation raises anyway: only these are defined for every object.
    __bool__ = __eq__ = __ne__ = __hash__ = _looked_at


class LookedAt(Exception):
    """Error: a body does more with a drawn value than pass it on."""


def fact(value: Any) -> Any:
    """Return what a body may branch on in addition to the value's type; None if there is nothing.

    It is the value of a bool, or the elements of a 1-d integer tensor, for example a permutation.
    """
    if type(value) is bool:
        return value
    if type(value) is Tensor and value.ndim == 1 and not value.is_floating_point():
        return tuple(value.tolist())
    return None


class Template:
    """Functional call of the name ``name`` in torchvision, with tokens in place of drawn values."""

    def __init__(self, name: str, call: Call) -> None:
        self._call = call
        self._encoder = functools.lru_cache(_STATES)(_encoding(name, self, call))

    def onto(self, tape: Tape, drawn: Drawn) -> None:
        """Write the call to the tape."""
        tape.add(self._encoder(tape.state)(drawn), self, drawn)

    def __call__(self, drawn: Drawn) -> Call:
        """Return the call with the values in place of the tokens."""
        args = tuple([_filled(value, drawn) for value in self._call.args])
        return Call(self._call.fn, args, {name: _filled(value, drawn) for name, value in self._call.kwargs.items()})


_Encode = Callable[[Drawn], list[Op]]


def _encoding(name: str, filled: Callable[[Drawn], Call], call: Call) -> Callable[[State], _Encode]:
    """Return a function from an image state to the encoder of a call, which does only the work that needs drawn
    values."""
    _, *given = inspect.signature(call.fn).bind(None, *call.args, **call.kwargs).arguments.items()  # the image is first
    settings = {argument: value for argument, value in given if not isinstance(value, Token)}
    tokens = {argument: value.name for argument, value in given if isinstance(value, Token)}
    functional = FUNCTIONALS[name]
    prepare, names, encoder = functional.prepare, functional.drawn, functional.encode

    def for_state(state: State) -> _Encode:
        if not tokens:
            ops: list[Op] = encoder(state, *call.args, **call.kwargs)
            return lambda drawn: ops
        if prepare is not None and tokens.keys() == set(names):
            encode, (one, *others) = prepare(state, **settings), [tokens[name] for name in names]
            several = operator.itemgetter(one, *others)
            return (lambda drawn: encode(*several(drawn))) if others else (lambda drawn: encode(drawn[one]))

        def each_time(drawn: Drawn) -> list[Op]:
            made = filled(drawn)
            ops: list[Op] = encoder(state, *made.args, **made.kwargs)
            return ops

        return each_time

    return for_state


def _filled(value: Any, drawn: Drawn) -> Any:
    return drawn[value.name] if isinstance(value, Token) else value


def templates_of(transform: Callable[[Any, Drawn], Any], image: Any, drawn: Drawn, made: Any) -> list[Template] | None:
    """Return the calls of a transform's body for values of these types and facts; None if they cannot be derived.

    Args:
        transform: the body.
        image: a recording image.
        drawn: the values drawn for it.
        made: the body's result for them, which the templates must give too.
    """
    kept, raised = randomness.state(), NotRecordable.raised
    calls: list[tuple[str, Call]] = []
    session.dictation = calls
    probe = blank(type(image))
    try:
        if transform(probe, {name: _token(name, value) for name, value in drawn.items()}) is not probe:
            return None
        if randomness.moved(kept, randomness.state()) or not all(_can_be_told(*call) for call in calls):
            return None
        templates = [Template(*call) for call in calls]
        return templates if _same(templates, image, drawn, made) else None
    except Exception:  # the body or a comparison cannot handle tokens
        return None
    finally:
        session.dictation = None
        NotRecordable.raised = raised
        randomness.restore(kept)


def _token(name: str, value: Any) -> Any:
    known = fact(value)
    if known is None:
        return None if value is None else Token(name)
    return list(known) if isinstance(known, tuple) else known


def _can_be_told(name: str, call: Call) -> bool:
    functional = FUNCTIONALS[name]
    settings = [value for value in (*call.args, *call.kwargs.values()) if not isinstance(value, Token)]
    if functional.several or functional.draws or writes(functional, call.args, call.kwargs):
        return False
    return all(map(_is_plain, settings))


def _is_plain(setting: Any) -> bool:
    """Return whether the setting can only change with the transform's attributes. A tensor can be written into."""
    if is_exactly(setting, list, tuple):
        return all(map(_is_plain, setting))
    return setting is None or isinstance(setting, (int, float, str, enum.Enum, torch.dtype))


def _same(templates: list[Template], image: Any, drawn: Drawn, made: Any) -> bool:
    tape = image.tape.copy()
    for template in templates:
        template.onto(tape, drawn)
    return type(made) is type(image) and (tape.track(), tape.calls) == (made.tape.track(), made.tape.calls)


Draw = Callable[[Any], Any]

_MOST = 256  # limit on cached paths through one body


def direct(link: Any) -> Draw:
    """Return the function to call with a recording image in place of ``link``, until its :func:`code_of` changes."""
    cls: Any = type(link)
    if not _is_called_plainly(link):
        return _called(link)
    if is_exactly(link, *_CHAINS) and is_original(link.forward):
        draw = _in_turn([direct(part) for part in _parts(link)])
        return (lambda image: image if _skips(link.p) else draw(image)) if cls is v2.RandomApply else draw
    if isinstance(link, v2.Transform) and cls.forward in (v2.Transform.forward, _RandomApplyTransform.forward):
        known = is_original(cls, link.check_inputs, link.transform, link._call_kernel)
        known = known and not any(map(callable, vars(link).values()))  # user code, which may do anything
        return _Known(link) if known else _Shortened(link)
    return _called(link)


def code_of(link: Any) -> tuple[Any, ...]:
    """Return everything that :func:`direct` depends on, except the attributes of single transforms."""
    if not isinstance(link, (v2.Transform, nn.Sequential)):
        return (id(link),)
    code = (id(link), _is_called_plainly(link), *[attribute(link, name, None) for name in _METHODS])
    return (*code, *map(code_of, _parts(link))) if is_exactly(link, *_CHAINS) else code


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
        if not is_recording(image):
            return False
        kind = type(image)
        if kind not in self._takes:
            self._takes[kind] = check_type(image, self._link._transformed_types)
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
        self._checked: set[int] = set()  # ids of our image types that passed its check, which looks at types only

    def __call__(self, image: Any) -> Any:
        if why_not_now():
            return self._call(image)
        try:
            changed = self._own(self._attributes) != self._settings
        except (RuntimeError, ValueError):  # tensors and arrays cannot be compared this way
            changed = True
        if changed:
            self._begin()
        kind, link = type(image), self._link
        if id(kind) not in self._checked or session.refused:
            return self._checking(image)
        tape = image.tape
        if not tape.open and not tape.is_recorded:
            return self._call(image)
        if self._at_random and _skips(link.p):
            return image
        if self._draws:
            drawn = link.make_params([image])
            way = self._way(kind, drawn)
        else:
            drawn, way = _NOTHING, kind
        templates = self._ways.get(way)
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
        if self._is_taken(image) and type(image) in TENSORS:
            self._link.check_inputs([image])
            self._checked.add(id(type(image)))
        return super().__call__(image)

    def _recorded(self, image: Any, drawn: Drawn) -> Any:
        made = super()._recorded(image, drawn)
        if id(type(image)) not in self._checked or session.refused:
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
    if is_exactly(value, list, tuple, set):
        return type(value)(map(_copied, value))
    return value
