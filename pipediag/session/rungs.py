"""Define the rungs in one table; all other facts about rungs derive from it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class RungKind:
    """One rung of the ladder, or a control outside it.

    Attributes:
        name: as used in reports, sessions and ``--rungs``.
        stage: the stage whose cost is the difference from the rung before; empty for a control.
        work: what the stage does, in words for the verdict.
        meaning: what the training loop receives, in words for the report.
        short: the stage in few words, for a screen; its name if empty.
        fed_by: the source of the loop's batches: a ``cache`` in the training process, or the ``workers``.
        workers_make: the rung that the workers serve while this one is measured; empty for this rung itself.
    """

    name: str
    stage: str
    work: str
    meaning: str
    fed_by: Literal["cache", "workers"] = "workers"
    workers_make: str = ""
    short: str = ""


#: The ladder, fastest rung first. Each rung adds one stage of the input pipeline to the rung before it. The cuts of
#: the transform chain, ``transform:k``, lie between ``sample`` and ``raw`` if they are measured.
LADDER = (
    RungKind(
        "device",
        "compute",
        "the model itself",
        "batches cached on the training device",
        "cache",
        "baseline",
        short="the model's own step",
    ),
    RungKind(
        "host",
        "transfer",
        "copying batches from host memory to the device",
        "batches cached in host memory",
        "cache",
        "baseline",
        short="copying to the device",
    ),
    RungKind(
        "worker",
        "ipc",
        "handing batches from the worker processes to the training process",
        "a cached batch, sent again by the workers",
        short="handing batches over",
    ),
    RungKind(
        "sample",
        "collate",
        "collating samples into batches",
        "cached processed samples, collated anew",
        short="collating",
    ),
    RungKind(
        "raw",
        "transform",
        "running the transforms on every sample",
        "cached raw samples, transformed anew",
        short="transforms",
    ),
    RungKind(
        "warm",
        "load",
        "loading the samples (reading, decoding, generating)",
        "the whole dataset code, on a few items whose files are in the page cache",
        short="loading",
    ),
    RungKind(
        "baseline",
        "storage",
        "reading data that is not in the page cache",
        "the loader as it is",
        short="reading from storage",
    ),
)
#: Controls, measured in addition to the ladder.
BESIDE = (RungKind("supply", "", "", "the loader alone, without the training step", "workers", "baseline"),)
#: The loop under a remedy: transforms move to the device; JPEGs are decoded there too; the deterministic part of each
#: sample is made once; or only the hand-off of the batches changes. Each is measured after the ladder, in rounds that
#: include a baseline of their own. The same holds for the rungs ``settings:k``: the loop on copies of its loader with
#: other settings.
REMEDIED, DECODED, LOADED_ONCE, HANDED_OVER = "remedied", "decoded", "loaded-once", "hand-off"
#: The rungs of the remedies in the order in which they are tried, and the field of a session that holds each.
REMEDIES = {REMEDIED: "remedy", DECODED: "decoded", LOADED_ONCE: "loaded_once", HANDED_OVER: "handoff"}

RUNG = {kind.name: kind for kind in (*LADDER, *BESIDE)}
RUNGS = tuple(kind.name for kind in LADDER)
CONTROLS = tuple(kind.name for kind in BESIDE)
STAGE_OF_RUNG = {kind.name: kind.stage for kind in LADDER}
RUNG_MEANING = {name: kind.meaning for name, kind in RUNG.items()}
#: Rungs whose batches come from a cache in the training process.
CACHED = tuple(name for name, kind in RUNG.items() if kind.fed_by == "cache")

_CUT, _SETTINGS = "transform:", "settings:"
_MOST_DIGITS = 6


def made_under(rung: str) -> str:
    """Return the rung under which the workers make the batches that ``rung`` is measured with."""
    kind = RUNG.get(rung)
    return kind.workers_make or rung if kind is not None else rung


def workers_make(rung: str) -> str:
    """Return the rung that the workers of the script's loader serve while ``rung`` is measured."""
    return "baseline" if fed_apart(rung) else made_under(rung)


def cut_rung(links: int) -> str:
    """Return the name of the rung whose cached samples have passed the first ``links`` transforms."""
    return f"{_CUT}{links}"


def cut_of(rung: str) -> int | None:
    """Return how many transforms the cached samples of a rung ``transform:k`` have passed; None for any other rung."""
    return _number(rung, _CUT)


def settings_rung(number: int) -> str:
    """Return the name of the rung for the ``number``-th loader settings tried, counted from 1."""
    return f"{_SETTINGS}{number}"


def settings_of(rung: str) -> int | None:
    """Return the number k of a rung ``settings:k``, counted from 1; None for any other rung."""
    return _number(rung, _SETTINGS)


def fed_apart(rung: str) -> bool:
    """Return whether the rung is outside the ladder and another loader than the script's feeds the loop."""
    return rung in REMEDIES or settings_of(rung) is not None


def is_rung(name: str) -> bool:
    """Return whether there is such a rung."""
    return name in RUNG or name in REMEDIES or cut_of(name) is not None or bool(settings_of(name))


def _number(rung: str, prefix: str) -> int | None:
    digits = rung[len(prefix) :]
    return int(digits) if rung.startswith(prefix) and digits.isdecimal() and len(digits) <= _MOST_DIGITS else None


def ordered(names: Iterable[str]) -> list[str]:
    """Return rung names in ladder order, then controls, then the rungs outside the ladder."""
    rank = {name: i for i, name in enumerate(RUNGS + CONTROLS)}

    def place(name: str) -> tuple[int, int]:
        links = cut_of(name)
        if links is not None:
            return rank["sample"], 1_000_000 - links
        return rank.get(name, len(rank)), settings_of(name) or 0

    return sorted(names, key=place)
