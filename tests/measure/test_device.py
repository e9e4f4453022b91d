"""The calls of a device that is the CPU."""

from __future__ import annotations

import pytest
import torch

from pipediag import clock
from pipediag.measure.device import Device


def test_a_delay_on_the_cpu_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(clock.time, "sleep", slept.append)
    device = Device(torch.device("cpu"))
    device.delay(0.25)
    device.delay(0.5)
    assert slept == [0.25, 0.5]


def test_a_cpu_has_nothing_else() -> None:
    device = Device(torch.device("cpu"))
    device.synchronize()
    device.forget_peak()
    assert (device.event(), device.peak_bytes(), device.gpu()) == (None, None, None)
    assert device.facts() == {"type": "cpu", "index": None}
