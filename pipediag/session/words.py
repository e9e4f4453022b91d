"""Say lists of names, and how far pixels may be off, in the same words everywhere."""

from __future__ import annotations

from collections.abc import Sequence

from .remedies import Elsewhere

#: Name of the operation that decodes JPEGs on the device.
DECODING = "JPEG decoding"


def listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def elsewhere(found: Sequence[Elsewhere]) -> str:
    """Return how far pixels may be from the CPU's on samples that were not compared; empty if they are exact."""
    hows = dict.fromkeys(one.how for one in found)
    parts = [f"{listed([one.name for one in found if one.how == how])} may differ {how}" for how in hows]
    return f"{', '.join(parts)} elsewhere" if parts else ""
