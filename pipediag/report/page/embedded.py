"""Choose the data that a page carries: all of it, or as much as fits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TypeVar

from ...analysis.audit import Audit
from ...analysis.compare import Comparison
from ...analysis.sweep import Sweep
from ...session import REMEDIES, SCHEMA_VERSION, Session
from .. import Subject

_T = TypeVar("_T")
#: Maximum number of windows in the data if not all fit.
_WINDOWS = 500


def embedded(subject: Subject, room: int) -> tuple[str, str]:
    """Return JSON of at most ``room`` characters that no markup can end, and a note on what it lacks.

    The JSON is empty if there is not enough room for anything.
    """
    for data, note in _variants(subject):
        text = json.dumps(data, separators=(",", ":"), allow_nan=False)
        for character in "<>&":
            text = text.replace(character, f"\\u{ord(character):04x}")
        if len(text) <= room:
            return text, note
    return "", "The data of this page is too large to be embedded in it."


def _variants(subject: Subject) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield data and a note on what it lacks, the fullest first."""
    if isinstance(subject, Comparison):
        yield subject.to_dict(), "The page holds its figures as JSON."
    elif isinstance(subject, Sweep):
        data = subject.to_dict()
        data["runs"] = [{**run, "report": None} for run in data["runs"]]
        yield data, "The page holds its figures as JSON, without the sessions of the runs."
    elif isinstance(subject, Audit):
        items = [item.to_dict() for item in subject.items]
        for data, note in _session(subject.diagnosis.session):
            yield {**data, "audit": {"gate": subject.gate, "items": items}}, note
    else:
        yield from _session(subject.session)


def _session(session: Session) -> Iterator[tuple[dict[str, Any], str]]:
    raw = session.to_dict()
    for field in REMEDIES.values():
        if raw[field] and raw[field]["proof"]:
            raw[field]["proof"]["pictured"] = []  # they are on the page
    told = "The page holds the session as JSON"
    yield {"schema_version": SCHEMA_VERSION, "session": raw}, f"{told}."
    raw = {**raw, "stretches": []}
    yield {"schema_version": SCHEMA_VERSION, "session": raw}, f"{told}, without single steps, which are too many."
    windows = raw["windows"]
    if len(windows) > _WINDOWS:
        note = f"{told}, without single steps and with {_WINDOWS} of {len(windows)} windows: there are too many."
        yield {"schema_version": SCHEMA_VERSION, "session": {**raw, "windows": evenly_spaced(windows, _WINDOWS)}}, note


def evenly_spaced(items: list[_T], most: int) -> list[_T]:
    """Return at most ``most`` of the items."""
    if len(items) <= most:
        return items
    return [items[n * len(items) // most] for n in range(most)]
