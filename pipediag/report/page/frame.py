"""Render a page with its templates. It contains its style and its one script, and may load nothing else."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from ..._version import __version__
from ...analysis.summary import Summary
from ...analysis.words import number, percent
from . import bars
from .parts import Page
from .svg import Drawn, visible

_TEMPLATES = Path(__file__).parent / "templates"
#: A sign beside each tone, for those who cannot see its colour.
_SIGNS = {"good": "✓", "doubtful": "?", "bad": "!"}


def render(summary: Summary, page: Page, data: str = "", note: str = "") -> str:
    """Return the page as HTML; ``data`` is JSON that is safe in a script element, ``note`` says what it holds."""
    style, script = _asset("style.css"), _asset("sort.js")
    return (
        _environment()
        .get_template("page.html")
        .render(
            summary=summary,
            page=page,
            rates=_rates(summary),
            style=style,
            script=script,
            policy=f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}",
            data=Drawn(data),
            note=note,
            version=__version__,
        )
    )


def _rates(summary: Summary) -> list[tuple[str, Drawn, str, str]]:
    """Return name, bar, figure and note of each rate of the summary."""
    high = max((rate.steps_per_s for rate in summary.rates), default=0.0) or 1.0
    rows = []
    for n, rate in enumerate(summary.rates):
        told, colour = f"{number(rate.steps_per_s)} steps/s", "accent" if n else "neutral"
        drawn = bars.bar(told, rate.steps_per_s / high, colour, height=22)
        rows.append((rate.name, drawn, told, rate.note))
    return rows


def _asset(name: str) -> Drawn:
    return Drawn((_TEMPLATES / name).read_text(encoding="utf-8"))


def _hash(text: str) -> str:
    """Return the source of a content security policy that allows exactly this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.filters["kind"] = lambda block: type(block).__name__
    environment.filters["number"], environment.filters["percent"] = number, percent
    environment.filters["share_bar"] = lambda share, label: bars.bar(label, share)
    environment.globals["signs"] = _SIGNS
    return environment


def _shown(value: Any) -> Any:
    """Return text with control characters made visible; finished markup as it is."""
    return visible(value) if isinstance(value, str) and not hasattr(value, "__html__") else value
