"""Define the rungs in one table, from which all other facts about rungs derive."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class RungKind:
    """One rung of the ladder, or a control outside it."""

    name: str  # as used in reports, sessions and ``--rungs``
    stage: str  # the stage whose cost is the difference from the rung before; empty for a control
    work: str  # what the stage does, in words for the verdict
    meaning: str  # what the training loop receives, in words for the report
    short: str = ""  # the stage in few words, for a screen; its name if empty
    cached: bool = False  # True if the loop's batches come from a cache in the training process, not from the workers


@dataclass
class Rung:
    """Availability of a rung on this loader."""

    name: str
    available: bool = True
    why_not: str = ""  # if it is not available, why and what would help
    exists: bool = True  # false if the pipeline has no such stage: no transfer on the CPU, no hand-off without workers


#: The ladder, fastest rung first. Each rung adds one stage of the input pipeline to the rung before it. The cuts of
#: the transform chain, ``transform:k``, lie between ``sample`` and ``raw`` if they are measured.
LADDER = (
    RungKind(
        "device",
        "compute",
        "the model itself",
        "batches cached on the training device",
        "the model's own step",
        cached=True,
    ),
    RungKind(
        "host",
        "transfer",
        "copying batches from host memory to the device",
        "batches cached in host memory",
        "copying to the device",
        cached=True,
    ),
    RungKind(
        "worker",
        "ipc",
        "handing batches from the worker processes to the training process",
        "a cached batch, sent again by the workers",
        "hand-off",
    ),
    RungKind(
        "sample",
        "collate",
        "collating samples into batches",
        "cached processed samples, collated anew",
        "collating",
    ),
    RungKind(
        "raw",
        "transform",
        "running the transforms on every sample",
        "cached samples as they were loaded, transformed anew",
        "transforms",
    ),
    RungKind(
        "warm",
        "load",
        "loading the samples (reading, decoding, generating)",
        "the whole dataset code, on a few items whose files are in the page cache",
        "loading",
    ),
    RungKind(
        "baseline",
        "storage",
        "reading data that is not in the page cache",
        "the loader as it is",
        "reading from storage",
    ),
)
#: The loop as it is, with no more torch threads in the training process than there are cores left for them.
FEWER_THREADS = "fewer-threads"
#: The loop as it is in one long window: slow steps that come now and then are met there.
LONGER = "longer"
#: Rungs under which the loop is as it is.
PLAIN = ("baseline", LONGER)
#: Controls, measured in addition to the ladder.
_CONTROLS = (
    RungKind("supply", "", "", "the loader alone, without the training step"),
    RungKind(FEWER_THREADS, "", "", "the loader as it is, with fewer torch threads in the training process"),
    RungKind(LONGER, "", "", "the loader as it is, watched for longer"),
)
#: The loop under a remedy: transforms move to the device; JPEGs are decoded there too; what library calls read and
#: decode is kept; or only the hand-off of the batches changes. Each is measured after the ladder, in rounds that
#: include a baseline of their own. The same holds for the rungs ``settings:k``: the loop fed by copies of its loader
#: with other settings.
REMEDIED, DECODED, LOADED_ONCE, HANDED_OVER = "remedied", "decoded", "loaded-once", "hand-off"
#: The rungs of the remedies, and the field of a session that holds each.
REMEDIES = {REMEDIED: "remedy", DECODED: "decoded", LOADED_ONCE: "loaded_once", HANDED_OVER: "handoff"}

RUNGS = tuple(kind.name for kind in LADDER)
CONTROLS = tuple(kind.name for kind in _CONTROLS)
STAGE_OF_RUNG = {kind.name: kind.stage for kind in LADDER}
RUNG_MEANING = {kind.name: kind.meaning for kind in (*LADDER, *_CONTROLS)}
#: Rungs whose batches come from a cache in the training process.
CACHED = tuple(kind.name for kind in LADDER if kind.cached)

_CUT, _SETTINGS, _WITHOUT = "transform:", "settings:", "without:"
_MOST_DIGITS = 6
#: Maximum number of bytes of the line that a rung ``without:line`` leaves out.
MOST_OF_A_LINE = 240
#: What the training loop receives under a remedy, in words for a reader.
_UNDER_REMEDIES = {
    REMEDIED: "batches whose transforms run on the device",
    DECODED: "batches that are decoded on the device",
    LOADED_ONCE: "samples from a cache",
    HANDED_OVER: "batches handed over in re-used memory",
}


def received(rung: str) -> str:
    """Return what the training loop receives under a rung, in words for a reader."""
    if (links := cut_of(rung)) is not None:
        return f"cached samples after the first {links} transform{'s' if links > 1 else ''}, the others run anew"
    if (where := left_out(rung)) is not None:
        what = "the calls" if where == line_left_out(where) else "the function"
        return f"a few items made without {what} at {line_left_out(where)}, whose results are cached"
    return {**RUNG_MEANING, **_UNDER_REMEDIES}.get(rung, "batches of a loader with other settings")


def made_under(rung: str) -> str:
    """Return the rung under which the workers make the batches that ``rung`` is measured with."""
    return "baseline" if rung in (*CACHED, *CONTROLS) else rung


def workers_make(rung: str) -> str:
    """Return the rung that the workers of the script's loader serve while ``rung`` is measured."""
    return "baseline" if fed_apart(rung) else made_under(rung)


def cut_rung(links: int) -> str:
    """Return the name of the rung whose cached samples have passed the first ``links`` transforms."""
    return f"{_CUT}{links}"


def cut_of(rung: str) -> int | None:
    """Return how many transforms the cached samples of a rung ``transform:k`` have passed; None for any other rung."""
    return _number(rung, _CUT)


def without_rung(where: str) -> str:
    """Return the name of the rung under which the calls at the line ``where`` are left out; see :func:`left_out`."""
    return f"{_WITHOUT}{where}"


def left_out(rung: str) -> str | None:
    """Return what is left out under a rung ``without:...``; None for any other.

    It is the calls at a line, as ``file:line``, or those of the function that a line is in, as ``file:line()``.
    """
    where = rung[len(_WITHOUT) :]
    number = line_left_out(where).rpartition(":")[2]
    known = rung.startswith(_WITHOUT) and number.isdecimal() and len(number) <= _MOST_DIGITS
    return where if known and len(where.encode()) <= MOST_OF_A_LINE else None


def line_left_out(where: str) -> str:
    """Return the line of :func:`left_out`."""
    return where.removesuffix("()")


def settings_rung(number: int) -> str:
    """Return the name of the rung for the ``number``-th loader settings tried, counted from 1."""
    return f"{_SETTINGS}{number}"


def settings_of(rung: str) -> int | None:
    """Return the number k of a rung ``settings:k``, counted from 1; None for any other rung."""
    return _number(rung, _SETTINGS)


def fed_apart(rung: str) -> bool:
    """Return whether the rung is outside the ladder and another loader than the script's feeds the loop."""
    return rung in REMEDIES or settings_of(rung) is not None


def is_found_later(rung: str) -> bool:
    """Return whether it is known only once samples were looked into that there is such a rung."""
    return cut_of(rung) is not None or left_out(rung) is not None


def is_of_ladder(rung: str) -> bool:
    """Return whether a rung is one of the ladder's own, or a cut of the transform chain."""
    return rung in RUNGS or cut_of(rung) is not None


def is_rung(name: str) -> bool:
    """Return whether there is such a rung."""
    known = name in RUNG_MEANING or name in REMEDIES or cut_of(name) is not None or bool(settings_of(name))
    return known or left_out(name) is not None


def _number(rung: str, prefix: str) -> int | None:
    digits = rung[len(prefix) :]
    return int(digits) if rung.startswith(prefix) and digits.isdecimal() and len(digits) <= _MOST_DIGITS else None


def ordered(names: Iterable[str]) -> list[str]:
    """Return rung names in ladder order, then controls, remedies and settings."""
    rank = {name: i for i, name in enumerate((*RUNGS, *CONTROLS, *REMEDIES))}

    def place(name: str) -> tuple[int, int]:
        links = cut_of(name)
        if links is not None:
            return rank["sample"], 1_000_000 - links
        return rank.get(name, len(rank)), settings_of(name) or 0

    return sorted(names, key=place)
