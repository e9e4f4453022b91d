"""Check on the CPU that every access to a device's memory is in order, with a ledger of reads, writes and lifetimes.

With an imagined device in place of ``torch.cuda`` (:mod:`imagined`), the CPU computes everything at once. The ledger
records the order that a GPU would have been *told* to keep: for every piece of memory the stream and time of its last
write and of the reads since, the streams that the allocator was told of, and the stream that owns it. Two things are
mistakes, whether or not they would have done harm on a GPU this time:

- work that reads what another stream wrote, or overwrites what another stream reads or writes, without being told to
  wait for it;
- memory that is freed before another stream's work on it has ended, without the allocator being told of that stream:
  its next owner would write into it.

It sees neither fused kernels, which do not run on the CPU, nor page-locked memory that is refilled too early.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from .imagined import Device, Stream, held_in_forks

_READ_BY_HOST = torch.ops.aten._local_scalar_dense.default
#: Module of the modes below, as they stand for the device: calls are not recorded under a mode of the user's.
_OURS = "pipediag.imagined"
#: Functions that take a device, but compute nothing on it.
_ABOUT_DEVICES = ("device", "_parse_to", "is_autocast_enabled", "get_autocast_dtype")


@dataclass
class _Access:
    stream: Stream
    time: int
    where: str


@dataclass
class _Memory:
    """One piece of memory of the device."""

    alive: StorageWeakRef
    home: Stream
    write: _Access
    of_graph: bool  # which keeps it as long as it may run
    reads: dict[int, _Access] = field(default_factory=dict)  # since the last write, the last of each stream
    told: set[int] = field(default_factory=set)


class Ledger:
    """All memory of an imagined device.

    Attributes:
        findings: the mistakes so far, as sentences.
    """

    def __init__(self, device: Device) -> None:
        self.findings: list[str] = []
        self._device = device
        self._memory: dict[int, _Memory] = {}
        self._lock = threading.RLock()
        held_in_forks(self._lock)
        self._capturing: set[int] = set()  # threads

    def take(self) -> list[str]:
        """Return the findings so far, each once, and forget them."""
        with self._lock:
            self.bury()
            found = list(dict.fromkeys(self.findings))
            self.findings.clear()
        return found

    def synchronize(self, device: Any = None) -> None:
        """Let the host wait for everything that has been launched."""
        with self._lock:
            self.bury()
            for memory in self._memory.values():
                for access in (memory.write, *memory.reads.values()):
                    access.stream.synchronize()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Record what this thread does inside the context."""
        with _Operations(self), _Devices(self):
            yield

    @contextmanager
    def captured_elsewhere(self) -> Iterator[None]:
        """Inside the context, another thread captures a graph."""
        self._capturing.add(0)
        try:
            yield
        finally:
            self._capturing.discard(0)

    # ---- what the modes record

    def holds(self, tensor: Any) -> bool:
        return isinstance(tensor, Tensor) and self._of(tensor) is not None

    def own(self, made: Any) -> None:
        """Record memory that the current stream has just allocated and written."""
        with self._lock:
            for tensor in _tensors(made):
                if self._of(tensor) is None:
                    stream = self._device.current_stream()
                    storage = tensor.untyped_storage()
                    access = _Access(stream, stream.work(), _where())
                    captured = threading.get_ident() in self._capturing
                    self._memory[storage._cdata] = _Memory(StorageWeakRef(storage), stream, access, captured)

    def disown(self, tensor: Tensor) -> Tensor:
        """Return a copy in host memory, for which the host has waited."""
        copied = tensor.clone()
        with self._lock:
            self._memory.pop(copied.untyped_storage()._cdata, None)
            self._device.current_stream().synchronize()
        return copied

    def tell(self, tensor: Tensor, stream: Stream) -> None:
        """Stand in for ``Tensor.record_stream``, which is lost while another thread captures a graph."""
        memory = self._of(tensor)
        if memory is not None and self._capturing <= {threading.get_ident()}:
            memory.told.add(stream.number)

    def use(self, reads: Iterable[Tensor], writes: Iterable[Tensor], what: str) -> None:
        """Record work on the current stream."""
        with self._lock:
            stream = self._device.current_stream()
            access = _Access(stream, stream.work(), f"{what} at {_where()}")
            for tensor in reads:
                memory = self._of(tensor)
                if memory is not None:
                    self._expect(access, [memory.write], "reads what is being written by")
                    memory.reads[stream.number] = access
            for tensor in writes:
                memory = self._of(tensor)
                if memory is not None:
                    self._expect(access, [memory.write, *memory.reads.values()], "writes what is in use by")
                    memory.write, memory.reads = access, {}

    def bury(self) -> None:
        """Check and forget the memory that has been freed since the last operation."""
        for key, memory in list(self._memory.items()):
            if memory.alive.expired():
                del self._memory[key]
                for access in (memory.write, *memory.reads.values()):
                    told = memory.of_graph or access.stream.number in memory.told
                    if not told and not memory.home.comes_after(access.stream, access.time):
                        self.findings.append(f"memory made at {memory.write.where} dies in use by {access.where}")

    def _expect(self, access: _Access, before: Iterable[_Access], what: str) -> None:
        for other in before:
            if not access.stream.comes_after(other.stream, other.time):
                self.findings.append(f"{access.where} {what} {other.where}")

    def _of(self, tensor: Tensor) -> _Memory | None:
        try:
            return self._memory.get(tensor.untyped_storage()._cdata)
        except (NotImplementedError, RuntimeError):  # a tensor made of several, or without memory
            return None


class _Operations(TorchDispatchMode):
    """Records every operation of one thread, with the arguments that it reads and writes."""

    __module__ = _OURS

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with self._ledger._lock:
            self._ledger.bury()
            given = list(zip(func._schema.arguments, args, strict=False))
            given += [(one, kwargs[one.name]) for one in func._schema.arguments[len(args) :] if one.name in kwargs]
            reads = [t for one, value in given if one.alias_info is None for t in _tensors(value)]
            views = [t for one, value in given if _views(one) for t in _tensors(value)]
            writes = [t for one, value in given if _writes(one) for t in _tensors(value)]
            on_device = any(map(self._ledger.holds, (*reads, *views, *writes)))
            if on_device and (reads or writes):
                self._ledger.use(reads, writes, str(func))
        made = func(*args, **kwargs)
        if func is _READ_BY_HOST and on_device:
            self._ledger._device.current_stream().synchronize()
        elif on_device:
            self._ledger.own(made)
        return made


class _Devices(TorchFunctionMode):
    """Computes on the CPU what the code requests on a GPU."""

    __module__ = _OURS

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if func is torch.device or name in _ABOUT_DEVICES:
            return func(*args, **kwargs)
        if name == "cpu":
            return self._ledger.disown(args[0])
        on_cpu = [_on_cpu(value) for value in args]
        named = {key: _on_cpu(value) for key, value in kwargs.items()}
        there = any(a is not b for a, b in zip((*args, *kwargs.values()), (*on_cpu, *named.values()), strict=True))
        if not there:
            return func(*args, **kwargs)
        made = func(*on_cpu, **named)
        if made is args[0] and isinstance(made, Tensor) and not self._ledger.holds(made):
            made = made.clone()  # a copy to another device
        self._ledger.own(made)
        return made


class _Graph:
    """Stand-in for a CUDA graph: repeats the operations of a run on the same memory."""

    ledger: Ledger

    def __init__(self) -> None:
        self._done: list[tuple[Any, Any, Any, Any]] = []

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "") -> None:
        self._draws = torch.get_rng_state()
        self._recording = _Recording(self._done)
        self._recording.__enter__()
        self.ledger._capturing.add(threading.get_ident())

    def capture_end(self) -> None:
        self.ledger._capturing.discard(threading.get_ident())
        self._recording.__exit__(None, None, None)
        torch.set_rng_state(self._draws)

    def replay(self) -> None:
        for func, args, kwargs, made in self._done:
            for old, new in zip(_tensors(made), _tensors(func(*args, **kwargs)), strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class _Recording(TorchDispatchMode):
    def __init__(self, done: list[tuple[Any, Any, Any, Any]]) -> None:
        super().__init__()
        self._done = done

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _READ_BY_HOST:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        made = func(*args, **(kwargs or {}))
        self._done.append((func, args, kwargs or {}, made))
        return made


def pretend(device: Device) -> Ledger:
    """Replace ``torch.cuda`` by an imagined device for the rest of this process, and watch all threads."""
    ledger = Ledger(device)
    _Graph.ledger = ledger
    names = {**device.names(), "CUDAGraph": _Graph, "synchronize": ledger.synchronize}
    for name, value in names.items():
        setattr(torch.cuda, name, value)
    torch.cuda.get_rng_state = lambda _=None: torch.get_rng_state()
    if hasattr(torch, "accelerator"):
        torch.accelerator.is_available = lambda: False  # what torch's loader asks before it locks pages
    torch.Tensor.is_cuda = property(ledger.holds)
    torch.Tensor.record_stream = lambda tensor, stream: ledger.tell(tensor, stream)
    torch.Tensor.pin_memory = lambda tensor, *_: tensor
    torch.Tensor.is_pinned = lambda tensor, *_: True
    native = threading.Thread.run

    def run(thread: threading.Thread) -> None:
        with ledger.watched():
            native(thread)

    threading.Thread.run = run  # type: ignore[method-assign, assignment]
    return ledger


def _on_cpu(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == "cuda" else value
    return "cpu" if isinstance(value, str) and value.split(":")[0] == "cuda" else value


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def _writes(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _views(argument: Any) -> bool:
    return argument.alias_info is not None and not argument.alias_info.is_write


def _where() -> str:
    """Return the running lines of pipediag and of the loop, innermost first."""
    lines: list[str] = []
    frame = sys._getframe(1)
    while frame is not None and len(lines) < 4:
        file = frame.f_code.co_filename
        if "/pipediag/" in file or file.endswith(("ordered.py", "mistakes.py")):
            lines.append(f"{file.rpartition('/')[2]}:{frame.f_lineno}")
        frame = frame.f_back  # type: ignore[assignment]
    return " < ".join(lines)
