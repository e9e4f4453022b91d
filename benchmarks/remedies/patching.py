"""A unified diff carried out, as strictly as it is written: every line of context has to be where the diff says."""

from __future__ import annotations

import re

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@")
_NO_END = "\\ No newline at end of file"


class DoesNotApply(Exception):
    """The diff was made for another text."""


def applied(diff: str, before: str) -> str:
    """The text after the change that ``diff`` describes.

    Raises:
        DoesNotApply: a line that the diff leaves or takes away is not there, or the diff has no hunk.
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
    """The lines of a hunk, with those that end the file without a newline as they are in the file."""
    kept: list[str] = []
    for line in lines:
        if line.startswith(_NO_END):
            kept[-1] = kept[-1].removesuffix("\n")
        else:
            kept.append(line)
    return kept
