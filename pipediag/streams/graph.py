"""Run a stage as a CUDA graph: one launch instead of one for each kernel.

A graph repeats the kernels of one run on the memory of that run: a batch is copied in, and the result is copied out.
The stage's work on the host is not repeated: random numbers of the device are drawn anew each time, but those of the
host would be frozen. So a graph is used only if its results equal the stage's own, bit by bit. The first batch of every
epoch is compared again, since anything may change between two epochs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import UsageError
from ..replay.certify.differences import equal
from ..replay.run.capture import captured
from ..usercode import randomness, tree
from ..usercode.places import label

Work = Callable[[Any], Any]

#: Number of batches of a kind that run without a graph first; libraries use them to choose their kernels.
_WARM = 1
#: Maximum number of kinds of batch with a graph; all others run without one.
_MOST_KINDS = 2
#: Maximum number of kinds of batch that are counted at a time.
_COUNTED = 256
#: Immutable values that a batch may hold in addition to tensors; they enter its kind by value.
_VALUES = (int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


class Refused(Exception):
    """Error: the work cannot be captured; the message is the reason, as a clause."""


class Graphed:
    """Work on batches, captured for each kind of batch that occurs often enough."""

    def __init__(self, work: Work, device: torch.device) -> None:
        self.why = ""  # why no (further) graph will be made; empty while one may be
        self._work = work
        self._device = device
        self._generator = torch.cuda.default_generators[device.index or 0]
        self._seen: dict[int, int] = {}  # by hash, since batches may hold long strings
        self._graphs: dict[Any, _Graph] = {}
        self._doubted: set[Any] = set()  # kinds whose graph must be compared with the stage again

    @property
    def note(self) -> str:
        """Sentence that says whether there is a graph, and why not, or why not for all batches."""
        if not self._graphs:
            return f"runs as it is: {self.why or 'too few batches of one kind so far'}"
        kinds = "one kind" if len(self._graphs) == 1 else f"{len(self._graphs)} kinds"
        return "; ".join(filter(None, (f"captured in a CUDA graph for {kinds} of batch", self.why)))

    def begin(self) -> None:
        """Begin a new epoch, before which the stage may have changed."""
        self._doubted = set(self._graphs)

    def forget(self) -> None:
        """Drop the graphs, because the memory that they read has moved."""
        self._graphs.clear()
        self._seen.clear()
        self.why = ""

    def __call__(self, batch: Any) -> Any:
        if self.why and not self._graphs:
            return self._work(batch)
        try:
            kind = _kind(batch)
        except Refused as refused:
            self.why = str(refused)
            return self._work(batch)
        if kind in self._graphs:
            return self._again(batch, kind) if kind in self._doubted else self._graphs[kind](batch)
        if self.why or not self._often(kind):
            return self._work(batch)
        made, self.why = self._capture(batch, kind)
        if not self.why and len(self._graphs) == _MOST_KINDS:
            self.why = f"only the first {_MOST_KINDS} kinds of batch are captured"
        return made

    def _often(self, kind: Any) -> bool:
        if len(self._seen) == _COUNTED:
            self._seen.clear()
        self._seen[hash(kind)] = self._seen.get(hash(kind), 0) + 1
        return self._seen[hash(kind)] > _WARM

    def _again(self, batch: Any, kind: Any) -> Any:
        """Run the first batch of a kind in an epoch without its graph; if the graph gives another result, drop all
        graphs."""
        self._doubted.discard(kind)
        given = tree.clone(batch)
        draws = self._generator.get_state()
        made = self._work(batch)
        if not self._same(self._graphs[kind], given, made, draws):
            self.forget()
        return made

    def _capture(self, batch: Any, kind: Any) -> tuple[Any, str]:
        """Return the stage's result for the batch, and why its graph cannot be used, or an empty string if it can."""
        given = tree.clone(batch)
        draws, host_draws = self._generator.get_state(), randomness.state()
        made = self._work(batch)
        whose = randomness.moved(host_draws, randomness.state())
        if whose is not None:
            return made, f"it draws random numbers on the host ({whose}), which a graph would repeat"
        try:
            graph = _Graph(self._work, given, self._device)
        except Refused as refused:
            return made, str(refused)
        except UsageError:
            raise
        except Exception as error:  # it waits for the device, or does something else that a capture forbids
            return made, f"capturing it failed: {type(error).__name__}: {''.join(str(error).splitlines()[:1])}"
        if not self._same(graph, given, made, draws):
            return made, "its graph does not give what the stage gives: it depends on something besides its batch"
        self._graphs[kind] = graph
        torch.cuda.empty_cache()  # earlier runs took memory that no run needs any more
        return made, ""

    def _same(self, graph: _Graph, given: Any, made: Any, draws: Tensor) -> bool:
        """Return whether the graph gives the same result as the stage with the same random numbers; waits for the
        device."""
        after = self._generator.get_state()
        self._generator.set_state(draws)
        same = _equal(made, graph(given)) and torch.equal(self._generator.get_state(), after)
        self._generator.set_state(after)
        return same


class _Graph:
    """One captured run.

    Raises:
        Refused: the work writes into its batch, or a graph cannot reproduce its result.
    """

    def __init__(self, work: Work, batch: Any, device: torch.device) -> None:
        self._inputs = [tensor.clone() for tensor in tree.tensors(batch)]
        inputs = iter(self._inputs)
        static = tree.map_leaves(batch, lambda leaf: next(inputs) if isinstance(leaf, Tensor) else leaf)
        versions = tree.versions(self._inputs)
        self._graph, self._made = captured(lambda: work(static), device)
        if tree.versions(self._inputs) != versions:
            raise Refused("it writes into its batch")
        _kind(self._made)
        numbers = {id(tensor): number for number, tensor in enumerate(self._inputs)}
        #: For each tensor of the result, the index of the input that it is, or None if the graph makes it.
        self._handed_on = [numbers.get(id(tensor)) for tensor in tree.tensors(self._made)]

    def __call__(self, batch: Any) -> Any:
        given = list(tree.tensors(batch))
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


def _kind(batch: Any) -> Any:
    """Return a key that is equal for batches that run the same kernels on memory of the same layout.

    Raises:
        Refused: the batch holds an object that may change unnoticed.
    """
    modes = torch.is_grad_enabled(), torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    return modes, _form(batch)


def _form(obj: Any) -> Any:
    if isinstance(obj, Tensor):
        if obj.layout != torch.strided or obj.is_nested:
            raise Refused(f"a tensor of layout {obj.layout} cannot be copied into a graph")
        if not obj.is_cuda:
            raise Refused("there is a tensor that lies on the host")
        return type(obj), obj.shape, obj.dtype, obj.stride(), obj.device
    if isinstance(obj, _VALUES):
        return type(obj), obj
    if not tree.moves_itself(obj):
        if isinstance(obj, (tuple, list)):
            return type(obj), *map(_form, obj)
        if isinstance(obj, Mapping):
            return type(obj), *((key, _form(value)) for key, value in obj.items())
        if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
            return type(obj), *(_form(getattr(obj, field.name)) for field in dataclasses.fields(obj))
    raise Refused(f"there is an object ({label(obj)}) that may change unseen")


def _equal(one: Any, other: Any) -> bool:
    """Return whether two results are equal bit by bit; waits for the device."""
    here, there = list(tree.leaves(one)), list(tree.leaves(other))
    return len(here) == len(there) and all(map(_alike, here, there))


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return equal(one, other)
    return type(one) is type(other) and bool(one == other)
