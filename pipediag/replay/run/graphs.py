"""Replay batches that take the same launches with one CUDA graph.

Such batches differ only in the contents of their memory: pixels, numbers, indices. The launches and their offsets in
that memory are the same, so the host need not issue them one by one. A chain whose samples skip steps at random takes
different launches for every batch and is replayed without a graph.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import torch
from torch import Tensor

from ..pack.packed_batch import Packed
from .capture import captured
from .replay import results_of

#: Number of batches with the same launches before they are captured.
_SEEN = 3
#: Limits on the numbers of captured and of counted launch sequences.
_MOST, _COUNTED = 2, 64


class GraphCache:
    """CUDA graphs of one loader's replays. It must live until the device has finished the last of them.

    Batches arrive in a separate thread, but the loop's thread must capture: a capture puts the device's random
    generator in a special state, and the loop may draw from it. So :meth:`results` notes a sequence of launches that
    repeats, and :meth:`capture` captures it when the loop next asks for a batch.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seen: Counter[Any] = Counter()
        self._graphs: dict[Any, _Graph] = {}
        self._wanted: tuple[Any, Packed] | None = None
        self._refused = False

    def results(self, there: Packed) -> list[Tensor] | None:
        """Return the results for a batch whose memory is on the device; None if there is no graph for it."""
        key = None if self._refused else kind_of(there)
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
        """Capture the noted sequence of launches, if any. Only the loop's thread may call this."""
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
            except Exception:  # a kernel cannot be captured: keep launching one by one
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
        self._turn = threading.Lock()  # two epochs at once fetch in two threads

    def __call__(self, memory: Tensor) -> list[Tensor]:
        with self._turn:
            self._memory.copy_(memory)
            self._graph.replay()
            return [result.clone() for result in self._results]


def kind_of(there: Packed) -> Any:
    """Return a key, equal for batches with the same launches at the same offsets; None if no graph is possible."""
    if not there.launches:
        return None
    return there.memory.numel(), *there.sources, *there.launches, *there.results
