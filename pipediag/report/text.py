"""Write blocks as plain text, for files and terminals."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from tabulate import tabulate

from .document import Advice, Block, Check, Checklist, Code, Listing, Location, Paragraph, Section, Table, Title

WIDTH = 100
#: Number of recommendations with instructions.
_IN_FULL = 3
#: Longer names in tables are cut.
_NAME = 60
_BAR = 20
#: Width of the status in a checklist: that of ``does not apply``.
_STATUS = 14
_COLOURS = {"bad": "31", "doubtful": "33", "good": "32"}


def write(blocks: Iterable[Block], colour: bool = False, fancy: bool = False) -> str:
    """Return plain text; ``colour`` adds colours for a terminal, ``fancy`` block characters for the bars."""
    lines: list[str] = []
    for block in blocks:
        joined = isinstance(block, Location) or (isinstance(block, Listing) and block.details)
        lines += [""] * bool(lines and not joined) + _lines(block, colour, "█" if fancy else "#")
    return "\n".join(lines) + "\n"


def _lines(block: Block, colour: bool, mark: str) -> list[str]:
    match block:
        case Title():
            title = block.headline
            if colour and block.tone:
                title = f"\x1b[1;{_COLOURS[block.tone]}m{title}\x1b[0m"
            return [title + (f"  ({block.note})" if block.note else ""), *filter(None, [block.subject])]
        case Paragraph(text, "prose"):
            return textwrap.wrap(text, WIDTH)
        case Paragraph(text, "list"):
            return textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
        case Paragraph(text):
            return [text]
        case Location(label, name, where):
            return [f"{label}: {name}" + (f"  {where}" if where else "")]
        case Listing(entries, details=True):
            return [line for entry in entries for line in textwrap.wrap(entry, WIDTH, subsequent_indent="  ")]
        case Listing(entries):
            return [_wrapped(entry, "  - ") for entry in entries]
        case Table():
            return [] if block.extra else [_table(block, mark)]
        case Code(label, code, "diff"):
            return [f"{label} (patch -p0):", "", *code]
        case Code(label, code):
            return [f"{label}:", "", *(f"  {line}" for line in code)]
        case Advice():
            return _advice(block)
        case Checklist(checks):
            return ["\n\n".join(_check(check, colour) for check in checks)]
        case Section(title, blocks):
            lines = [f"{title}:"]
            for inner in blocks:
                one = Listing([inner.text]) if isinstance(inner, Paragraph) else inner
                apart = isinstance(one, Code) or (isinstance(one, Table) and one.ruled)
                found = _lines(one, colour, mark)
                lines += [""] * bool(apart and found and len(lines) > 1) + found
            return lines


def _table(table: Table, mark: str) -> str:
    headers = [header.replace(" ", "\n") if table.narrow else header for header in table.headers]
    rows: Sequence[Sequence[str]] = table.rows
    if table.code:
        rows = [(name[:_NAME], *cells) for name, *cells in rows]
    if table.bars:
        headers.append("")
        rows = [(*cells, mark * round(_BAR * bar)) for cells, bar in zip(rows, table.bars, strict=True)]
    text = tabulate(
        rows,
        headers,
        tablefmt="simple" if table.ruled else "plain",
        disable_numparse=True,
        colalign=["right" if side == "r" else "left" for side in table.align + "l" * bool(table.bars)],
    )
    return text if table.ruled else textwrap.indent(text, "  ")


def _advice(one: Advice) -> list[str]:
    """Only the first recommendations have instructions."""
    lines = [_wrapped(f"{one.gain}  {one.title}", f"  {one.number}. ")]
    if one.number <= _IN_FULL:
        lines += [_wrapped(one.savings, " " * 5)] if one.savings else []
        lines += [_wrapped(f"{name}: {text}", " " * 5) for name, text in (("why", one.reasons[0]), ("how", one.how))]
        lines += [textwrap.indent(line, " " * 7) for line in one.code]
        lines += [_wrapped(f"risk: {one.risk}", " " * 5)] if one.risk else []
    return lines


def _check(check: Check, colour: bool) -> str:
    word = f"{check.status.upper() if check.tone == 'bad' else check.status:<{_STATUS}}"
    if colour and check.tone:
        word = f"\x1b[{_COLOURS[check.tone]}m{word}\x1b[0m"
    indent = " " * (_STATUS + 2)
    return "\n".join(
        [f"{word}  {check.title}", _wrapped(check.figures, indent), *(_wrapped(t, f"{indent}-> ") for t in check.todo)]
    )


def _wrapped(text: str, first: str) -> str:
    """Return text wrapped behind ``first``, with the following lines indented by its width."""
    return textwrap.fill(text, WIDTH, initial_indent=first, subsequent_indent=" " * len(first))
