"""What holds for every test: none is told by another what happened in their process."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from pipediag import patches

# Before torch is imported, here and in what tests start: the cores are for processes.
os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture(autouse=True)
def nothing_left_patched() -> Iterator[None]:
    """Every patch and hook of this process has its undoing: a test that leaves one behind fails."""
    yield
    assert patches.LIVE == []


@pytest.fixture(autouse=True)
def compiled_code_is_forgotten() -> Iterator[None]:
    """Whether anything was compiled is asked of the whole process, which tests share. Torch may not be loaded here."""
    yield
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is not None:
        dynamo.counters.clear()
