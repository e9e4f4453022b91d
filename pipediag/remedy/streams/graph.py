"""A stage as a CUDA graph: one launch instead of one for each kernel.

A graph repeats the kernels of one run on the memory of that run. A batch is copied in, the result is copied out. What a
stage does on the host is not repeated, so a stage is captured only when the graph has been seen to give, bit by bit,
what the stage itself gives: random numbers of the device come anew each time, those of the host would be frozen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ...errors import UsageError
from ...ladder import randomness, tree

Work = Callable[[Any], Any]

#: Batches of a kind that run without a graph first: libraries choose their kernels by them.
_WARM = 1
#: Kinds of batch that are captured; all others run as they are.
_MOST_KINDS = 2


class Graphed:
    """Work on batches, captured for each kind of batch that comes more than a few times.

    Attributes:
        why: why no (further) graph will be made; empty while one may be.
    """

    def __init__(self, work: Work, device: torch.device) -> None:
        self.why = ""
        self._work = work
        self._generator = torch.cuda.default_generators[device.index or 0]
        self._pool = torch.cuda.graph_pool_handle()  # one for all graphs: they run one after the other on one stream
        self._seen: dict[Any, int] = {}
        self._graphs: dict[Any, _Graph] = {}

    @property
    def note(self) -> str:
        """Whether there is a graph, and why there is none, or none for some batches."""
        if not self._graphs:
            return f"runs as it is: {self.why or 'too few batches of one kind so far'}"
        kinds = "one kind" if len(self._graphs) == 1 else f"{len(self._graphs)} kinds"
        return "; ".join(filter(None, (f"captured in a CUDA graph for {kinds} of batch", self.why)))

    def __call__(self, batch: Any) -> Any:
        if self.why and not self._graphs:
            return self._work(batch)
        kind = _kind(batch)
        graph = self._graphs.get(kind)
        if graph is not None:
            return graph(batch)
        self._seen[kind] = self._seen.get(kind, 0) + 1
        if self.why or self._seen[kind] <= _WARM:
            return self._work(batch)
        made, self.why = self._capture(batch, kind)
        if not self.why and len(self._graphs) == _MOST_KINDS:
            self.why = f"only the first {_MOST_KINDS} kinds of batch are captured"
        return made

    def forget(self) -> None:
        """What the graphs read lies elsewhere now."""
        self._graphs.clear()
        self._seen.clear()
        self.why = ""

    def _capture(self, batch: Any, kind: Any) -> tuple[Any, str]:
        """What the stage makes of the batch, and why its graph is not to be used; empty where it was made."""
        given = tree.clone(batch)
        device_draws, host_draws = self._generator.get_state(), randomness.state()
        made = self._work(batch)
        whose = randomness.moved(host_draws, randomness.state())
        if whose is not None:
            return made, f"it draws random numbers on the host ({whose}), which a graph would repeat"
        kept = self._generator.clone_state()
        try:
            graph = _Graph(self._work, given, self._pool)
        except UsageError:
            raise
        except Exception as error:  # it waits for the device, or does what else a capture forbids
            self._generator.graphsafe_set_state(kept)
            return made, f"capturing it failed: {_first_line(error)}"
        after = self._generator.get_state()
        self._generator.set_state(device_draws)
        again = graph(given)
        same = _equal(made, again) and torch.equal(self._generator.get_state(), after)
        self._generator.set_state(after)
        if not same:
            return made, "its graph does not give what the stage gives: it depends on something besides its batch"
        self._graphs[kind] = graph
        torch.cuda.empty_cache()  # the runs before took memory of their own, which no run takes any more
        return made, ""


class _Graph:
    """One captured run."""

    def __init__(self, work: Work, batch: Any, pool: Any) -> None:
        self._inputs = [leaf.clone() for leaf in _tensors(batch)]
        inputs = iter(self._inputs)
        static = tree.map_leaves(batch, lambda leaf: next(inputs) if isinstance(leaf, Tensor) else leaf)
        self._graph = torch.cuda.CUDAGraph()
        with _casts_made_anew():
            # Loading threads allocate page-locked memory and the like; that is theirs, and must not end the capture.
            self._graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                self._made = work(static)
            finally:
                self._graph.capture_end()
        if any(isinstance(leaf, Tensor) and not leaf.is_cuda for leaf in tree.leaves(self._made)):
            raise ValueError("it gives a tensor that lies on the host")
        numbers = {id(leaf): number for number, leaf in enumerate(self._inputs)}
        #: For each tensor of the result the input that it is, None for one that the graph makes.
        self._handed_on = [numbers.get(id(leaf)) for leaf in _tensors(self._made)]

    def __call__(self, batch: Any) -> Any:
        given = _tensors(batch)
        if given:
            torch._foreach_copy_(self._inputs, given, non_blocking=True)
        self._graph.replay()
        handed_on = iter(self._handed_on)

        def fresh(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            number = next(handed_on)
            return leaf.clone() if number is None else given[number]

        return tree.map_leaves(self._made, fresh)


@contextmanager
def _casts_made_anew() -> Iterator[None]:
    """Autocast keeps weights that it has cast; a graph must not read what is gone when the context ends."""
    kept = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(kept)


def _tensors(batch: Any) -> list[Tensor]:
    return [leaf for leaf in tree.leaves(batch) if isinstance(leaf, Tensor)]


def _kind(batch: Any) -> Any:
    """What makes two batches run the same kernels on memory of the same layout."""
    parts: list[Any] = [torch.is_grad_enabled(), torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")]
    for leaf in tree.leaves(batch):
        if isinstance(leaf, Tensor):
            parts.append((leaf.shape, leaf.dtype, leaf.stride(), leaf.device))
        else:
            parts.append(leaf if isinstance(leaf, (int, float, str, bytes, type(None))) else id(leaf))
    return tuple(parts)


def _equal(one: Any, other: Any) -> bool:
    """Whether two results are alike bit by bit; waits for the device."""
    here, there = list(tree.leaves(one)), list(tree.leaves(other))
    return len(here) == len(there) and all(map(_alike, here, there))


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        return bool(((one == other) | ((one != one) & (other != other))).all())
    return bool(one == other)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
