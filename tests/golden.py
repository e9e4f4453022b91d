"""Texts that are kept in files, to be looked through as a whole: what they say may only change on purpose.

After an intended change, write the files anew with ``UPDATE_GOLDENS=1``, and read the difference.
"""

from __future__ import annotations

import os
from pathlib import Path

from pipediag.analysis.diagnosis import Recommendation


def agrees(file: Path, text: str) -> None:
    """Check that a file holds this text."""
    if os.environ.get("UPDATE_GOLDENS"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


def advised(one: Recommendation) -> list[str]:
    """Return all of a recommendation as lines of such a file."""
    gains = [("measured", one.measured), ("at most" if one.at_most else "predicted", one.predicted)]
    known = [f"{how} {gain.value:.4g} ({gain.low:.3g} to {gain.high:.3g})" for how, gain in gains if gain is not None]
    return [
        f"    {one.title} ({one.stage})",
        f"    {'; '.join(known) or 'no gain is known'}{'; what it saves is known' if one.savings else ''}",
        *(f"    - {text}" for text in one.evidence),
        f"    how: {one.how}".replace("\n", "\n         "),
        f"    risk: {one.risk}",
    ]
