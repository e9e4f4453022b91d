"""Write blocks as Markdown, for a pull request or the summary of a CI job.

Names and arguments come from the user's code: whatever they hold, they are shown, and never become a link, an image or
HTML.
"""

from __future__ import annotations

import re
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
            note = f"  ({_text(block.note)})" if block.note else ""
            return [f"# {_text(block.headline)}{note}", *([_code(block.subject)] if block.subject else [])]
        case Paragraph(text):
            return [_text(text)]
        case Location(label, name, where):
            return [f"{_capital(label)}: {_code(name)}" + (f" at {_code(where)}" if where else "")]
        case Listing(entries, code):
            return ["\n".join(f"- {_code(entry) if code else _text(entry)}" for entry in entries)]
        case Table(headers, align, rows, code=code):
            cells = [[_bars(_code(row[0])) if code else _cell(row[0]), *map(_cell, row[1:])] for row in rows]
            return [_table([*map(_cell, headers)], align, cells)]
        case Code(label, code_lines, language):
            return [f"{_capital(label)}:", "\n".join(_fenced(code_lines, language))]
        case Advice():
            return [_advice(block)]
        case Checklist(checks):
            return [_table(["", "check", "measured", "what to do"], "llll", [*map(_check, checks)])]
        case Section(title, blocks):
            return [f"## {_text(_capital(title))}", *(part for inner in blocks for part in _parts(inner))]


def _table(headers: Sequence[str], align: str, rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f" {header} |" if header else " |" for header in headers)
    rule = "".join("--:|" if side == "r" else "---|" for side in align)
    return "\n".join([f"|{head}", f"|{rule}", *(f"| {' | '.join(row)} |" for row in rows)])


def _advice(one: Advice) -> str:
    lines = [f"{one.number}. **{_text(one.title)}** ({_text(one.stage)}): {_text(one.gain)}"]
    lines += [f"   - {_text(text)}" for text in (one.savings, *one.reasons) if text]
    code = _fenced(one.code, "python") if one.code else []
    lines += [f"   - how: {_text(one.how)}", *(textwrap.indent(line, " " * 5) for line in code)]
    lines.append(f"   - risk: {_text(one.risk)}")
    return "\n".join(lines)


def _check(check: Check) -> list[str]:
    status = f"**{check.status}**" if check.tone == "bad" else check.status
    return [status, _cell(check.title), _cell(check.figures), "<br>".join(map(_cell, check.todo))]


def _cell(text: str) -> str:
    """Return text for a table cell, which a bar would end."""
    return _bars(_text(text.replace("\n", " ")))


def _bars(text: str) -> str:
    return text.replace("|", "\\|")


def _text(text: str) -> str:
    """Return text in which nothing is code, a link, an image or HTML."""
    text = re.sub(r"[\\`\[]", r"\\\g<0>", text.replace("&", "&amp;").replace("<", "&lt;"))
    return re.sub(r"(?i)(:)(?=//)|(?<=www)(\.)", lambda found: f"&#{ord(found[0])};", text)


def _code(text: str) -> str:
    """Return a code span. Its marks are longer than any backticks in it, which would end it."""
    text = text.replace("\n", " ") or " "
    marks = "`" * (1 + _longest(text))
    space = " " * (text.startswith("`") or text.endswith("`"))
    return f"{marks}{space}{text}{space}{marks}"


def _fenced(lines: Sequence[str], language: str) -> list[str]:
    marks = "`" * max(3, 1 + _longest("\n".join(lines)))
    return [f"{marks}{language}", *lines, marks]


def _longest(text: str) -> int:
    """Return the length of the longest run of backticks."""
    return max(map(len, re.findall("`+", text)), default=0)


def _capital(title: str) -> str:
    """Return a title with a capital letter, unless a unit begins it."""
    return title if title.startswith("ms ") else title[:1].upper() + title[1:]
