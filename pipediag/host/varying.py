"""Vary some arguments of a script: parse them, and build the command line of each run."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import UsageError

#: The settings of one run: argument names with their values, in the given order.
Setting = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Varied:
    """An argument of the script, as written there (``--batch-size``, ``-b``, ``model.width``), and its values."""

    name: str
    values: tuple[str, ...]


def parse(text: str) -> Varied:
    """Parse an argument and its values from ``NAME=VALUE,VALUE,...``.

    Raises:
        UsageError: the name is missing, or a value is empty or repeated.
    """
    name, equals, values = text.partition("=")
    found = tuple(value.strip() for value in values.split(","))
    if not name.strip("-") or not equals or not all(found):
        raise UsageError(f"--vary {text}: give a script argument and its values, as in --vary=--batch-size=16,32")
    if len({*found}) < len(found):
        raise UsageError(f"--vary {text}: a value is repeated")
    return Varied(name, found)


def grid(varied: Sequence[Varied]) -> list[Setting]:
    """Return every combination of the values; the last argument varies fastest.

    Raises:
        UsageError: an argument is varied twice.
    """
    names = [one.name for one in varied]
    if len({*names}) < len(names):
        raise UsageError("--vary: give all values of an argument at once, separated by commas")
    columns = [[(one.name, value) for value in one.values] for one in varied]
    return list(itertools.product(*columns))


def with_setting(args: Sequence[str], setting: Setting) -> list[str]:
    """Return the script's arguments under a setting: replace those that are there, append the others.

    Raises:
        UsageError: an argument is last and has no value to replace.
    """
    changed = list(args)
    for name, value in setting:
        _put(changed, name, value)
    return changed


def _put(args: list[str], name: str, value: str) -> None:
    # Of several, the last counts for most parsers.
    for place in reversed(range(len(args))):
        if args[place].startswith(f"{name}="):
            args[place] = f"{name}={value}"
            return
        if args[place] == name and name.startswith("-"):
            if place + 1 == len(args):
                raise UsageError(f"--vary {name}=...: {name} has no value among the script's arguments")
            args[place + 1] = value
            return
    # A short option takes its value from the next argument: some parsers read -bs=4 as the value "s=4" of -b.
    short = name.startswith("-") and not name.startswith("--")
    args += [name, value] if short else [f"{name}={value}"]
