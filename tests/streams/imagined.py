"""An imagined CUDA device: streams, events and waits, without a GPU.

No work counts as done before something has waited for it. So a consumer is as far behind its host as possible; a host
is ahead by the number of events that nothing has waited for; and two pieces of work are in order only if one was
launched on a stream that had been told to wait for the other. The waits are recorded as vector clocks (C. Fidge,
"Timestamps in message-passing systems that preserve the partial ordering", 1988).
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

GIGABYTE = 1 << 30

#: For each stream, by its number, the time of its last work that is done.
Clock = dict[int, int]

_numbers = itertools.count(1)
_times = itertools.count(1)
_lock = threading.RLock()


def held_in_forks(lock: Any) -> None:
    """Let no process be forked while another thread has the lock: the fork would wait for it for ever."""
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)


held_in_forks(_lock)
#: What the host has waited for. No time is used twice, so tests need not reset it.
_host: Clock = {}


def _learn(clock: Clock, other: Clock) -> None:
    with _lock:
        for stream, time in other.items():
            clock[stream] = max(time, clock.get(stream, 0))


class Stream:
    """Stream, whose work runs in launch order.

    Attributes:
        after: the work that its next work follows.
    """

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.number = self.cuda_stream = next(_numbers)
        self.device = torch.device("cuda", 0)
        self.after: Clock = {}

    def work(self) -> int:
        """Launch some work, and return its time."""
        with _lock:
            _learn(self.after, _host)
            self.after[self.number] = next(_times)
            return self.after[self.number]

    def comes_after(self, stream: Stream, time: int) -> bool:
        """Return whether the next work follows the work that ``stream`` launched at ``time``."""
        with _lock:
            return stream is self or max(self.after.get(stream.number, 0), _host.get(stream.number, 0)) >= time

    def wait_event(self, event: Event) -> None:
        _learn(self.after, event.after)

    def wait_stream(self, stream: Stream) -> None:
        _learn(self.after, stream.after)

    def record_event(self, event: Event | None = None) -> Event:
        event = Event() if event is None else event
        event.record(self)
        return event

    def synchronize(self) -> None:
        _learn(_host, self.after)


class Event:
    def __init__(self, enable_timing: bool = False, blocking: bool = False) -> None:
        self.after: Clock = {}

    def record(self, stream: Stream) -> None:
        with _lock:
            self.after = dict(stream.after)

    def synchronize(self) -> None:
        _learn(_host, self.after)

    def query(self) -> bool:
        with _lock:
            return all(_host.get(stream, 0) >= time for stream, time in self.after.items())


class _Generator:
    """The device's random numbers, which are the host's here."""

    def get_state(self) -> torch.Tensor:
        return torch.get_rng_state()

    def set_state(self, state: torch.Tensor) -> None:
        torch.set_rng_state(state)

    def clone_state(self) -> _Generator:
        return self

    def graphsafe_get_state(self) -> _Generator:
        return self

    def graphsafe_set_state(self, state: _Generator) -> None:
        pass


class Device:
    """Replacement of ``torch.cuda``.

    Attributes:
        free: bytes of free memory.
        draws: number of random numbers drawn.
    """

    def __init__(self) -> None:
        self.free = 64 * GIGABYTE
        self.draws = 0
        self.default = Stream()
        self._streams: defaultdict[int, list[Stream]] = defaultdict(list)  # of each thread, the innermost last

    def current_stream(self, device: Any = None) -> Stream:
        streams = self._streams[threading.get_ident()]
        return streams[-1] if streams else self.default

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        streams = self._streams[threading.get_ident()]
        streams.append(stream)
        try:
            yield
        finally:
            streams.pop()

    def names(self) -> dict[str, Any]:
        """Return what is imagined, by its name in ``torch.cuda``."""
        locks = SimpleNamespace(cudaHostRegister=lambda *_: 0, cudaHostUnregister=lambda *_: 0)
        return {
            "Stream": Stream,
            "Event": Event,
            "current_stream": self.current_stream,
            "stream": self.stream,
            "device": lambda _: nullcontext(),
            "mem_get_info": lambda _=None: (self.free, 80 * GIGABYTE),
            "get_rng_state": lambda _=None: torch.tensor([self.draws]),
            "is_available": lambda: True,
            "current_device": lambda: 0,
            "get_device_capability": lambda _=None: (3, 5),  # too old for fused kernels
            "set_device": lambda _: None,
            "default_generators": (_Generator(),),
            "graph_pool_handle": lambda: (0, 1),
            "empty_cache": lambda: None,
            "get_sync_debug_mode": lambda: 0,
            "set_sync_debug_mode": lambda _: None,
            "cudart": lambda: locks,
        }


@pytest.fixture
def imagined(monkeypatch: pytest.MonkeyPatch) -> Device:
    """Replaces everything that the executor uses of ``torch.cuda`` by an imagined device."""
    device = Device()
    for name, value in device.names().items():
        monkeypatch.setattr(torch.cuda, name, value)
    return device
