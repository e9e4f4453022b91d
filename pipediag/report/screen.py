"""Show a summary on one screen."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from textwrap import wrap

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..analysis.summary import Action, Rate, StageCost, Summary
from ..analysis.words import counted, number, percent

LINES = 24
#: Below this width bars are left out, and places get lines of their own.
_NARROW = 60
_BAR, _SHORT_BAR = 20, 12
#: Columns before the lines below an action.
_DEEP = 5
_STYLES = {"bad": "bold red", "doubtful": "bold yellow", "good": "bold green", "": "bold"}
#: Parts of a block, in eighths.
_EIGHTHS = " ▏▎▍▌▋▊▉"
#: How the whole report is seen: of a result on the screen, of one that was kept, and of one in a program.
MORE = "-v shows it all, -o report.html draws it"
MORE_KEPT = "pipediag report -v shows it all, pipediag report -o report.html draws it"
MORE_IN_CODE = 'diagnosis.report() shows it all, diagnosis.report("report.html") draws it'


def write(
    summary: Summary,
    *,
    width: int = 80,
    colour: bool = False,
    fancy: bool = True,
    max_lines: int | None = LINES,
    more: str = MORE,
) -> str:
    """Return the screen as text, without less important details if it would have more than ``max_lines`` lines.

    Args:
        more: how the whole report is seen.
        colour: use the colours of a terminal.
        fancy: use block characters for bars, plain ``#`` otherwise.
    """
    text = ""
    for shorter, airy in [(summary, True), *((shorter, False) for shorter in _ever_shorter(summary))]:
        text = _Screen(width, colour, fancy, airy).show(shorter, more)
        if max_lines is None or text.count("\n") <= max_lines:
            break
    return text


def _ever_shorter(summary: Summary) -> Iterator[Summary]:
    """Yield ever shorter versions of the summary, down to two actions, one note, and few rows."""
    yield summary
    first, later = summary.actions[:1], [replace(one, lines=()) for one in summary.actions[1:]]
    yield (summary := replace(summary, actions=first + later))
    while len(summary.careful) > 1 or len(summary.actions) > 2 or len(summary.causes) > 2 or len(summary.findings) > 4:
        if len(summary.careful) > 1:
            summary = replace(summary, careful=summary.careful[:-1], notes=summary.notes + 1)
        elif len(summary.actions) > 2:
            summary = replace(summary, actions=summary.actions[:-1])
        elif len(summary.causes) > 2:
            *causes, last = summary.causes
            summary = replace(summary, causes=causes, rest=[last, *summary.rest])
        else:
            summary = replace(summary, findings=summary.findings[:-1], notes=summary.notes + 1)
        yield summary


class _Screen:
    """The parts of a screen, printed one below the other; empty lines separate them if it is ``airy``."""

    def __init__(self, width: int, colour: bool, fancy: bool, airy: bool) -> None:
        self._file = io.StringIO()
        self._fancy, self._narrow, self._airy = fancy, width < _NARROW, airy
        self._console = Console(
            file=self._file,
            width=width,
            force_terminal=colour,
            force_jupyter=False,  # it would show the lines itself instead of writing them
            color_system="standard" if colour else None,
            no_color=not colour,
            highlight=False,
            legacy_windows=False,
        )

    def show(self, summary: Summary, more: str) -> str:
        self._answer(summary)
        if summary.rates:
            self._print(_grid([self._rate(rate, summary.rates) for rate in summary.rates], "llll"))
        if summary.holding:
            self._gap()
            self._print(Text(summary.holding, "bold"), 0)
        if summary.causes:
            self._title(f"WHERE, ms of {summary.unit}" + (f" ({summary.basis})" if summary.basis else ""))
            self._causes(summary.causes)
            if summary.rest:
                rest = ", ".join(f"{one.name} {number(one.ms)} ms" for one in summary.rest)
                self._print(Text(f"the rest: {rest}", "dim"))
        if summary.findings:
            self._title(summary.findings_title.upper())
            self._print(_grid([[Text(name), Text(what)] for name, what in summary.findings], "ll"))
        if summary.actions or summary.nothing_to_gain or summary.tried:
            self._title("WHAT TO DO")
        for count, action in enumerate(summary.actions, 1):
            self._action(count, action)
        if not summary.actions and summary.nothing_to_gain:
            self._print(Text(summary.nothing_to_gain))
        if summary.tried:
            self._print(Text(summary.tried, "dim"))
        if summary.careful:
            self._title("CAREFUL")
        for line in summary.careful:
            self._print(_grid([[Text("-"), Text(line)]], "ll", 1))
        self._gap()
        notes = f"{counted(summary.notes, 'more note')}; " if summary.notes else ""
        self._console.print(Text(notes + more, "dim"))
        for part in _copyable(summary.next, self._console.width):
            self._console.print(Text(part, "cyan"), soft_wrap=True)
        return "\n".join(line.rstrip() for line in self._file.getvalue().splitlines()) + "\n"

    def _answer(self, summary: Summary) -> None:
        answer = Text(summary.headline.upper(), _STYLES[summary.tone])
        if summary.figures:
            answer.append(f": {summary.figures}", "not bold")
        if summary.certainty:
            answer.append(f" ({summary.certainty})", "not bold")
        self._console.print(answer)
        if summary.subject:
            self._console.print(Text(summary.subject, "dim"))

    def _gap(self) -> None:
        if self._airy:
            self._console.print()

    def _title(self, title: str) -> None:
        self._gap()
        self._console.print(Text(title, "bold"))

    def _rate(self, rate: Rate, all_rates: list[Rate]) -> list[Text]:
        most = max(one.steps_per_s for one in all_rates)
        cells = [rate.name, f"{number(rate.steps_per_s)} steps/s"]
        cells += [] if self._narrow else [self._bar(rate.steps_per_s / most)]
        return list(map(Text, [*cells, rate.note]))

    def _causes(self, causes: list[StageCost]) -> None:
        """Print the causes in columns, with bars unless only without them all places fit beside; others go below."""
        most, room = max(cause.share for cause in causes), self._console.width - 2
        rows = [[cause.name, f"{number(cause.ms)} ms", percent(cause.share)] for cause in causes]
        room -= sum(max(map(len, column)) + 2 for column in zip(*rows, strict=True))
        places = [", ".join(filter(None, (cause.where, cause.note))) for cause in causes]
        with_bars = room - _SHORT_BAR - 2
        if with_bars >= 0 and not with_bars < max(map(len, places)) <= room:
            room = with_bars
            for cause, cells in zip(causes, rows, strict=True):
                cells.append(f"{self._bar(cause.share / most, _SHORT_BAR):<{_SHORT_BAR}}")
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for place, cells in zip(places, rows, strict=True):
            padded = [cells[0].ljust(widths[0])] + [
                cell.rjust(w) for cell, w in zip(cells[1:], widths[1:], strict=True)
            ]
            beside = len(place) <= room
            self._print(Text("  ".join(padded + [place] * beside)))
            if not beside:
                self._print(Text(place), 6)

    def _bar(self, share: float, width: int = _BAR) -> str:
        if not self._fancy:
            return "#" * max(1, round(width * share))
        eighths = max(1, round(8 * width * share))
        return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()

    def _action(self, count: int, action: Action) -> None:
        title = [Text(f"{count}."), Text(action.title), Text(action.gain, "green")]
        self._print(_grid([title], "llr", 1, expand=True))
        for line in action.lines:
            for part in _copyable(line, self._console.width - _DEEP):
                self._console.print(Text(" " * _DEEP + part, "cyan"), soft_wrap=True)

    def _print(self, what: RenderableType, indent: int = 2) -> None:
        self._console.print(Padding(what, (0, 0, 0, indent)))


def _copyable(line: str, width: int) -> list[str]:
    """Return a line in parts that can be copied: no word is broken, and a command goes on after a backslash."""
    is_command = line.startswith("pipediag ") or ": pipediag " in line or " && pipediag " in line
    parts = wrap(line, width - 2 * is_command, break_long_words=False, break_on_hyphens=False)
    return [part + " \\" for part in parts[:-1]] + parts[-1:] if is_command else parts


def _grid(rows: list[list[Text]], align: str, gap: int = 2, expand: bool = False) -> Table:
    """Return rows as columns; cells wrap if they are too long. ``expand`` pushes the last column to the right edge."""
    grid = Table.grid(padding=(0, gap, 0, 0), expand=expand)
    for at, side in enumerate(align[: len(rows[0])] if rows else ""):
        ratio = 1 if expand and at == 1 else None
        grid.add_column(justify="right" if side == "r" else "left", overflow="fold", ratio=ratio)
    for row in rows:
        grid.add_row(*row)
    return grid
