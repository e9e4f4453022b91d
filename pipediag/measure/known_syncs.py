"""List the calls that are known to make the host wait for the device, with names and advice."""

from __future__ import annotations

import dis
import opcode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor

_KEEP = "Keep the value on the device, add it up there, and read it every N steps."
_DECIDE = "Decide on the device (torch.where, multiplying by a mask), or read the value every N steps."
_FETCH = (
    "Keep it on the device and fetch it every N steps, or copy it into pinned memory with non_blocking=True and read it"
    " a step later."
)
_PIN = (
    "Pin the tensor, contiguous as it is copied, before the copy (pin_memory=True in the loader): from pageable memory"
    " the host takes part in the copy, whatever non_blocking says."
)
_NO_BLOCK = "Copy from pinned memory (pin_memory=True in the loader) and pass non_blocking=True."
_MASK = (
    "Only the device knows how many elements a mask selects: use torch.where or multiply by the mask, which keep"
    " the shape."
)
_INDEX = (
    "Index with numbers, or with device tensors of one dimension or more: others are copied"
    " between host and device at every use."
)
_ONCE = "Build the tensor once, outside the loop, or fill one on the device (torch.full, torch.arange)."
_DROP = "Leave it out: work on one stream runs in order anyway, and another stream can wait with wait_stream()."
_EVENT = "Let the stream that needs the result wait instead (stream.wait_event), which does not block the host."
_SHAPE = "Only the device knows the size of the result: use an operation whose result has a fixed shape."
_LOG = "Print every N steps, and not the tensor of the step just launched."

#: Advice for whatever synchronizes inside these torch functions.
INSIDE = {
    "GradScaler.step": "Give the optimizer fused=True: it then reads the scaler's overflow flag on the device.",
    "Tensor.backward": (
        "An operation in the backward pass waits for the device, often the gradient of indexing by a mask;"
        " torch.autograd.set_detect_anomaly with torch.cuda.set_sync_debug_mode('error') names it."
    ),
}
#: Advice for a call that is not known by name.
UNKNOWN = "Check whether the host needs its result in every step."

#: The instruction that reads by an index; since Python 3.14 one of the binary operators.
_SUBSCRIPT, _BINARY = dis.opmap.get("BINARY_SUBSCR", -1), dis.opmap.get("BINARY_OP", -1)
_SUBSCRIPT_OF_BINARY = [*(name for name, _ in getattr(opcode, "_nb_ops", ())), "NB_SUBSCR"].index("NB_SUBSCR")

_Args = Sequence[Any]
_Kwargs = Mapping[str, Any]
_Found = tuple[str, str] | None


@dataclass(frozen=True)
class Suspect:
    """A function that sometimes synchronizes; torch warns if it does."""

    call: str  # its familiar name
    help: str  # advice
    waits: bool = False  # True if its only purpose is to wait; torch does not warn about all of these

    def found(self, args: _Args, kwargs: _Kwargs, result: Any, warned: bool) -> _Found:
        """Return name and advice for a call that synchronized, or None if it did not."""
        return (self.call, self.help) if warned or self.waits else None


class _Index(Suspect):
    """A function that reads or writes elements; those that a mask selects have to be counted first."""

    def found(self, args: _Args, kwargs: _Kwargs, result: Any, warned: bool) -> _Found:
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        if warned and any(isinstance(part, Tensor) and part.dtype in (torch.bool, torch.uint8) for part in index):
            return f"boolean {self.call}", _MASK
        return super().found(args, kwargs, result, warned)


@dataclass(frozen=True)
class _Copy(Suspect):
    """A copy between host and device, ``into`` a given tensor, which torch reports only if it was asked to block."""

    into: bool = False

    def found(self, args: _Args, kwargs: _Kwargs, result: Any, warned: bool) -> _Found:
        # What is copied into another tensor comes last.
        source = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)][-1 if self.into else 0]
        if warned:
            return self.call, _FETCH if source.is_cuda else _NO_BLOCK
        crosses = isinstance(result, Tensor) and {source.device.type, result.device.type} == {"cpu", "cuda"}
        if crosses and _staged(source, result):
            return self.call.replace("()", "(non_blocking=True) of pageable memory"), _PIN
        return None


def _staged(source: Tensor, target: Tensor) -> bool:
    """Return whether a copy that was asked not to block passes through pageable memory.

    The driver copies directly from and to page-locked memory only; other copies need the host, including those that
    torch first reorders on the host.
    """
    host, other = (target, source) if source.is_cuda else (source, target)
    try:
        return host.numel() > 0 and not (host.is_pinned() and _copied_unchanged(host, other))
    except RuntimeError:  # a tensor without its own memory, such as those a compiler traces with
        return False


def _copied_unchanged(host: Tensor, other: Tensor) -> bool:
    """Return whether the memory of ``host`` is copied unchanged; the device can change dtype or order."""
    if host.layout != torch.strided or host.shape != other.shape:
        return False
    alike = host.dtype == other.dtype and host.stride() == other.stride()
    return host.is_contiguous() or (alike and _dense(host))


def _dense(tensor: Tensor) -> bool:
    """Return whether the elements fill their memory without gaps or overlaps, in any order of the dimensions."""
    step = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


_METHODS = {
    "item": Suspect("item()", _KEEP),
    "tolist": Suspect("tolist()", _KEEP),
    "__float__": Suspect("float()", _KEEP),
    "__int__": Suspect("int()", _KEEP),
    "__index__": Suspect("use as an index", _KEEP),
    "__bool__": Suspect("bool()", _DECIDE),
    "cpu": Suspect("cpu()", _FETCH),
    "to": _Copy("to()", _NO_BLOCK),
    "cuda": _Copy("cuda()", _NO_BLOCK),
    "copy_": _Copy("copy_()", _NO_BLOCK, into=True),
    "__setitem__": _Index("assignment by index", _INDEX),
    "__repr__": Suspect("printing a tensor", _LOG),
    "__format__": Suspect("printing a tensor", _LOG),
}
_FUNCTIONS = {
    "tensor": Suspect("torch.tensor()", _ONCE),
    "as_tensor": Suspect("torch.as_tensor()", _ONCE),
}
_BOTH = {
    "equal": Suspect("equal()", _DECIDE),
    "allclose": Suspect("allclose()", _DECIDE),
    "nonzero": Suspect("nonzero()", _SHAPE),
    "argwhere": Suspect("argwhere()", _SHAPE),
    "masked_select": Suspect("masked_select()", _MASK),
    "unique": Suspect("unique()", _SHAPE),
    "unique_consecutive": Suspect("unique_consecutive()", _SHAPE),
}


def reading_by_index(frame: FrameType) -> _Found:
    """Return name and advice if the frame is just reading elements by an index.

    ``Tensor.__getitem__`` is no suspect: once it has been an attribute of that class, tensors count as sequences for
    good, and ``torch.as_tensor`` of a list of numbers in tensors fails.
    """
    code, place = frame.f_code.co_code, frame.f_lasti
    if code[place] == _SUBSCRIPT or (code[place] == _BINARY and code[place + 1] == _SUBSCRIPT_OF_BINARY):
        return "indexing", f"{_INDEX} {_MASK}"
    return None


def suspects() -> Iterator[tuple[Any, str, Suspect]]:
    """Yield every suspect: the module or class that has it as an attribute, the attribute's name, and the suspect."""
    for name, suspect in {**_METHODS, **_BOTH}.items():
        yield torch.Tensor, name, suspect
    for name, suspect in {**_FUNCTIONS, **_BOTH}.items():
        yield torch, name, suspect
    yield torch.cuda, "synchronize", Suspect("torch.cuda.synchronize()", _DROP, waits=True)
    yield torch.accelerator, "synchronize", Suspect("torch.accelerator.synchronize()", _DROP, waits=True)
    yield torch.cuda.Stream, "synchronize", Suspect("Stream.synchronize()", _DROP, waits=True)
    yield torch.cuda.Event, "synchronize", Suspect("Event.synchronize()", _EVENT, waits=True)
