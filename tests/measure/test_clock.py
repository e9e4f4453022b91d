"""A script may freeze the functions of ``time``."""

from __future__ import annotations

import time

import pytest

from pipediag.measure.clock import SystemClock, stands_still


def test_the_clock_goes_on_in_a_script_that_froze_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not stands_still()
    for name in ("time", "monotonic", "perf_counter"):
        monkeypatch.setattr(time, name, lambda: 5.0)
    clock = SystemClock()
    before = clock.now()
    clock.sleep(0.001)
    assert clock.now() > before and stands_still()
