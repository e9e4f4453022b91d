"""Texts that are kept in files, to be looked through as a whole: what they say may only change on purpose.

After an intended change, write the files anew with ``UPDATE_GOLDENS=1``, and read the difference.
"""

from __future__ import annotations

import os
from pathlib import Path


def agrees(file: Path, text: str) -> None:
    """Check that a file holds this text."""
    if os.environ.get("UPDATE_GOLDENS"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")
