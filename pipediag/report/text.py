"""What every report writes alike: lines of a terminal's width, warnings, and JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable
from typing import Any, Protocol

from ..session import Warning_

#: Columns of a line in the terminal.
WIDTH = 100


class Published(Protocol):
    """What a report is made of."""

    def to_dict(self) -> dict[str, Any]: ...


def render_json(subject: Published) -> str:
    return json.dumps(subject.to_dict(), indent=1, allow_nan=False) + "\n"


def bullet(text: str) -> str:
    """An entry of a list."""
    return wrapped(text, "  - ")


def wrapped(text: str, first: str) -> str:
    """Text behind ``first``, with what follows the first line indented as far."""
    return textwrap.fill(text, WIDTH, initial_indent=first, subsequent_indent=" " * len(first))


def warning_texts(warnings: Iterable[Warning_]) -> list[str]:
    """Each with what helps."""
    return [w.message + (f" ({w.help})" if w.help else "") for w in warnings]
