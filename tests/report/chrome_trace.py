"""Read a Chrome trace strictly by its specification."""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import dataclass, field
from typing import Any

import pytest

#: The fields that an event must have, by its phase.
REQUIRED = {
    "X": {"name", "pid", "tid", "ts", "dur"},
    "C": {"name", "pid", "ts", "args"},
    "M": {"name", "pid", "args"},
}
#: The metadata events that are known, and what they say.
METADATA = {
    "process_name": ("name", str),
    "thread_name": ("name", str),
    "process_sort_index": ("sort_index", int),
    "thread_sort_index": ("sort_index", int),
}


@dataclass
class Slice:
    """A slice of a track, in microseconds, with those within it."""

    name: str
    since: float
    until: float
    args: dict[str, Any]
    inner: list[Slice] = field(default_factory=list)


@dataclass
class Process:
    name: str
    tracks: dict[str, list[Slice]]  # the outermost slices by the track's name, in order of time
    counters: dict[str, list[tuple[float, float]]]  # times and values


def read(data: bytes) -> dict[str, Process]:
    """Return the processes by name; an assertion fails if the data is not a trace."""
    document = json.loads(gzip.decompress(data), parse_constant=pytest.fail)
    events = document["traceEvents"]
    for event in events:
        check(event)
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert len(names) == len({*names.values()})
    assert {event["pid"] for event in events} == {*names}
    return {name: _process(name, [event for event in events if event["pid"] == pid]) for pid, name in names.items()}


def check(event: dict[str, Any]) -> None:
    phase = event["ph"]
    assert REQUIRED[phase] <= {*event}
    assert isinstance(event["name"], str) and event["name"]
    assert all(isinstance(event[key], int) for key in ("pid", "tid") if key in event)
    assert all(
        isinstance(event[key], (int, float)) and math.isfinite(event[key]) for key in ("ts", "dur") if key in event
    )
    assert event.get("dur", 0) >= 0
    assert isinstance(event.get("args", {}), dict)
    if phase == "C":
        assert event["args"]
        assert all(type(value) in (int, float) and math.isfinite(value) for value in event["args"].values())
    if phase == "M":
        key, kind = METADATA[event["name"]]
        assert isinstance(event["args"][key], kind)
        assert ("tid" in event) == event["name"].startswith("thread_")


def _process(name: str, events: list[dict[str, Any]]) -> Process:
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert len(tracks) == len({*tracks.values()})
    slices: dict[str, list[Slice]] = {track: [] for track in tracks.values()}
    counters: dict[str, list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] == "X":
            one = Slice(event["name"], event["ts"], event["ts"] + event["dur"], event.get("args", {}))
            slices[tracks[event["tid"]]].append(one)
        if event["ph"] == "C":
            (value,) = event["args"].values()
            counters.setdefault(event["name"], []).append((event["ts"], value))
    for counter in counters.values():
        assert counter == sorted(counter, key=lambda point: point[0])
    return Process(name, {track: nested(ones) for track, ones in slices.items()}, counters)


def nested(slices: list[Slice]) -> list[Slice]:
    """Return the outermost slices of a track. Each begins in another or after it, and ends with it or before."""
    outermost: list[Slice] = []
    around: list[Slice] = []
    for one in sorted(slices, key=lambda one: (one.since, -one.until)):
        while around and around[-1].until <= one.since:
            around.pop()
        if around:
            assert one.until <= around[-1].until, f"{one} reaches out of {around[-1]}"
        (around[-1].inner if around else outermost).append(one)
        around.append(one)
    return outermost
