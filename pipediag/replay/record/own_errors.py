"""Tell the errors that the user's code raises by itself from those that a recording image may have caused."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import FrameType

from ...frames import is_users
from ..ops.op import NotRecordable
from .recorder import holds_recording

#: What code raises if it gets another type than it expects: a recording image may be the cause even if it asks first.
_OF_TYPES = (TypeError, AttributeError, NotImplementedError)
#: What no operation on a recording image raises.
_OF_OTHERS = (LookupError, ArithmeticError, OSError, StopIteration)
_RAISES = dis.opmap["RAISE_VARARGS"]


def is_users_own(error: BaseException) -> bool:
    """Return whether the error, and each that was handled when it was raised, would be raised with real images too.

    That is certain if user code raises it in a statement of its own, and it is not about types; or if a library does
    whose functions got no recording image. What code decides by, a recording image answers as the real one does.
    """
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        if isinstance(one, NotRecordable) or not _is_own(one):
            return False
        one = one.__cause__ or one.__context__
    return True


def _is_own(error: BaseException) -> bool:
    frames = list(_frames(error))
    users = [k for k, (frame, _) in enumerate(frames) if is_users(frame.f_code.co_filename)]
    if not users:
        return False
    beneath = frames[users[-1] + 1 :]
    if beneath:  # functions of libraries
        return not any(_holds(frame) for frame, _ in beneath)
    frame, place = frames[-1]
    states = frame.f_code.co_code[place] == _RAISES
    return isinstance(error, _OF_OTHERS) or (states and not isinstance(error, _OF_TYPES))


def _frames(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    """Yield each frame of the traceback, with the place in its code."""
    traceback = error.__traceback__
    while traceback is not None:
        yield traceback.tb_frame, traceback.tb_lasti
        traceback = traceback.tb_next


def _holds(frame: FrameType) -> bool:
    try:
        return holds_recording(list(frame.f_locals.values()))
    except Exception:  # an object's own protocols fail
        return True
