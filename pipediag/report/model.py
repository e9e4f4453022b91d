"""The model's side of a step in the reports: what it consists of, and what of it could run a batch ahead."""

from __future__ import annotations

from tabulate import tabulate

from ..analysis import Diagnosis
from ..analysis.sentences import few, number, percent
from ..session import Prefix, Profile, Share
from .text import bullet

#: Longer names of kernels are cut in the terminal.
_NAME = 60
_HEADERS = ("calls a step", "ms a step", "share")
_TITLE = "the model's side"


def terminal(diagnosis: Diagnosis) -> list[str]:
    """Lines of plain text, without the kernels; none where nothing was looked at."""
    lines = [*map(bullet, _told(diagnosis))]
    for title, shares, step_ms in _tables(diagnosis)[:2]:
        rows = [(share.name[:_NAME], *_cells(share, step_ms)) for share in shares]
        if not rows:
            continue
        table = tabulate(rows, (title, *_HEADERS), disable_numparse=True, colalign=("left", "right", "right", "right"))
        lines += ["", *table.splitlines()]
    return ["", f"{_TITLE}:", *lines] if lines else []


def markdown(diagnosis: Diagnosis) -> list[str]:
    """The same as Markdown."""
    lines = [f"- {line}" for line in _told(diagnosis)]
    for title, shares, step_ms in _tables(diagnosis):
        if not shares:
            continue
        lines += ["", f"| {title} | {' | '.join(_HEADERS)} |", "|---|--:|--:|--:|"]
        lines += [f"| `{share.name}` | {' | '.join(_cells(share, step_ms))} |" for share in shares]
    return ["", f"## {_TITLE.capitalize()}", "", *lines] if lines else []


def _told(diagnosis: Diagnosis) -> list[str]:
    session = diagnosis.session
    lines = [_profiled(session.profile)] if session.profile is not None else []
    return lines + ([_frozen(session.prefix)] if session.prefix is not None else [])


def _profiled(profile: Profile) -> str:
    if profile.why_not:
        return f"no trace was recorded: {profile.why_not}"
    busy = f"operators take {number(profile.busy_ms)} ms of a step of {number(profile.step_ms)} ms on the device"
    return f"{profile.steps} steps on batches that lie on the device: {profile.trace}; {busy}"


def _frozen(prefix: Prefix) -> str:
    if not prefix.modules:
        return f"whether a frozen part of the model could run a batch ahead is not known: {prefix.why_not}"
    told = f"{number(prefix.ms)} ms of a step of {number(prefix.ms + prefix.rest_ms)} ms go into a frozen part that "
    told += f"learns nothing: {few(prefix.modules)}"
    return f"{told}; it cannot run a batch ahead: {prefix.why_not}" if prefix.why_not else told


def _tables(diagnosis: Diagnosis) -> list[tuple[str, list[Share], float]]:
    profile = diagnosis.session.profile
    if profile is None:
        return []
    tables = [("module", profile.modules), ("operator", profile.operators), ("kernel", profile.kernels)]
    return [(title, shares, profile.step_ms) for title, shares in tables if profile.steps]


def _cells(share: Share, step_ms: float) -> tuple[str, str, str]:
    return number(share.calls), number(share.ms), percent(share.ms / step_ms if step_ms > 0 else 0.0)
