"""Define a remedy that ``--apply`` tried, with the proof that its batches are equal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .loader import Place

#: Name of the operation that decodes JPEGs on the device.
DECODING = "JPEG decoding"


@dataclass
class Kept:
    """A transform that stays in the workers, and why. Without a name: why no more transforms can move."""

    name: str
    why: str = ""


@dataclass
class Apart:
    """Difference between the remedy's results and the CPU's: for one function, or for whole batches of one dtype."""

    name: str
    samples: int = 0
    largest: float | None = 0.0  # a share of the results' range, or of integers, levels; None if they do not compare
    off: float = 0.0  # the share of elements beyond the tolerance (for integers: that differ)
    levels: bool = False  # true for integers
    passed: bool = True


@dataclass(frozen=True)
class Elsewhere:
    """A moved transform that is not exact by construction; ``how`` says how far its pixels may be from the CPU's on
    samples that were not compared."""

    name: str
    how: str


@dataclass
class Pictured:
    """One sample as the CPU and the device made it, and their difference: small PNGs in base64."""

    cpu: str
    device: str
    difference: str  # scaled up to be seen
    largest: float = 0.0  # the largest difference in levels of 255


@dataclass
class Proof:
    """Summary of the certificate."""

    passed: bool = False
    samples: int = 0
    unrecorded: int = 0  # of the samples: they could not be recorded
    why: str = ""  # the reason for that
    draws_equal: bool = True
    apart: list[Apart] = field(default_factory=list)
    #: Empty if everything that moved is exact by construction, and None in files that do not say.
    elsewhere: list[Elsewhere] | None = None
    pictured: list[Pictured] = field(default_factory=list)


@dataclass
class Edit:
    """A unified diff of the script that keeps the remedy, or the reason why no certainly correct diff exists."""

    diff: str = ""
    why_not: str = ""


@dataclass
class Keeping:
    """A cache: ``what`` it keeps, in words, the bytes that all samples need, and those that are free."""

    what: str = ""
    nbytes: int = 0
    free: int = 0

    @property
    def fits(self) -> float:
        """Share of the samples that fits."""
        return min(1.0, self.free / self.nbytes) if self.nbytes else 1.0


@dataclass
class Remedy:
    """A change that ``--apply`` tried on the training loader; its gain follows from the windows.

    It moves transforms, keeps what library calls read and decode (``keeping``), does both, or is the hand-off
    alone (:attr:`.Session.handoff`).
    """

    device: str = ""
    moved: list[Place] = field(default_factory=list)
    stayed: list[Kept] = field(default_factory=list)
    why_not: str = ""  # why nothing could be tried
    proof: Proof | None = None  # None if nothing moves
    keeping: Keeping | None = None
    memory_bytes: int | None = None  # increase of the loop's peak device memory
    edit: Edit = field(default_factory=Edit)
    plan: dict[str, Any] = field(default_factory=dict)  # for ``pipediag run --plan``, see remedy/saved_plan.py
    plan_file: str = ""  # the file that it was written to

    @property
    def moved_names(self) -> list[str]:
        """Names of what moves, each once."""
        return [*dict.fromkeys(place.name for place in self.moved)]


def listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def elsewhere(found: Sequence[Elsewhere]) -> str:
    """Return how far pixels may be from the CPU's on samples that were not compared; empty if they are exact."""
    hows = dict.fromkeys(one.how for one in found)
    parts = [f"{listed([one.name for one in found if one.how == how])} may differ {how}" for how in hows]
    return f"{', '.join(parts)} elsewhere" if parts else ""
