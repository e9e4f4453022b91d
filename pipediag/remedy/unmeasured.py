"""Decide whether transforms may move to a device without a measurement that shows a gain."""

from __future__ import annotations

import os

#: Variable with which tests move transforms on a CPU: "1" allows it.
MOVES_ON_CPU = "PIPEDIAG_TEST_MOVES_ON_CPU"


def why_not_moved(device: str) -> str:
    """Return why nothing moves to this type of device unless that was measured; empty if it may."""
    if device != "cpu" or os.environ.get(MOVES_ON_CPU) == "1":
        return ""
    return "on a CPU nothing moves unless it was measured to be faster (pipediag analyze --apply --plan FILE SCRIPT)"
