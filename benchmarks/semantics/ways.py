"""Run one script plainly and under pipediag in every way, and say where its loop saw something else first."""

from __future__ import annotations

import random
import re
import signal
import sys
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from pipediag.host import runner

from .running import Job, Main, Ran, edit, offloading, plainly, planning, prepare, remedied

#: All ways: plainly once more, which checks the suite; ``run``; with a cache, twice; either of these, the cache where a
#: script reads what can be kept; with the loaders offloaded, where a script does that; with a plan of what ``run``
#: does; with the plan of an analysis, which writes one only if the remedy pays.
WAYS = ("plain", "run", "cache", "either", "offload", "plan", "analyze")
_PIPEDIAG = (sys.executable, "-m", "pipediag")
_ANALYZE = ("analyze", "--apply", "--budget", "6", "--apply-budget", "15", "--no-knobs", "-q", "--plan", "plan.json")
#: What pipediag says where something moved, and where something is kept or comes from a cache.
_MOVED = re.compile(r"(?<!nothing was )moved from the loader|gives its batches on")
_BATCHES = re.compile(r"batches: (\d+) recorded, (\d+) of plain code, (\d+) with pixels")
_KEPT = re.compile(r"[1-9][\d,]* (answered from the cache|samples kept)")
#: What a script calls of its helper module that an edit changes.
_EDITED = re.compile(r"helper\.load\(|(?<![.\w])load\(")
#: What pipediag says where pixels may be off within its tolerances; then a tensor is compared by its sketch.
_INEXACT = re.compile(r"may differ|within the tolerances|may be off")
#: Largest difference of such means and losses, relative to those above 1, and of values: 1.5 levels of a byte.
_TOLERANCE, _LEVEL = 0.02, 0.006
#: Share of a sketch's values that may differ by more: a rotated pixel may come from the neighbour of its source.
_OFF = 0.1


@dataclass
class Result:
    """What was found of one script.

    Attributes:
        name: of the script.
        difference: the way and the first difference; empty if there is none.
        acted: what pipediag really did: ``moved``, ``kept``, ``planned``; ``recorded`` if the loop got batches that
            were recorded, ``recorded-code`` if calls of the script's own code were, ``with-pixels`` if batches
            could not be; ``nearly`` if some pixels are not equal; ``failed`` if the plain script ends by an error.
        seconds: of all runs.
        said: what pipediag said, by way.
        error: the line that names the error of the plain script.
    """

    name: str
    text: str
    difference: str = ""
    acted: set[str] = field(default_factory=set)
    seconds: float = 0.0
    said: dict[str, list[str]] = field(default_factory=dict)
    error: str = ""


def compared(
    name: str,
    text: str,
    folder: Path,
    data: Path,
    ways: Sequence[str],
    shell: bool = False,
    patience: float = 60.0,
    ignored: Sequence[str] = (),
) -> Generator[Job, Ran, Result]:
    """Yield the runs of a script; return the result after the last of them, or after the first that differs.

    Args:
        folder: for the runs; it does not exist yet.
        data: folder of the files that scripts read.
        shell: start fresh interpreters, by the real command line.
        patience: seconds after which a run hangs.
        ignored: first words of lines that are not compared.
    """
    result = Result(name, text)

    def job(
        way: str, command: Sequence[str], main: Main | None = plainly, again: bool = False, edited: bool = False
    ) -> Job:
        where = folder / way
        if not again:
            prepare(where, text, data, edited)
        words = [sys.executable, "train.py"] if not command else [*_PIPEDIAG, *command, "train.py"]
        by_command = main is None or (shell and main is not offloading)
        return Job(where, main, words if by_command else None, patience * (3 if main is None else 1))

    def saw(way: str, plain: Ran, ran: Ran) -> bool:
        result.seconds += ran.seconds
        result.said[way] = ran.said
        result.acted |= {"moved"} if any(map(_MOVED.search, ran.said)) else set()
        result.acted |= {"kept"} if any(map(_KEPT.search, ran.said)) else set()
        for found in filter(None, map(_BATCHES.search, ran.said)):
            counts = zip(("recorded", "recorded-code", "with-pixels"), map(int, found.groups()), strict=True)
            result.acted |= {what for what, count in counts if count}
        found = difference(plain, ran, ignored)
        result.acted |= {"nearly"} if not found and _lines(plain, ignored) != _lines(ran, ignored) else set()
        result.difference = f"{way}: {found}" if found else ""
        return bool(found)

    plain = yield job("plain", ())
    result.seconds += plain.seconds
    if plain.code is None:
        result.difference = "plain: it hangs"
        return result
    result.error = plain.error
    result.acted |= {"failed"} if plain.error else set()
    if "plain" in ways and saw("plain", plain, (yield job("again", ()))):
        return result
    if "run" in ways and saw("run", plain, (yield job("run", ("run",), remedied()))):
        return result
    if "cache" in ways:
        command = ("run", "--cache-dir", "kept")
        if saw("cache", plain, (yield job("cache", command, remedied(folder="kept")))):
            return result
        edited = (yield job("edited", (), edited=True)) if _EDITED.search(text) else plain
        edit(folder / "cache")
        second = yield job("cache", command, remedied(folder="kept"), again=True)
        if saw("cache, with an edited helper", edited, second):
            return result
    offloads = "offload" in ways and "given(loader)" in text
    if offloads and saw("offload", plain, (yield job("offload", (), offloading))):
        return result
    for way in ("plan", "analyze"):
        if way not in ways:
            continue
        kept = "kept" if way == "plan" and len(text) % 2 else runner.NO_PLAN
        made = job(way, _ANALYZE, None) if way == "analyze" else Job(prepare(folder / way, text, data), planning(kept))
        result.seconds += (yield made).seconds
        if (folder / way / "plan.json").exists():
            result.acted.add("planned")
            with_plan = ("run", "--plan", "plan.json")
            if saw(way, plain, (yield job(way, with_plan, remedied("plan.json", kept), again=True))):
                break
    return result


def difference(plain: Ran, ran: Ran, ignored: Sequence[str] = ()) -> str:
    """Return the first difference between a plain run and another one, as short text; empty if there is none."""
    after = f" after {ran.lines[-1][:60]}" if ran.lines else ""
    if ran.code is None:
        return f"it hangs{after}"
    if ran.code < 0 and ran.code != plain.code:
        return f"{signal.Signals(-ran.code).name} ends it{after}"
    lines, others = _lines(plain, ignored), _lines(ran, ignored)
    why = ran.error or "".join(ran.said[-1:])
    alike = _alike if any(map(_INEXACT.search, ran.said)) else str.__eq__
    for number, (line, other) in enumerate(zip_longest(lines, others)):
        if line is None or other is None or not alike(line, other):
            return f"line {number + 1}: {_first_difference(line, other)}" + (f" ({why})" if other is None else "")
    if plain.code != ran.code:
        return f"exit code {ran.code} instead of {plain.code} ({why})"
    if _kind(plain.error) != _kind(ran.error):
        return f"error {ran.error!r} instead of {plain.error!r}"
    return ""


def _lines(ran: Ran, ignored: Sequence[str]) -> list[str]:
    return [line for line in ran.lines if not line.startswith(tuple(ignored))]


def _alike(line: str, other: str) -> bool:
    """Return whether lines are equal but for pixels and losses that are nearly equal."""
    both = [re.sub(r"\b[0-9a-f]{10} ~", "~", one).split() for one in (line, other)]
    return len(both[0]) == len(both[1]) and all(a == b or _near(a, b) for a, b in zip(*both, strict=True))


def _near(word: str, other: str, tolerance: float = _TOLERANCE) -> bool:
    """Return whether two words are numbers, or sketches of tensors, that are nearly equal."""
    if word.startswith("~") and other.startswith("~"):
        (mean, values), (other_mean, others) = (sketch.strip("~(),").split(";") for sketch in (word, other))
        pairs = list(zip(values.split(","), others.split(","), strict=True))
        off = sum(one != two and not _near(one, two, _LEVEL) for one, two in pairs)
        return _near(mean, other_mean) and off <= _OFF * len(pairs) + 1
    try:
        a, b = (
            float.fromhex(one) if "0x" in one else float(one) for one in (text.strip("~(),") for text in (word, other))
        )
    except ValueError:
        return False
    return abs(a - b) <= tolerance * max(1.0, abs(a))


def _kind(error: str) -> str:
    """Return an error without addresses and process ids."""
    return re.sub(r"0x[0-9a-f]+|pid\(?s?\)? [\d, ]+", "", error)


def _first_difference(line: str | None, other: str | None) -> str:
    if line is None or other is None:
        return f"{_short(other)} instead of {_short(line)}"
    words, others = line.split(), other.split()
    at = next((n for n, (a, b) in enumerate(zip_longest(words, others)) if a != b), 0)
    start = " ".join(words[: min(3, at)])
    return f"{start} … {_short(' '.join(others[at : at + 6]))} instead of {_short(' '.join(words[at : at + 6]))}"


def _short(line: str | None) -> str:
    return "the end" if line is None else repr(line if len(line) < 90 else f"{line[:87]}...")


def takes_part(seed: int, number: int, share: float, what: str) -> bool:
    """Return whether a script is among this share of all."""
    return random.Random(f"{what} {seed} {number}").random() < share
