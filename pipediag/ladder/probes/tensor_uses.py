"""Find how the training loop uses each tensor of a batch: how it is copied, and in which dtype it is read, if at all.

A dispatch mode sees every torch operation, including the backward pass. It is enabled for a few steps outside the timed
windows. It does not see what compiled code does with a tensor, so nothing is watched if any code is compiled.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from ...patches import hooked
from ...session import BatchFacts, Leaf
from ...usercode import tree
from ..loop_side import LoopSide, Turn
from .batchfacts import is_pinned, leaves_of, path_text

#: Batches handed out under watch, and those of them that are judged: a loop may read a batch some steps later.
WATCHED, _JUDGED = 4, 2
#: Operations that return a tensor with the same memory, or inspect it, without reading it.
_NO_READS = frozenset({"detach", "alias", "record_stream", "is_pinned", "is_same_size", "lift_fresh"})
_PINNING = frozenset({"pin_memory", "_pin_memory"})


@dataclass
class _Use:
    copied: bool = False
    non_blocking: bool = True
    arrives: str = ""
    read: bool = False
    turned_into: set[str] = field(default_factory=set)  # dtypes it was first converted to; "" for being read as it is
    copies: list[StorageWeakRef] = field(default_factory=list)

    @property
    def gone(self) -> bool:
        """True if no reference to the copies on the device is left."""
        return all(copy.expired() for copy in self.copies)


class Uses(TorchDispatchMode):  # type: ignore[misc]
    """A dispatch mode that follows the tensors of batches to the device and records what reads them there."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.autocast = ""  # the dtype of autocast when a module was called, or "" if it was off
        self.trouble = ""  # why the use of the batches is unknown, or ""
        self._device = device
        self._casts = torch.amp.is_autocast_available(device.type)
        self._uses: list[dict[str, _Use]] = []
        self._hosts: dict[int, tuple[_Use, StorageWeakRef]] = {}
        self._copies: dict[int, _Use] = {}
        self._listening = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch within the context. Code still running in another thread at its end is no longer recorded."""
        with _switched_on(self), hooked(register_module_forward_pre_hook(self._called)):
            self._listening = True
            try:
                yield
            finally:
                self._listening = False

    def follow(self, batch: Any) -> None:
        uses: dict[str, _Use] = {}
        for path, tensor in leaves_of(batch):
            ref = _storage(tensor)
            if ref is not None and tensor.device.type == "cpu":
                uses[path_text(path)] = use = _Use()
                self._hosts[ref.cdata] = use, ref
        self._uses.append(uses)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        result = func(*args, **kwargs)
        if self._listening:
            try:
                self._note(func, [*args, *kwargs.values()], kwargs, result)
            except Exception as error:  # the loop must continue, whatever a custom tensor type raises
                self._listening, self.trouble = False, f"{func} could not be followed ({type(error).__name__}: {error})"
        return result

    def _called(self, module: torch.nn.Module, args: Any) -> None:
        """Note autocast before a module runs; operations are dispatched after autocast has been applied."""
        if self._casts and not self.autocast and torch.is_autocast_enabled(self._device.type):
            self.autocast = str(torch.get_autocast_dtype(self._device.type)).removeprefix("torch.")

    def _note(self, func: Any, given: list[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        name = func.overloadpacket.__name__
        results = list(tree.tensors(result))
        for tensor in tree.tensors(given):
            ref = _storage(tensor)
            if ref is None:
                continue
            if ref.cdata in self._hosts:
                self._note_host(name, self._hosts[ref.cdata][0], tensor, given, kwargs, results)
            elif ref.cdata in self._copies:
                self._note_device(func, name, self._copies[ref.cdata], results)

    def _note_host(
        self,
        name: str,
        use: _Use,
        tensor: Tensor,
        given: list[Any],
        kwargs: Mapping[str, Any],
        results: list[Tensor],
    ) -> None:
        """Record an operation on a host tensor; follow its copies to the device and its pinned copies."""
        for result in results:
            ref = _storage(result)
            if ref is None:
                continue
            if result.device.type == self._device.type:
                use.copied = True
                asked = bool(kwargs.get("non_blocking")) or (name == "copy_" and any(v is True for v in given))
                use.non_blocking = use.non_blocking and asked and is_pinned(tensor)
                use.arrives = str(result.dtype).removeprefix("torch.")
                use.copies.append(ref)
                self._copies[ref.cdata] = use
            elif name in _PINNING:
                self._hosts[ref.cdata] = use, ref

    def _note_device(self, func: Any, name: str, use: _Use, results: list[Tensor]) -> None:
        if name in _NO_READS or getattr(func, "is_view", False):
            return
        use.read = True
        turned = name == "_to_copy" and bool(results) and results[0].device.type == self._device.type
        use.turned_into.add(str(results[0].dtype).removeprefix("torch.") if turned else "")

    def describe(self, leaves: Sequence[Leaf]) -> None:
        """Write the observations into the description of each tensor."""
        judged = self._uses[:_JUDGED]
        for leaf in leaves:
            uses = [uses[leaf.path] for uses in judged if leaf.path in uses]
            if not uses or len(uses) < len(judged):
                continue
            leaf.copied = all(use.copied for use in uses)
            if not leaf.copied:
                continue
            leaf.non_blocking = all(use.non_blocking for use in uses)
            leaf.arrives = uses[0].arrives
            # A copy that is still referenced may yet be read; one released without a read never is.
            leaf.read = True if any(use.read for use in uses) else False if all(use.gone for use in uses) else None
            turned = set().union(*(use.turned_into for use in uses))
            leaf.turned_into = next(iter(turned)) if len(turned) == 1 and "" not in turned else None


def _storage(tensor: Tensor) -> StorageWeakRef | None:
    """Return a weak reference to the tensor's storage, or None if it has none of its own."""
    if tensor.layout != torch.strided:
        return None
    try:
        return StorageWeakRef(tensor.untyped_storage())
    except (RuntimeError, NotImplementedError):
        return None


def why_unwatched() -> str:
    """Return why a step cannot be watched, or ""."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    graphs = dynamo.counters["stats"].get("unique_graphs", 0) if dynamo is not None else 0
    return "parts of the script are compiled, and compiled code does not show what it reads" if graphs else ""


def watch_uses(loop_side: LoopSide, facts: BatchFacts) -> Turn[None]:
    """Hand the loop copies of some cached host batches, and complete ``facts`` with how it used them."""
    facts.unwatched = why_unwatched()
    if facts.unwatched:
        return
    cache, uses = loop_side.cache("host"), Uses(loop_side.device.torch_device)
    for number in range(WATCHED):
        batch = tree.clone_pinned(cache.at(number))
        uses.follow(batch)
        with uses.watching():
            yield from loop_side.hand(batch)
        del batch
    facts.unwatched = uses.trouble
    if not uses.trouble:
        uses.describe(facts.leaves)
        facts.autocast = uses.autocast


@contextmanager
def _switched_on(mode: TorchDispatchMode) -> Iterator[None]:
    """Enable the mode within the context.

    The context may end in another thread, or under a mode that the code inside has left enabled. The mode then stays
    enabled and has to ignore operations itself.
    """
    thread = threading.get_ident()
    mode.__enter__()
    try:
        yield
    finally:
        if threading.get_ident() == thread and _get_current_dispatch_mode() is mode:
            mode.__exit__(None, None, None)
