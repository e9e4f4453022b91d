"""Replays that repeat: where every batch takes the same launches, one CUDA graph does them all.

What differs between two batches of such a loader lies in their memory: pixels, numbers, indices. The launches, and
where in the memory each finds what it needs, are the same, so the host need not launch them one by one. A chain whose
samples skip steps at random has other launches for every batch and is replayed as it is.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import torch
from torch import Tensor

from .packed_batch import Packed
from .replay import results_of
from .streams.capture import captured

#: Batches with the same launches after which they are captured.
_SEEN = 3
#: Different sequences of launches that are captured, and that are counted.
_MOST, _COUNTED = 2, 64


class GraphCache:
    """The graphs of one loader's replays.

    Batches arrive in a thread of their own, while capturing belongs into the loop's: the device's random generator is
    in a state of its own during a capture, and the loop may draw from it. So a sequence that repeats is noted by
    :meth:`results`, and captured by :meth:`capture` when the loop next asks for a batch.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seen: Counter[Any] = Counter()
        self._graphs: dict[Any, _Graph] = {}
        self._wanted: tuple[Any, Packed] | None = None
        self._refused = False

    def results(self, there: Packed) -> list[Tensor] | None:
        """What the launches make of a batch whose memory is on the device; None where there is no graph for it."""
        if self._refused:
            return None
        key = kind_of(there)
        if key is None:
            return None
        graph = self._graphs.get(key)
        if graph is not None:
            return graph(there.memory)
        if self._wanted is None and len(self._graphs) < _MOST and (key in self._seen or len(self._seen) < _COUNTED):
            self._seen[key] += 1
            if self._seen[key] > _SEEN:
                self._wanted = key, there
        return None

    def capture(self) -> None:
        """Capture what was found to repeat, if there is any; for the thread that trains."""
        if self._wanted is None:
            return
        key, there = self._wanted
        stream = torch.cuda.Stream(self._device)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            torch.cuda.synchronize(self._device)  # the memory was copied on another stream
            try:
                expected = results_of(there, there.memory)
                graph = _Graph(there)
                same = all(map(torch.equal, expected, graph(there.memory)))
            except Exception:  # a kernel that cannot be captured here: the launches go on one by one
                same = False
            stream.synchronize()
        if same:
            self._graphs[key] = graph
        else:
            self._refused = True
        self._seen.clear()
        self._wanted = None


class _Graph:
    def __init__(self, there: Packed) -> None:
        self._memory = there.memory.clone()
        self._graph, self._results = captured(lambda: results_of(there, self._memory), there.memory.device)
        self._turn = threading.Lock()  # two epochs at once are fetched by two threads

    def __call__(self, memory: Tensor) -> list[Tensor]:
        with self._turn:
            self._memory.record_stream(torch.cuda.current_stream(memory.device))  # another than it was made on
            self._memory.copy_(memory)
            self._graph.replay()
            return [result.clone() for result in self._results]


def kind_of(there: Packed) -> Any:
    """What makes two batches take the same launches on the same places of their memory."""
    own = any(launch.name == "custom" for launch in there.launches)  # the user's code may do anything
    return (
        None if own or not there.launches else (there.memory.numel(), *there.sources, *there.launches, *there.results)
    )
