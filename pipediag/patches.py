"""Replace attributes of other people's classes and modules, and hold hooks on them, within a context.

Every global patch of pipediag is listed in :data:`LIVE`, so that one check sees them all: it is empty whenever no
analysis and no remedy is running.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

#: What is patched or hooked now, as text.
LIVE: list[str] = []


class Handle(Protocol):
    """What torch returns for a registered hook."""

    def remove(self) -> None: ...


@contextmanager
def replaced(owner: Any, name: str, stand_in: Any) -> Iterator[None]:
    """Replace an attribute of a class or module within the context; an inherited one is shadowed."""
    own = name in vars(owner)
    native = vars(owner).get(name)
    setattr(owner, name, stand_in)
    with live(f"{owner!r}.{name}"):
        try:
            yield
        finally:
            if own:
                setattr(owner, name, native)
            else:
                delattr(owner, name)


@contextmanager
def hooked(handle: Handle) -> Iterator[None]:
    """Keep a hook of torch's registered within the context."""
    with live(repr(handle)):
        try:
            yield
        finally:
            handle.remove()


@contextmanager
def live(what: str) -> Iterator[None]:
    """List ``what`` as patched within the context, for a module that patches in its own way."""
    LIVE.append(what)
    try:
        yield
    finally:
        LIVE.remove(what)
