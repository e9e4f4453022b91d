"""What ends a proof: a reason for the callable to stay in the worker."""

from __future__ import annotations


class Refused(Exception):
    """A reason to stay, as a sentence's part: "it draws from ..."."""


def told(error: Exception) -> str:
    """An error of the user's code in one short line."""
    line = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {line[:120]}" if line else type(error).__name__
