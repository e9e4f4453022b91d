"""Write single steps and batches as a trace in the Chrome trace event format, which https://ui.perfetto.dev opens.

Each pass over the script is a process of the trace, with tracks for the rungs, the training loop and each worker.
Times are whole microseconds.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from itertools import count, groupby
from pathlib import PurePath
from typing import Any, NamedTuple

from ..analysis import Diagnosis
from ..errors import SessionFileError
from ..session import RUNG_MEANING, Profile, Session, Stretch, fed_apart, settings_of

Event = dict[str, Any]

#: Tracks of a process: the rungs, the training loop, and the workers from here on.
_RUNGS, _LOOP, _WORKERS = 1, 2, 3
#: Categories of the work on a device in a trace of torch's profiler.
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
#: Microseconds between the last rung and the profiled steps.
_GAP = 100_000


class _Batch(NamedTuple):
    """A batch as it was made, in microseconds; the last ``collate`` of them were spent in the collate function."""

    since: int
    until: int
    collate: int
    stretch: Stretch


def write(diagnosis: Diagnosis) -> bytes:
    """Return the gzip'ed trace; the same session gives the same bytes.

    Raises:
        SessionFileError: the session holds no single steps, only windows: an older version recorded it.
    """
    session = diagnosis.session
    timed = (one for one in session.stretches if one.asked)
    stretches = sorted(timed, key=lambda one: (one.attempt, one.asked[0]))
    if not stretches:
        raise SessionFileError("the session holds no single steps for a trace; repeat the analysis with this version")
    events: list[Event] = []
    for attempt, members in groupby(stretches, key=lambda one: one.attempt):
        events += _pass(session, attempt, list(members))
    if session.profile is not None and session.profile.trace:
        behind = max(_us(one.ended) for one in stretches) + _GAP
        events += _profiled(session.profile, 1 + max(one.attempt for one in stretches), behind)
    document = {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"tool": f"pipediag {session.tool_version}"},
    }
    return gzip.compress(json.dumps(document, separators=(",", ":"), allow_nan=False).encode(), mtime=0)


def _pass(session: Session, attempt: int, stretches: list[Stretch]) -> Iterator[Event]:
    """Yield the events of one pass over the script, as a process of their own."""
    script = PurePath(session.script.argv[0]).name if session.script.argv else "training"
    yield from _process(attempt, f"{script}, pass {attempt}" if attempt > 1 else script)
    yield from _track(attempt, _RUNGS, "rung")
    yield from _track(attempt, _LOOP, "training loop")
    for stretch in stretches:
        yield _rung(session, stretch)
        yield from _steps(stretch)
        if any(stretch.ready) or any(worker >= 0 for worker in stretch.worker):
            for asked, ready in zip(stretch.asked, stretch.ready, strict=False):
                event = {"name": "batches ready", "ph": "C", "pid": attempt, "ts": _us(asked)}
                yield {**event, "args": {"batches": ready}}
    made: dict[tuple[str, int], list[_Batch]] = {}  # by source, which is empty for the script's own loader, and worker
    for stretch in stretches:
        source = stretch.rung if fed_apart(stretch.rung) else ""
        for worker, batch in _batches_of(stretch):
            if worker >= 0:
                made.setdefault((source, worker), []).append(batch)
    for number, ((source, worker), batches) in enumerate(sorted(made.items()), _WORKERS):
        yield from _track(attempt, number, f"worker {worker} of {source}" if source else f"worker {worker}")
        yield from _made(attempt, number, batches)


def _rung(session: Session, stretch: Stretch) -> Event:
    since, until = _us(stretch.asked[0]), _us(stretch.ended)
    args: dict[str, Any] = {"round": _round(stretch), "steps": len(stretch.asked)}
    if until > since:
        args["steps/s"] = round(1e6 * len(stretch.asked) / (until - since), 2)
    number = settings_of(stretch.rung)
    if stretch.rung in RUNG_MEANING:
        args["the loop receives"] = RUNG_MEANING[stretch.rung]
    elif number is not None and session.knobs is not None and 1 <= number <= len(session.knobs.tried):
        args["settings"] = session.knobs.tried[number - 1].written
    return _slice(stretch.attempt, _RUNGS, stretch.rung, since, until, args)


def _round(stretch: Stretch) -> int:
    """Return the round as the progress display counts: windows from 1, and 0 before them."""
    return stretch.round + 1


def _steps(stretch: Stretch) -> Iterator[Event]:
    """Yield the loop's waits and steps, and in the waits the batches that the training process makes itself."""
    args, made = {"rung": stretch.rung, "round": _round(stretch)}, dict[int, list[_Batch]]()
    starts, ends = [_us(seconds) for seconds in stretch.asked], [*stretch.asked[1:], stretch.ended]
    for worker, batch in _batches_of(stretch):  # those that no worker made, by the step whose wait they are in
        step = bisect_right(starts, batch.since) - 1
        if worker < 0 and 0 <= step < len(stretch.got):
            inside = max(batch.since, min(batch.until, _us(stretch.got[step])))
            made.setdefault(step, []).append(batch._replace(until=inside))
    for step, (asked, got, until) in enumerate(zip(stretch.asked, stretch.got, ends, strict=False)):
        if got > asked:
            yield _slice(stretch.attempt, _LOOP, "wait", _us(asked), _us(got), args)
            yield from _made(stretch.attempt, _LOOP, made.get(step, []))
        if until > got:
            yield _slice(stretch.attempt, _LOOP, "step", _us(got), _us(until), args)


def _batches_of(stretch: Stretch) -> Iterator[tuple[int, _Batch]]:
    """Yield the batches of a stretch, each with its worker's number."""
    columns = zip(stretch.worker, stretch.made_from, stretch.made_until, stretch.collate_ms, strict=False)
    for worker, since, until, collate_ms in columns:
        yield worker, _Batch(_us(since), _us(until), round(1000 * collate_ms), stretch)


def _made(pid: int, tid: int, batches: list[_Batch]) -> Iterator[Event]:
    """Yield the slices of the batches that one process makes, one after the other: none may begin within another."""
    reached = None
    for batch in sorted(batches, key=lambda one: (one.since, one.until)):
        since = batch.since if reached is None else max(batch.since, reached)
        reached = until = max(since, batch.until)
        if until == since:
            continue
        args = {"rung": batch.stretch.rung, "round": _round(batch.stretch)}
        yield _slice(pid, tid, "batch", since, until, args)
        if batch.collate > 0:
            yield _slice(pid, tid, "collate", max(since, until - batch.collate), until, {})


def _profiled(profile: Profile, pid: int, behind: int) -> Iterator[Event]:
    """Yield the device's copies and kernels that torch's profiler recorded, shifted to begin at ``behind``.

    The profiled steps came after the ladder and have another clock.
    """
    found = []
    for one in _events_in(profile.trace):
        if isinstance(one, dict) and one.get("ph") == "X" and one.get("cat") in _ON_DEVICE:
            times = (one.get("ts"), one.get("dur"))
            if all(isinstance(time, (int, float)) and math.isfinite(time) for time in times):
                found.append(one)
    if not found:
        return
    found.sort(key=lambda one: float(one["ts"]))
    shift = behind - found[0]["ts"]
    devices: dict[str, tuple[int, Iterator[int]]] = {}
    streams: dict[tuple[str, str], int] = {}
    reached: dict[tuple[str, str], float] = {}
    for event in found:
        device, stream = str(event.get("pid")), str(event.get("tid"))
        if device not in devices:
            devices[device] = pid + len(devices), count(1)
            name = f"device {device}: {profile.steps} steps profiled on cached batches, appended behind the rungs"
            yield from _process(devices[device][0], name)
        process, numbers = devices[device]
        key = device, stream
        if key not in streams:
            streams[key] = next(numbers)
            yield from _track(process, streams[key], f"stream {stream}")
        since = max(event["ts"] + shift, reached.get(key, behind))  # a stream does one thing after the other
        reached[key] = until = max(since, event["ts"] + shift + event["dur"])
        yield _slice(process, streams[key], str(event.get("name", "")), round(since), round(until), {})


def _events_in(file: str) -> list[Any]:
    """Return the events in a trace file; none if there is no such file or it is not a trace."""
    try:
        with gzip.open(file) if file.endswith(".gz") else open(file, "rb") as stream:
            data = json.load(stream)
    except (OSError, EOFError, ValueError, zlib.error):  # it was moved or replaced since
        return []
    events = data.get("traceEvents") if isinstance(data, dict) else None
    return events if isinstance(events, list) else []


def _process(pid: int, name: str) -> Iterator[Event]:
    yield {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}}
    yield {"name": "process_sort_index", "ph": "M", "pid": pid, "args": {"sort_index": pid}}


def _track(pid: int, tid: int, name: str) -> Iterator[Event]:
    yield {"name": "thread_name", "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}
    yield {"name": "thread_sort_index", "ph": "M", "pid": pid, "tid": tid, "args": {"sort_index": tid}}


def _slice(pid: int, tid: int, name: str, since: int, until: int, args: dict[str, Any]) -> Event:
    return {"name": name, "ph": "X", "pid": pid, "tid": tid, "ts": since, "dur": max(0, until - since), "args": args}


def _us(seconds: float) -> int:
    return round(1e6 * seconds)
