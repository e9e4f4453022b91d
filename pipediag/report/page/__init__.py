"""Write one HTML file about a subject. It contains its style and its one script, and needs no network."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import jinja2

from ..._version import __version__
from ...analysis import Diagnosis
from ...analysis.compare import Comparison
from ...analysis.summary import Summary, summarise
from ...analysis.words import STAGES, number, percent
from .. import Subject
from . import steps, svg
from .parts import Page
from .raw import embedded
from .subjects import page_of
from .svg import Drawn, visible

_TEMPLATES = Path(__file__).parent / "templates"
#: The model's own step as a part of the bar.
_MODEL = "the model"
#: A sign beside each tone, for those who cannot see its colour.
_SIGNS = {"good": "✓", "doubtful": "?", "bad": "!"}


def render(
    summary: Summary, page: Page, data: str = "", note: str = "", steps: Sequence[Sequence[svg.Segment]] = ()
) -> str:
    """Return the page as HTML.

    Args:
        data: JSON that is safe in a script element; ``note`` says what it holds.
        steps: the parts of a step under each rate of the summary, if they are not those of its causes.
    """
    style, script = _asset("style.css"), _asset("page.js")
    return _template().render(
        summary=summary,
        page=page,
        rates=_rates(summary, steps),
        style=style,
        script=script,
        policy=f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}",
        data=Drawn(data),
        note=note,
        version=__version__,
    )


def _rates(summary: Summary, steps: Sequence[Sequence[svg.Segment]] = ()) -> list[tuple[str, Drawn, str, str]]:
    """Return name, bar, figure and note of each rate of the summary.

    If the causes are known, the bars are the time of a step: as it is, with the causes as its parts, and if data were
    free. Otherwise they are those of ``steps``, or the rates.
    """
    steps = list(steps)
    if not steps and summary.causes and len(summary.rates) == 2:
        now, possible = summary.rates
        costs = sorted([*summary.causes, *summary.rest], key=lambda one: (one.name != STAGES["compute"], -one.share))
        data = [one.name for one in costs if one.name != STAGES["compute"]]
        parts = [
            svg.Segment(
                one.name if one.name in data else _MODEL,
                one.share,
                f"t{4 - min(data.index(one.name), 3)}" if one.name in data else "neutral",
                f"{number(one.ms)} ms of each step",
            )
            for one in costs
        ]
        alone = f"{number(1000 / possible.steps_per_s)} ms for a step"
        steps = [parts, [svg.Segment(_MODEL, now.steps_per_s / possible.steps_per_s, "neutral", alone)]]
    high, rows = max((rate.steps_per_s for rate in summary.rates), default=0.0) or 1.0, []
    for n, rate in enumerate(summary.rates):
        told = f"{number(rate.steps_per_s)} steps/s"
        if steps:
            label = ", ".join(f"{one.name} {one.note}" for one in steps[n])
            drawn = svg.stack(f"{told}: {label}", steps[n])
        else:
            drawn = svg.bar(told, rate.steps_per_s / high, "accent" if n else "neutral", height=22)
        rows.append((rate.name, drawn, told, rate.note))
    return rows


def _asset(name: str) -> Drawn:
    return Drawn((_TEMPLATES / name).read_text(encoding="utf-8"))


def _hash(text: str) -> str:
    """Return the source of a content security policy that allows exactly this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.filters["whole"], environment.filters["prose"] = _whole, _prose
    environment.filters["step"], environment.filters["typed"] = _step, _typed
    environment.filters["kind"] = lambda block: type(block).__name__
    environment.filters["number"], environment.filters["percent"] = number, percent
    environment.filters["share_bar"] = lambda share, label: svg.bar(label, share)
    environment.globals["signs"] = _SIGNS
    return environment.get_template("page.html")


def _whole(text: str) -> str:
    """Return a name that breaks only behind its slashes and at its spaces, unless it is very long between them."""
    if isinstance(text, Drawn) or max(map(len, text.replace("/", " ").split(" "))) > _LONGEST:
        return text
    parts = [escape(visible(part)) for part in text.split("/")]
    return Drawn(f'<span class="whole">{"/<wbr>".join(parts)}</span>')


def _prose(text: str) -> Drawn:
    """Return a sentence with its places, settings, options and calls in code font."""
    marked, end = "", 0
    for found in _CODE.finditer(text):
        marked += f"{escape(visible(text[end : found.start()]))}<code>{escape(visible(found[0]))}</code>"
        end = found.end()
    return Drawn(marked + escape(visible(text[end:])))


def _step(line: str) -> Drawn:
    """Return a line of an action: a command apart, after the words that introduce it, or a sentence."""
    words, _, command = line.rpartition(": ") if not line.startswith("pipediag ") else ("", "", line)
    if not command.startswith("pipediag "):
        return Drawn(f"<p>{_prose(line)}</p>")
    lead = f'<p class="lead">{escape(visible(words.capitalize()))}</p>' if words else ""
    return Drawn(f'{lead}<pre class="command"><code>{_typed(command)}</code></pre>')


def _typed(command: str) -> Drawn:
    """Return a command that breaks between its words, unless one is very long: not behind the hyphens of an option."""
    words = [(escape(visible(word)), len(word) <= _LONGEST) for word in command.split(" ")]
    return Drawn(" ".join(f'<span class="word">{word}</span>' if short else word for word, short in words))


def _shown(value: Any) -> Any:
    """Return text with control characters made visible; finished markup as it is."""
    return visible(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


#: Words of a sentence that stand for code: file:line, an option, setting=value, a call, __name__.
_CODE = re.compile(
    r"[\w./-]+\.py:\d+|(?<!\S)--[a-z][\w-]*|\b\w+=\w+|__\w+__|\b[\w.\[\]]+\([^()]*(?:\([^()]*\)[^()]*)*\)(?:\.\w+)*"
)
#: Maximum characters of a name that is never broken inside.
_LONGEST = 32
#: Maximum bytes of a page.
_LIMIT = 500_000
#: Pixels of the answer in a notebook: those around the rows, and of one row.
_FRAME, _ROW = 420, 80


def write(subject: Subject) -> str:
    """Return the page; its data is thinned out so that it stays below 500 KB."""
    summary, page, sides = summarise(subject), page_of(subject), list[list[svg.Segment]]()
    if isinstance(subject, Comparison) and len(summary.rates) == 2:
        slowest = min(rate.steps_per_s for rate in summary.rates)
        parts = [slowest / rate.steps_per_s for rate in summary.rates]  # both steps on one scale
        sides = [steps.segments(one, part) for one, part in zip((subject.before, subject.after), parts, strict=True)]
    sides = sides if all(sides) else []
    if not isinstance(subject, Comparison):  # the first part is the table of all checks, or all runs
        summary = replace(summary, findings=[])
    bare = render(summary, page, steps=sides)
    data, note = embedded(subject, _LIMIT - len(bare.encode("utf-8", "backslashreplace")) - 1000)
    return render(summary, page, data, note, sides)


def first_part(diagnosis: Diagnosis) -> str:
    """Return the answer alone, as an element for a notebook: a frame, so that no style leaks into the notebook."""
    summary = replace(summarise(diagnosis), notes=0)  # they would be further down
    page = render(summary, Page(diagnosis.session.script.line, []))
    rows = max(len(summary.causes), 1.6 * len(summary.actions)) + len(summary.careful)
    height = f"width: 100%; height: {_FRAME + _ROW * rows:.0f}px; border: 0"
    return f'<iframe title="pipediag" srcdoc="{escape(page)}" style="{height}"></iframe>'
