"""Apply a unified diff strictly: every line of context must be where the diff says."""

from __future__ import annotations

import re

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@")
_NO_END = "\\ No newline at end of file"


class DoesNotApply(Exception):
    """The error raised if the diff was made for another text."""


def applied(diff: str, before: str) -> str:
    """Return the text after the change that ``diff`` describes.

    Raises:
        DoesNotApply: a line that the diff keeps or removes is missing, or the diff has no hunk.
    """
    source, made, at = before.splitlines(keepends=True), [], 0
    lines = diff.splitlines(keepends=True)
    hunks = [number for number, line in enumerate(lines) if _HUNK.match(line)]
    if not hunks:
        raise DoesNotApply("there is no hunk in it")
    for number, end in zip(hunks, [*hunks[1:], len(lines)], strict=True):
        header = _HUNK.match(lines[number])
        assert header is not None, "it was found as one"
        start = int(header[1]) - (header[2] != "0")
        made += source[at:start]
        at = start
        for line in _ended(lines[number + 1 : end]):
            if line[0] in " -":
                if source[at : at + 1] != [line[1:]]:
                    raise DoesNotApply(f"line {at + 1} is not {line[1:]!r}")
                at += 1
            if line[0] in " +":
                made.append(line[1:])
    return "".join([*made, *source[at:]])


def _ended(lines: list[str]) -> list[str]:
    """Return the lines of a hunk, with a missing newline at the file's end restored."""
    kept: list[str] = []
    for line in lines:
        if line.startswith(_NO_END):
            kept[-1] = kept[-1].removesuffix("\n")
        else:
            kept.append(line)
    return kept
