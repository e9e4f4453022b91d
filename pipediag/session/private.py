"""Keep what is private out of reports: values that look secret always, and all that names the user on request."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import Session

#: What stands in place of a value.
MASK = "***"
#: Words of an option's name that make its value a secret, wherever they stand in the name, or at its end.
_SECRET = re.compile(
    r"(?:^|[-_.])(?:secrets?|passw(?:or)?d|passphrase|pwd|credentials?|bearer|cookie|authorization|netrc"
    r"|(?:api|access|private|secret|account|signing|auth|encryption|wandb|ssh)[-_.]?key)(?:[-_.]|$)"
    r"|(?:^|[-_.])(?:auth|token|apitoken|accesstoken|authtoken|pass)$",
    re.IGNORECASE,
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
#: Values that are secrets whatever option they belong to: well-known tokens, and passwords in addresses and headers.
_KNOWN = re.compile(
    r"\b(?:hf_|sk-|gh[opsu]_|github_pat_|glpat-|xox[abprs]-|AKIA|eyJ)[\w.-]{12,}"
    r"|(?<=://)[^\s/@]+(?=@)|(?i:(?<=bearer )|(?<=authorization: )|(?<=basic ))\S.*"
)
#: The head of a path: folders of an absolute one, or of a relative one to a file with an ending.
_HEAD = re.compile(
    r"(?<![^\s(,'\"=`:\[])(?:(?:~|\.{1,2})?/(?:[^\s/(),;'\"`]+/)*|(?:[\w.@+-]+/)+(?=[\w.@+-]*\.[A-Za-z]))(?=[^\s/])"
)
#: Entries of a session that hold lines of the user's code.
_SOURCE = frozenset({"text", "line", "diff"})


def masked(argv: Sequence[str]) -> list[str]:
    """Return a command line without the values that look secret: ``--api-token X``, ``password=X``, ``hf_...``."""
    found: list[str] = []
    for before, word in zip(["", *argv], argv, strict=False):
        name, _, value = word.partition("=")
        if before.startswith("-") and "=" not in before and _is_secret(before) and not word.startswith("-"):
            found.append(MASK)
        else:
            found.append(f"{name}={MASK}" if value and _is_secret(name) else _KNOWN.sub(MASK, word))
    return found


def _is_secret(name: str) -> bool:
    return "/" not in name and _SECRET.search(_CAMEL.sub("-", name.strip("-"))) is not None


def without_values(argv: Sequence[str]) -> list[str]:
    """Return a command line with the script's name and the names of options alone."""
    found: list[str] = []
    for place, word in enumerate(argv):
        name, equals, _ = word.partition("=")
        if place == 0 or (argv[0] == "-m" and place == 1) or word.endswith(".py"):
            found.append(PurePath(word).name)
        elif word.startswith("-") and not word.lstrip("-")[:1].isdigit():
            found.append(name + f"={MASK}" * bool(equals))
        else:
            found.append(MASK)
    return found


def without_heads(text: str) -> str:
    """Return text in which paths have lost their folders."""
    return _HEAD.sub("", text)


def redacted(session: Session) -> Session:
    """Return the session without values of arguments, folders, names of hosts, and lines of code."""
    script = replace(session.script, argv=without_values(session.script.argv))
    hosts = {rank.host: f"host {number}" for number, rank in enumerate(session.ranks, 1) if rank.host}
    data = _walked(replace(session, script=script).to_dict(), lambda text: hosts.get(text, without_heads(text)))
    return session.from_dict(data)


def _walked(data: Any, change: Callable[[str], str]) -> Any:
    """Return plain data with every text changed, and source taken out."""
    if isinstance(data, str):
        return change(data)
    if isinstance(data, list):
        return [_walked(one, change) for one in data]
    if isinstance(data, dict):
        source = _SOURCE | {"name"} if "text" in data else _SOURCE  # a line's name is what it calls
        kept = {name: one for name, one in data.items() if name != "plan"}
        return {change(name): "" if name in source else _walked(one, change) for name, one in kept.items()}
    return data
