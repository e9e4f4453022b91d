"""Derive the functional calls in a transform's body once, as templates with placeholders for drawn values.

The ``transform`` method of most torchvision classes passes drawn values on to functionals, and at most checks whether
they are present. So its body is run once with tokens in place of the values: it makes the same calls for every sample.
A body that reads a value or the image cannot be handled this way: a token raises when it is read, and so does the
image, which has no tape.
"""

from __future__ import annotations

import enum
import functools
import inspect
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...usercode import randomness
from ..ops.op import NotRecordable, Op, State
from ..ops.table import FUNCTIONALS
from .images import blank, writes
from .tape import Call, Tape, session

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
    if type(setting) in (list, tuple):
        return all(map(_is_plain, setting))
    return setting is None or isinstance(setting, (int, float, str, enum.Enum, torch.dtype))


def _same(templates: list[Template], image: Any, drawn: Drawn, made: Any) -> bool:
    tape = image.tape.copy()
    for template in templates:
        template.onto(tape, drawn)
    return type(made) is type(image) and (tape.track(), tape.calls) == (made.tape.track(), made.tape.calls)
