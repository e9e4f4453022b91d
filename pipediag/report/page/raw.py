"""List the raw numbers and the environment of a session."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...analysis import Diagnosis
from ...analysis.numbers.intervals import Interval
from ...analysis.words import number
from ...session import Session, Window, ordered
from ..diagnosis import between, value
from .embedded import evenly_spaced
from .parts import Facts, Part, Sortable

#: Maximum number of windows in the table; more are thinned out evenly.
_WINDOWS = 250


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
    return Sortable(caption, headers, "lrrrrrrr", [*map(_window, shown)])


def _window(window: Window) -> list[str]:
    seen = [number(window.evidence[key]) if key in window.evidence else "" for key in ("wait_ms", "worker_ms")]
    counts = [str(count) for count in (window.round, window.attempt, window.steps)]
    return [window.rung, *counts, number(window.seconds), number(window.ms_per_step), *seen]


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
