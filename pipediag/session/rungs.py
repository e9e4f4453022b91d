"""The rungs: one table that says what each is, and everything else follows from it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class RungKind:
    """One rung of the ladder, or a control beside it.

    Attributes:
        name: as in reports, sessions and ``--rungs``.
        stage: the stage whose cost appears when the rung is compared with the rung before it; empty for a control.
        meaning: what the training loop receives, for people.
        fed_by: where the loop's batches come from: a ``cache`` in the training process, or the ``workers``.
        workers_make: the rung that workers serve meanwhile; its own if empty.
    """

    name: str
    stage: str
    meaning: str
    fed_by: Literal["cache", "workers"] = "workers"
    workers_make: str = ""


#: The ladder, fastest rung first. Each rung adds one stage of the input pipeline to the rung before it. Between
#: ``sample`` and ``raw`` stand the cuts of the transform chain, ``transform:k``, as far as they are measured.
LADDER = (
    RungKind("device", "compute", "batches cached on the training device", "cache", "baseline"),
    RungKind("host", "transfer", "batches cached in host memory", "cache", "baseline"),
    RungKind("worker", "ipc", "a cached batch, sent again by the workers"),
    RungKind("sample", "collate", "cached processed samples, collated anew"),
    RungKind("raw", "transform", "cached raw samples, transformed anew"),
    RungKind("warm", "load", "the whole dataset code, on a few items whose files are in the page cache"),
    RungKind("baseline", "storage", "the loader as it is"),
)
#: Measured beside the ladder.
BESIDE = (RungKind("supply", "", "the loader alone, without the training step", "workers", "baseline"),)
#: The loop under the remedy, measured against a baseline of its own rounds once the ladder is known. So are the
#: ``settings:k``, the loop on loaders like its own with other settings.
REMEDIED = "remedied"

RUNG = {kind.name: kind for kind in (*LADDER, *BESIDE)}
RUNGS = tuple(kind.name for kind in LADDER)
CONTROLS = tuple(kind.name for kind in BESIDE)
STAGE_OF_RUNG = {kind.name: kind.stage for kind in LADDER}
RUNG_MEANING = {name: kind.meaning for name, kind in RUNG.items()}
#: Rungs under which the training process feeds its loop itself.
CACHED = tuple(name for name, kind in RUNG.items() if kind.fed_by == "cache")

_CUT, _SETTINGS = "transform:", "settings:"


def workers_make(rung: str) -> str:
    """The rung that the workers serve while ``rung`` is measured."""
    if fed_apart(rung):
        return "baseline"
    kind = RUNG.get(rung)
    return kind.workers_make or rung if kind is not None else rung


def cut_rung(links: int) -> str:
    """The rung whose samples have their first ``links`` transforms behind them."""
    return f"{_CUT}{links}"


def cut_of(rung: str) -> int | None:
    """How many transforms lie behind the samples of a rung ``transform:k``; None for every other rung."""
    return _number(rung, _CUT)


def settings_rung(number: int) -> str:
    """The rung on which the loop is fed by a loader with other settings: those tried as the ``number``-th, from 1."""
    return f"{_SETTINGS}{number}"


def settings_of(rung: str) -> int | None:
    """Which settings a rung ``settings:k`` is under, from 1; None for every other rung."""
    return _number(rung, _SETTINGS)


def fed_apart(rung: str) -> bool:
    """Whether the loop is fed under this rung by another loader than the script's, beside the ladder."""
    return rung == REMEDIED or settings_of(rung) is not None


def _number(rung: str, prefix: str) -> int | None:
    return int(rung[len(prefix) :]) if rung.startswith(prefix) and rung[len(prefix) :].isdecimal() else None


def ordered(names: Iterable[str]) -> list[str]:
    """Rung names in ladder order, then controls, then what stands beside the ladder."""
    rank = {name: i for i, name in enumerate(RUNGS + CONTROLS)}

    def place(name: str) -> tuple[int, int]:
        links = cut_of(name)
        if links is not None:
            return rank["sample"], 1_000_000 - links
        return rank.get(name, len(rank)), settings_of(name) or 0

    return sorted(names, key=place)
