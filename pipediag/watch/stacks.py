"""Say what a thread does from its stack: it trains, waits for data, makes it, or does something else.

A stack is read from its outermost call. The first call that is known decides: an iterator's ``__next__`` above a model
is data, a model's forward pass above a loader is training.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ..frames import in_package, is_users
from ..session import HotLine
from ..usercode.lines import described_line
from .sampling import Frame, Stack, Thread

#: What the loop's thread does.
DATA, START, TRAINS, OTHER = "data", "start", "trains", "other"
#: What a process that makes batches does.
LOADS, COLLATES, IDLE = "load", "collate", "idle"

_LOADER, _WORKER = "torch/utils/data/dataloader.py", "torch/utils/data/_utils/worker.py"
_FETCH, _COLLATE = "torch/utils/data/_utils/fetch.py", "torch/utils/data/_utils/collate.py"
_INSIDE = (_FETCH, _COLLATE)
#: Files and functions that only a training step runs, and those of a step that updates.
_STEP = re.compile(
    r"torch/(optim/|nn/|_tensor\.py|autograd/|amp/|cuda/amp/|_dynamo/|distributed/|func/|_functorch/)|deepspeed/|apex/"
)
_UPDATES = re.compile(r"torch/(optim/\w+\.py|_tensor\.py|autograd/__init__\.py|amp/grad_scaler\.py)$")
_UPDATING = re.compile(r"(^|\.)(step|backward|_?single_tensor_\w+|_multi_tensor_\w+|_fused_\w+)$")
#: Calls that wait for what another thread or process makes, by the end of the file and the function.
_TAKES = re.compile(
    r"(queue\.py:(\w+\.)?get|multiprocessing/queues\.py:(\w+\.)?get|multiprocessing/connection\.py:(\w+\.)?(recv\w*|poll)"
    r"|concurrent/futures/_base\.py:(\w+\.)?(result|result_iterator|as_completed|wait)"
    r"|multiprocessing/pool\.py:(\w+\.)?(next|__next__|get)|multiprocessing/managers\.py:(\w+\.)?_callmethod)$"
)
#: Innermost calls of a thread that does nothing.
_RESTS = re.compile(
    r"(threading\.py:(\w+\.)?(wait|_wait_for_tstate_lock|join|acquire)"
    r"|selectors\.py:(\w+\.)?select|multiprocessing/(queues|synchronize|popen_fork|connection)\.py:.*"
    r"|concurrent/futures/thread\.py:_worker|socket\.py:.*|queue\.py:.*)$"
)
#: Calls that copy a batch to the device.
_COPIES = re.compile(r"(^|\.)(send_to_device|move_data_to_device|batch_to_device|_batch_to_device|transfer_batch\w*)$")
#: Other Pythons' standard libraries: the process may run another one than this.
_STANDARD = re.compile(r".*/lib(64)?/python3\.\d+t?/(?!(site|dist)-packages/)|<frozen |<string>|<__array_function__")
_COMMAND = re.compile(r".*/bin/[^/.]+$")
#: Libraries that read, decode and change samples.
_MAKES = re.compile(
    r"(PIL|torchvision/(transforms|io|datasets)|albumentations|kornia/augmentation|imgaug|h5py|webdataset|datasets"
    r"|torchaudio|librosa|soundfile|torchcodec|decord|av|zarr|lmdb|pyarrow|tokenizers|nvidia/dali|torch/utils/data)/"
)
#: Frames that pass on: they name no work.
_PASSES = re.compile(r"torch/(utils/(data|_contextlib)|nn/modules/module\.py|nn/modules/container\.py)")
_COMPOSES = re.compile(r"(Compose\w*|Sequential|BaseCompose)\.")


class Reads(Protocol):
    """What is asked of a process's source; see :class:`.sources.Sources`."""

    def text(self, frame: Frame) -> str: ...
    def is_generator(self, frame: Frame) -> bool: ...


def users(frame: Frame) -> bool:
    """Return whether a frame is in the user's own file."""
    return is_users(frame.file) and not _STANDARD.match(frame.file) and not _COMMAND.match(frame.file)


def library(file: str) -> str:
    """Return a library's file relative to its package; the path itself for other files."""
    if named := in_package(file):
        return named
    standard = _STANDARD.match(file)
    return file[standard.end() :] if standard else file


def _known(frame: Frame) -> str:
    return f"{library(frame.file)}:{frame.name}"


def wrappers(stacks: Iterable[Stack]) -> set[tuple[str, str]]:
    """Return file and name of the functions that train: a backward pass or an optimizer's step runs below them."""
    found = set()
    for stack in stacks:
        for place, frame in enumerate(stack):
            if _UPDATES.search(frame.file) and _UPDATING.search(frame.name):
                found |= {(one.file, one.name) for one in stack[:place]}
                break
    return found


def updates(stack: Stack) -> bool:
    return any(_UPDATES.search(one.file) and _UPDATING.search(one.name) for one in stack)


@dataclass(frozen=True)
class Moment:
    """What the loop's thread does: ``at`` is the place on the stack of the call that decides, -1 if none does.

    ``waits`` is true if it waits there for another thread or process.
    """

    kind: str
    at: int = -1
    waits: bool = False

    @property
    def waiting(self) -> bool:
        """True if the loop spends this moment on its data."""
        return self.kind in (DATA, START)


def of_loop(stack: Stack, training: Collection[tuple[str, str]], source: Reads) -> Moment:
    """Return what the loop's thread does. ``training`` are the functions of :func:`wrappers`."""
    for place, frame in enumerate(stack):
        if (frame.file, frame.name) in training:
            continue
        name, file = frame.name.rpartition(".")[2], frame.file
        if file.endswith(_LOADER):
            kind = DATA if name == "__next__" else START
        elif _STEP.search(file):
            return Moment(TRAINS, place)
        elif _TAKES.search(_known(frame)) or _supplies(frame, name, stack[place - 1] if place else None, source):
            kind = DATA
        else:
            continue
        below = stack[place:]
        if any(_COPIES.search(one.name) for one in below):
            return Moment(OTHER, place)
        if any(one.file.endswith(_LOADER) and one.name.endswith(("__iter__", "_get_iterator")) for one in below):
            kind = START
        return Moment(kind, place, any(_TAKES.search(_known(one)) for one in below))
    return Moment(OTHER)


def _supplies(frame: Frame, name: str, caller: Frame | None, source: Reads) -> bool:
    """Return whether a call gives the loop its next item: an iterator's method, a generator, or reading a sample."""
    if _COMMAND.match(frame.file) or (caller is not None and caller.file.endswith("contextlib.py")):
        return False
    if name in ("__next__", "__getitem__") and (users(frame) or _MAKES.match(library(frame.file))):
        return True
    if _MAKES.match(library(frame.file)) or name == "__next__":
        return True
    return caller is not None and not _STANDARD.match(frame.file) and source.is_generator(frame)


def part_of_step(stack: Stack) -> int | None:
    """Return which part of a step runs, in order: drawing a batch, forward, backward, the update; None if none does."""
    for frame in stack:
        if frame.file.endswith(_LOADER):
            return 0
        if "torch/nn/modules/" in frame.file:
            return 1
        if _UPDATES.search(frame.file) and _UPDATING.search(frame.name):
            return 3 if "torch/optim/" in frame.file else 2
    return None


def is_worker(stack: Stack) -> bool:
    return any(frame.file.endswith(_WORKER) and frame.name == "_worker_loop" for frame in stack)


def of_worker(stack: Stack, source: Reads) -> Moment:
    """Return what a loader's worker does."""
    begun = next((n for n, one in enumerate(stack) if one.file.endswith(_WORKER) and one.name == "_worker_loop"), 0)
    for place in range(begun + 1, len(stack)):
        frame = stack[place]
        if frame.file.endswith(_COLLATE):
            return Moment(COLLATES, place)
        if frame.file.endswith(_FETCH) and (place + 1 == len(stack) or not stack[place + 1].file.endswith(_INSIDE)):
            collates = "collate_fn" in source.text(frame)
            return Moment(COLLATES if collates else LOADS, place)
    return Moment(IDLE)


def rests(stack: Stack) -> bool:
    """Return whether a thread waits for something to do."""
    return not stack or bool(_RESTS.search(_known(stack[-1])))


def loop_thread(threads: Sequence[Thread], pid: int) -> Thread | None:
    """Return the thread of a process that trains: the one most often in a step, else its main thread."""
    own = [one for one in threads if one.pid == pid and one.stacks]
    trains = {one.tid: sum(any(_STEP.search(f.file) for f in stack) for stack in one.stacks) for one in own}
    return max(own, key=lambda one: (trains[one.tid], one.tid == pid), default=None)


def producing(stack: Stack) -> bool:
    """Return whether a thread beside the loop, or a process that is no worker of torch's, makes data at this moment."""
    known = any(users(one) or _MAKES.match(library(one.file)) for one in stack)
    return known and not rests(stack) and not is_worker(stack)


def hot_lines(made: Sequence[tuple[Stack, str]], source: Reads) -> list[HotLine]:
    """Return the lines that stacks were seen at, with their share of them; ``made`` are the calls that make a batch.

    Each stack comes with its stage, ``load`` or ``collate``. A line is the innermost of the user's own. If none of them
    is the user's, it is the library's outermost call that does more than to pass on.
    """
    counts, calls = Counter[tuple[Frame, str, bool]](), dict[tuple[Frame, str, bool], Counter[str]]()
    for stack, stage in made:
        at = max((n for n, one in enumerate(stack) if users(one)), default=-1)
        own = at >= 0
        if not own:
            at = next((n for n, one in enumerate(stack) if _names(one)), len(stack) - 1)
        if at < 0:
            continue
        key = stack[at], stage, own
        counts[key] += 1
        inner = calls.setdefault(key, Counter())
        inner.update({_function(one) for one in stack[at + own :] if _function(one)})
    whole = sum(counts.values())
    lines = []
    for key, count in counts.most_common():
        (frame, stage, own), text = key, source.text(key[0])
        found = described_line(text, _plain(frame.name), f"{_shown(frame)}:{frame.line}")
        name = found.calls if own and found.calls else _plain(frame.name)
        order = {_function(one): n for stack, _ in made for n, one in enumerate(stack)}
        inside = sorted(calls[key].items(), key=lambda one: order.get(one[0], 0))
        lines.append(
            HotLine(
                found.where,
                text,
                round(count / whole, 4),
                name,
                found.function,
                stage,
                not own,
                {called: round(n / whole, 4) for called, n in inside},
            )
        )
    return _joined(lines)


def _names(frame: Frame) -> bool:
    """Return whether a library's call says what is done: it does not only pass samples through others."""
    file, last = library(frame.file), frame.name.rpartition(".")[2]
    passes = _PASSES.search(file) or _COMPOSES.search(frame.name) or _STANDARD.match(frame.file)
    return not passes and last not in ("__getitem__", "__getitems__", "__next__", "__iter__", "<module>")


def _joined(lines: list[HotLine]) -> list[HotLine]:
    """Return the lines of libraries with those of one function together, at the one that takes most."""
    kept: dict[tuple[str, str, str], HotLine] = {}
    for line in lines:
        key = (line.function, line.stage, line.where.rpartition(":")[0] if line.library else line.where)
        if key in kept:
            calls = dict(kept[key].calls)
            for name, share in line.calls.items():
                calls[name] = round(calls.get(name, 0.0) + share, 4)
            kept[key] = replace(kept[key], share=round(kept[key].share + line.share, 4), calls=calls)
        else:
            kept[key] = line
    return sorted(kept.values(), key=lambda line: line.share, reverse=True)


def _plain(name: str) -> str:
    """Return a function's name without the functions that it is defined in."""
    return name.rpartition("<locals>.")[2]


def _function(frame: Frame) -> str:
    """Return a library's function with its module: ``PIL.Image.Image.convert``; "" for the user's."""
    file = library(frame.file)
    if file == frame.file or file.startswith("<"):
        return ""
    module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return f"{module}.{_plain(frame.name)}"


def _shown(frame: Frame) -> str:
    return frame.file if users(frame) else library(frame.file)
