"""Make SVG from numbers: elements, places in percent, ticks.

Drawings are as wide as their box and have a fixed height. Places along the width are percentages, so that text keeps
its size on a telephone. Paths cannot have percentages; :func:`plot` stretches them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from html import escape

#: Units along the width of a :func:`plot`.
WIDTH = 1000
#: Control characters but tab and newline, marks that change the direction of text, separators of lines, surrogates.
_OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ufffe\uffff\ud800-\udfff]"
)


class Drawn(str):
    """Finished markup, which templates do not escape."""

    __slots__ = ()

    def __html__(self) -> str:
        return self


def element(name: str, *inside: str, **attributes: str | float | None) -> Drawn:
    """Return an element; ``class_`` is the attribute ``class``, and ``text_anchor`` is ``text-anchor``.

    Text inside and attributes are escaped; attributes that are None are left out.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-") if key != "viewBox" else key}="{_attribute(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    content = "".join(one if isinstance(one, Drawn) else escape(visible(one)) for one in inside)
    return Drawn(f"<{name}{written}>{content}</{name}>")


def image(label: str, height: float, inside: Iterable[Drawn], class_: str = "") -> Drawn:
    """Return a drawing as wide as its box; ``label`` describes it to those who cannot see it."""
    return element(
        "svg", *inside, role="img", aria_label=label, class_=class_ or None, width="100%", height=coordinate(height)
    )


def plot(height: float, *inside: Drawn) -> Drawn:
    """Return a part that stretches along the width, from 0 to :data:`WIDTH`, for paths."""
    return element(
        "svg",
        *inside,
        class_="plot",
        width="100%",
        height=coordinate(height),
        viewBox=f"0 0 {WIDTH} {coordinate(height)}",
        preserveAspectRatio="none",
    )


def place(share: float) -> str:
    """Return a share of the width, kept within 0 and 1, as a percentage."""
    return f"{coordinate(100 * within(share))}%"


def within(share: float) -> float:
    """Return a share kept within 0 and 1; 0 if it is not a number."""
    return min(1.0, max(0.0, share)) if not math.isnan(share) else 0.0


def coordinate(value: float) -> str:
    """Return a number with at most two decimals."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def anchor(share: float) -> str:
    """Return the anchor that keeps a text at this place inside the drawing."""
    return "start" if share < 0.1 else "end" if share > 0.9 else "middle"


def ticks(high: float, count: int = 5) -> list[float]:
    """Return about ``count`` round numbers from 0 to ``high``, which is positive."""
    rough = high / count
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= rough * 0.999)
    return [round(n * step, 12) for n in range(int(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return round numbers between two positive ones for a logarithmic scale: three a decade, fewer if it is wide."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors: Sequence[int] = (1, 2, 5) if last - first <= 2 else (1, 3) if last - first <= 4 else (1,)
    found = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
    return [tick for tick in found if low * 0.999 <= tick <= high * 1.001]


def visible(text: str) -> str:
    """Return text with escapes for what a browser would obey: a right-to-left mark becomes ``\\u200f``."""
    return _OBEYED.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def _attribute(value: str | float) -> str:
    return escape(visible(value)) if isinstance(value, str) else coordinate(value)
