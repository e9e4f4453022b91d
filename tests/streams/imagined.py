"""A CUDA device in the imagination, for what the executor does on the host: streams, events and waits, no memory.

Nothing is ever done by the device until somebody waits for it: then it has come as far as it was waited for, and no
farther. A consumer is so as far behind its host as can be, and how far a host runs ahead is the number of events that
nobody has waited for.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

GIGABYTE = 1 << 30


class Stream:
    """Knows the events that its next work comes after."""

    def __init__(self, device: Any = None) -> None:
        self.before: list[Event] = []

    def wait_event(self, event: Event) -> None:
        self.before.append(event)

    def record_event(self) -> Event:
        event = Event()
        event.record(self)
        return event


class Event:
    def __init__(self, blocking: bool = False) -> None:
        self._before: list[Event] = []
        self.passed = False

    def record(self, stream: Stream) -> None:
        self._before, stream.before = stream.before, [self]

    def synchronize(self) -> None:
        left = [self]
        while left:
            event = left.pop()
            if not event.passed:
                event.passed = True
                left += event._before
                event._before = []


class Device:
    """What stands in for ``torch.cuda``.

    Attributes:
        free: bytes of memory that are free.
        draws: how many random numbers have been drawn.
    """

    def __init__(self) -> None:
        self.free = 64 * GIGABYTE
        self.draws = 0
        self.default = Stream()
        self._current = threading.local()

    def current_stream(self, device: Any = None) -> Stream:
        stream = getattr(self._current, "stream", self.default)
        assert isinstance(stream, Stream)
        return stream

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before = self.current_stream()
        self._current.stream = stream
        try:
            yield
        finally:
            self._current.stream = before

    @contextmanager
    def device(self, device: Any) -> Iterator[None]:
        yield

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        return self.free, 80 * GIGABYTE

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.tensor([self.draws])


@pytest.fixture
def imagined(monkeypatch: pytest.MonkeyPatch) -> Device:
    """Everything that the executor asks of ``torch.cuda`` goes to an imagined device."""
    device = Device()
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    for name in ("current_stream", "stream", "device", "mem_get_info", "get_rng_state"):
        monkeypatch.setattr(torch.cuda, name, getattr(device, name))
    return device
