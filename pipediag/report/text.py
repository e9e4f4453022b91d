"""Provide the text helpers that all reports share: wrapped lines, warnings, and JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable
from typing import Any, Protocol

from ..session import Warning_

#: Width of a line in the terminal.
WIDTH = 100


class Published(Protocol):
    """A subject of a report."""

    def to_dict(self) -> dict[str, Any]: ...


def render_json(subject: Published) -> str:
    return json.dumps(subject.to_dict(), indent=1, allow_nan=False) + "\n"


def bullet(text: str) -> str:
    """Return an entry of a list."""
    return wrapped(text, "  - ")


def wrapped(text: str, first: str) -> str:
    """Return text wrapped behind ``first``, with the following lines indented by its width."""
    return textwrap.fill(text, WIDTH, initial_indent=first, subsequent_indent=" " * len(first))


def warning_texts(warnings: Iterable[Warning_]) -> list[str]:
    """Return each warning with its help."""
    return [w.message + (f" ({w.help})" if w.help else "") for w in warnings]
