"""Define the error that ends a proof: a reason for the callable to stay in the worker."""

from __future__ import annotations


class Refused(Exception):
    """Error: the callable stays in the worker; the message is a clause such as "it draws from ..."."""


def told(error: Exception) -> str:
    """Describe an error of the user's code in one short line."""
    line = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {line[:120]}" if line else type(error).__name__
