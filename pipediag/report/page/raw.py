"""List the raw numbers and the environment of a session, and choose the data that a page carries."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from ...analysis import Diagnosis
from ...analysis.audit import Audit
from ...analysis.compare import Comparison
from ...analysis.numbers.intervals import Interval
from ...analysis.sweep import Sweep
from ...analysis.words import number
from ...session import REMEDIES, SCHEMA_VERSION, Session, ordered
from .. import Subject
from ..diagnosis import between, value
from .parts import Facts, Part, Sortable

#: Maximum number of windows in the table; more are thinned out evenly.
_WINDOWS = 250
_T = TypeVar("_T")
#: Maximum number of windows in the data if not all fit.
_EMBEDDED_WINDOWS = 500


def numbers(diagnosis: Diagnosis) -> Part:
    tables = [_rungs(diagnosis), _windows(diagnosis.session), _waterfall(diagnosis)]
    return Part("numbers", "Raw numbers", [table for table in tables if table.rows])


def _rungs(diagnosis: Diagnosis) -> Sortable:
    ladder = diagnosis.ladder
    rows = []
    for rung in ordered({*ladder.rungs, *(window.rung for window in diagnosis.session.windows)}):
        if ladder.has(rung):
            ms = ladder.ms(rung)
            rows.append([rung, str(ladder.windows(rung)), *_both(ms), *_both(ms.inverse(1000.0))])
    headers = ("rung", "windows", "ms a step", "95 % interval", "steps/s", "95 % interval")
    return Sortable("Rungs", headers, "lrrrrr", rows)


def _both(interval: Interval) -> tuple[str, str]:
    return value(interval), between(interval)


def _windows(session: Session) -> Sortable:
    windows = session.windows
    shown = evenly_spaced(windows, _WINDOWS)
    caption = f"Windows ({len(windows)})"
    if len(shown) < len(windows):
        caption = f"Windows ({len(shown)} of {len(windows)}, evenly spaced)"
    headers = ("rung", "round", "pass", "steps", "seconds", "ms a step", "waited ms a step", "a worker's ms a batch")
    rows = []
    for window in shown:
        seen = [number(window.evidence[key]) if key in window.evidence else "" for key in ("wait_ms", "worker_ms")]
        counts = [str(count) for count in (window.round, window.attempt, window.steps)]
        rows.append([window.rung, *counts, number(window.seconds), number(window.ms_per_step), *seen])
    return Sortable(caption, headers, "lrrrrrrr", rows)


def _waterfall(diagnosis: Diagnosis) -> Sortable:
    rows = []
    for piece in diagnosis.waterfall:
        where = piece.culprit.where if piece.culprit else ""
        told = [piece.stage, ", ".join(piece.links or piece.others), *_both(piece.ms), f"{100 * piece.share:.1f} %"]
        rows.append([*told, piece.rung, where])
    headers = ("stage", "with", "ms a step", "95 % interval", "share", "rung", "where")
    return Sortable("Waterfall", headers, "llrrrll", rows)


def environment(session: Session) -> Part:
    loader = session.loader
    facts = {
        "command": " ".join(session.script.argv),
        "passes over the script": session.script.passes or "",
        "ended": session.ended,
        "device": {key: one for key, one in session.device.items() if one is not None},
        "loader": {
            "dataset": loader.dataset,
            "batch_size": loader.batch_size,
            "num_workers": loader.num_workers,
            "prefetch_factor": loader.prefetch_factor,
            "pin_memory": loader.pin_memory,
            "persistent_workers": loader.persistent_workers,
            "start method": loader.start_method,
            "batches an epoch": loader.length,
            "iterated at": loader.where,
        }
        if loader is not None
        else {},
        **session.environment,
        "pipediag": session.tool_version,
    }
    pairs = [*_flat(facts)]
    return Part("environment", "Environment", [Facts(pairs)] if pairs else [])


def _flat(facts: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Yield names and values; those of a mapping with its name before them."""
    for name, fact in facts.items():
        if isinstance(fact, Mapping):
            yield from _flat(fact, f"{before}{name} ")
        elif fact not in (None, ""):
            yield f"{before}{name}", ("yes" if fact else "no") if isinstance(fact, bool) else str(fact)


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
        for data, note in _of_session(subject.diagnosis.session):
            yield {**data, "audit": {"gate": subject.gate, "items": items}}, note
    else:
        yield from _of_session(subject.session)


def _of_session(session: Session) -> Iterator[tuple[dict[str, Any], str]]:
    raw = session.to_dict()
    for field in REMEDIES.values():
        if raw[field] and raw[field]["proof"]:
            raw[field]["proof"]["pictured"] = []  # they are on the page
    told = "The page holds the session as JSON"
    yield {"schema_version": SCHEMA_VERSION, "session": raw}, f"{told}."
    raw = {**raw, "stretches": []}
    yield {"schema_version": SCHEMA_VERSION, "session": raw}, f"{told}, without single steps, which are too many."
    if (count := len(raw["windows"])) > _EMBEDDED_WINDOWS:
        raw = {**raw, "windows": evenly_spaced(raw["windows"], _EMBEDDED_WINDOWS)}
        note = f"{told}, without single steps and with {_EMBEDDED_WINDOWS} of {count} windows: there are too many."
        yield {"schema_version": SCHEMA_VERSION, "session": raw}, note


def evenly_spaced(items: list[_T], most: int) -> list[_T]:
    """Return at most ``most`` of the items."""
    if len(items) <= most:
        return items
    return [items[n * len(items) // most] for n in range(most)]
