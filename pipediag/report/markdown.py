"""Write blocks as Markdown, for a pull request or the summary of a CI job."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from .document import Advice, Block, Check, Checklist, Code, Listing, Location, Paragraph, Section, Table, Title


def write(blocks: Iterable[Block]) -> str:
    paged = sorted(blocks, key=lambda block: block.page if isinstance(block, Section) else 0)
    return "\n\n".join(part for block in paged for part in _parts(block)) + "\n"


def _parts(block: Block) -> list[str]:
    """Return the parts of a block, which empty lines separate."""
    match block:
        case Title():
            note = f"  ({block.note})" if block.note else ""
            return [f"# {block.headline}{note}", *([f"`{block.subject}`"] if block.subject else [])]
        case Paragraph(text):
            return [text]
        case Location(label, name, where):
            return [f"{_capital(label)}: `{name}`" + (f" at `{where}`" if where else "")]
        case Listing(entries, code):
            return ["\n".join(f"- `{entry}`" if code else f"- {entry}" for entry in entries)]
        case Table(headers, align, rows, code=code):
            cells = [[f"`{_bars(row[0])}`" if code else _cell(row[0]), *map(_cell, row[1:])] for row in rows]
            return [_table([*map(_cell, headers)], align, cells)]
        case Code(label, code_lines, language):
            return [f"{_capital(label)}:", "\n".join([f"```{language}", *code_lines, "```"])]
        case Advice():
            return [_advice(block)]
        case Checklist(checks):
            return [_table(["", "check", "measured", "what to do"], "llll", [*map(_check, checks)])]
        case Section(title, blocks):
            return [f"## {_capital(title)}", *(part for inner in blocks for part in _parts(inner))]


def _table(headers: Sequence[str], align: str, rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f" {header} |" if header else " |" for header in headers)
    rule = "".join("--:|" if side == "r" else "---|" for side in align)
    return "\n".join([f"|{head}", f"|{rule}", *(f"| {' | '.join(row)} |" for row in rows)])


def _advice(one: Advice) -> str:
    lines = [f"{one.number}. **{one.title}** ({one.stage}): {one.gain}"]
    lines += [f"   - {text}" for text in (one.savings, *one.reasons) if text]
    code = ["```python", *one.code, "```"] if one.code else []
    lines += [f"   - how: {one.how}", *(textwrap.indent(line, " " * 5) for line in code), f"   - risk: {one.risk}"]
    return "\n".join(lines)


def _check(check: Check) -> list[str]:
    status = f"**{check.status}**" if check.tone == "bad" else check.status
    return [status, _cell(check.title), _cell(check.figures), "<br>".join(map(_cell, check.todo))]


def _cell(text: str) -> str:
    """Return text for a table cell: a bar would end the cell, and an angle bracket would begin a tag."""
    return _bars(text.replace("&", "&amp;").replace("<", "&lt;").replace("\n", " "))


def _bars(text: str) -> str:
    return text.replace("|", "\\|")


def _capital(title: str) -> str:
    """Return a title with a capital letter, unless a unit begins it."""
    return title if title.startswith("ms ") else title[:1].upper() + title[1:]
