"""Say what a thread does from its stack: it trains, waits for data, makes it, or does something else.

A stack is read from its outermost call. The first call that is known decides: an iterator's ``__next__`` above a model
is data, a model's forward pass above a loader is training.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from ..frames import is_users
from ..session import HotLine
from ..usercode.lines import described_line, function_around
from .sampling import Frame, Stack, Thread
from .sources import STANDARD, Sources, library

#: What the loop's thread does.
DATA, START, TRAINS, OTHER = "data", "start", "trains", "other"
#: What a process that makes batches does.
LOADS, COLLATES, IDLE = "load", "collate", "idle"

_LOADER, _WORKER = "torch/utils/data/dataloader.py", "torch/utils/data/_utils/worker.py"
_FETCH, _COLLATE = "torch/utils/data/_utils/fetch.py", "torch/utils/data/_utils/collate.py"
#: What only a training step runs, and its backward pass and update: calls as ``file:function``, as in all that follow.
_STEP = re.compile(
    r"(.*/)?torch/(optim/|nn/|_tensor\.py|autograd/|amp/|cuda/amp/|_dynamo/|distributed/|func/|_functorch/)|deepspeed/|apex/"
)
_UPDATES = re.compile(
    r"(.*/)?torch/(optim/\w+|_tensor|autograd/__init__|amp/grad_scaler)\.py:(.*\.)?(step|backward|_?(single|multi)_tensor_\w+)$"
)
#: What makes and fills models and optimizers, before the loop or between its steps.
_SETS_UP = re.compile(
    r"(.*/)?torch/(nn|optim|distributed)/.*:(.*\.)?(__init__|to|cuda|half|bfloat16|_?apply|(load_)?state_dict)$"
    r"|(.*/)?torch/nn/init\.py:"
)
#: Python's own code that runs a module when it is imported.
_IMPORTS = "<frozen importlib"
#: Calls that wait for what another thread or process makes.
_TAKES = re.compile(
    r"(queue|multiprocessing/queues)\.py:(\w+\.)?get$|multiprocessing/connection\.py:(\w+\.)?(recv\w*|poll)$"
    r"|concurrent/futures/_base\.py:(\w+\.)?(result|result_iterator|as_completed|wait)$"
    r"|multiprocessing/pool\.py:(\w+\.)?(next|__next__|get)$|multiprocessing/managers\.py:(\w+\.)?_callmethod$"
)
#: Innermost calls of a thread that has nothing to do.
_RESTS = re.compile(
    r"threading\.py:(\w+\.)?(wait|_wait_for_tstate_lock|join|acquire)$|selectors\.py:(\w+\.)?select$"
    r"|multiprocessing/(queues|synchronize|popen_fork|connection)\.py:|concurrent/futures/thread\.py:_worker$"
    r"|(socket|queue)\.py:"
)
#: Functions of trainers that copy a batch to the device.
_COPIES = re.compile(r"(^|\.)(send_to_device|move_data_to_device|_?batch_to_device|transfer_batch\w*)$")
#: Installed commands.
_COMMAND = re.compile(r".*/bin/[^/.]+$")
#: Libraries that read, decode and change samples.
_MAKES = re.compile(
    r"(PIL|torchvision/(transforms|io|datasets)|albumentations|kornia/augmentation|imgaug|h5py|webdataset|datasets"
    r"|torchaudio|librosa|soundfile|torchcodec|decord|av|zarr|lmdb|pyarrow|tokenizers|nvidia/dali|torch/utils/data)/"
)
#: Calls of libraries that only pass samples on to others: they name no work.
_PASSES = re.compile(
    r"torch/(utils/(data|_contextlib)|nn/modules/(module|container)\.py)|:(.*\.)?__(getitems?|next|iter)__$|<module>$"
    r"|:(\w*Compose\w*|Sequential)\."
)


@dataclass(frozen=True)
class Moment:
    """What a thread does."""

    kind: str
    at: int = -1  # the place on the stack of the call that decides, -1 if none does
    waits: bool = False  # true if it waits there for another thread or process

    @property
    def waiting(self) -> bool:
        """True if the loop spends this moment on its data."""
        return self.kind in (DATA, START)


def users(frame: Frame) -> bool:
    return is_users(frame.file) and not STANDARD.match(frame.file) and not _COMMAND.match(frame.file)


def known(frame: Frame) -> str:
    return f"{library(frame.file)}:{frame.name}"


def wrappers(stacks: Iterable[Stack]) -> set[tuple[str, str]]:
    """Return file and name of the functions that train: a backward pass or an optimizer's step runs below them."""
    found = set()
    for stack in stacks:
        at = next((place for place, frame in enumerate(stack) if _UPDATES.match(known(frame))), 0)
        found |= {(frame.file, frame.name) for frame in stack[:at]}
    return found


def of_loop(stack: Stack, training: Collection[tuple[str, str]], source: Sources) -> Moment:
    """Return what the loop's thread does. ``training`` are the functions of :func:`wrappers`."""
    for place, frame in enumerate(stack):
        if (frame.file, frame.name) in training:
            continue
        caller = stack[place - 1] if place else None
        if _prepares(frame, caller):
            break
        if _STEP.match(known(frame)):
            return Moment(TRAINS, place)
        if not (frame.file.endswith(_LOADER) or _TAKES.match(known(frame)) or _supplies(frame, caller, source)):
            continue
        below = stack[place:]
        if any(_COPIES.search(one.name) for one in below):
            return Moment(OTHER, place)
        draws = [one.name.endswith("__next__") for one in below if one.file.endswith(_LOADER)]
        return Moment(DATA if any(draws) or not draws else START, place, any(_TAKES.match(known(one)) for one in below))
    return Moment(OTHER)


def part_of_loop(stack: Stack, moment: Moment) -> bool:
    """Return whether a moment shows a loop: a step, or an iterator of batches. Other code may read data before it."""
    at = stack[moment.at] if moment.waiting else None
    return moment.kind == TRAINS or (at is not None and (at.file.endswith(_LOADER) or at.name.endswith("__next__")))


def _prepares(frame: Frame, caller: Frame | None) -> bool:
    """Return whether a call imports a library, or makes or fills a model: no part of a step, whatever runs below."""
    imported = caller is not None and caller.file.startswith(_IMPORTS) and frame.name == "<module>"
    return bool(_SETS_UP.match(known(frame))) or (imported and not users(frame))


def _trains(stack: Stack) -> bool:
    """Return whether a training step runs on a stack, also above or below a loader."""
    for caller, frame in zip((None, *stack), stack, strict=False):
        if _prepares(frame, caller):
            return False
        if _STEP.match(known(frame)):
            return True
    return False


def _supplies(frame: Frame, caller: Frame | None, source: Sources) -> bool:
    """Return whether a call gives the loop its next item: an iterator's method, a generator, or reading a sample."""
    if _COMMAND.match(frame.file) or (caller is not None and caller.file.endswith("contextlib.py")):
        return False
    name = frame.name.rpartition(".")[2]
    if name == "__next__" or _MAKES.match(library(frame.file)) or (name == "__getitem__" and users(frame)):
        return True
    return caller is not None and not STANDARD.match(frame.file) and source.is_generator(frame)


def part_of_step(stack: Stack) -> int | None:
    """Return which part of a step runs, in order: drawing a batch, forward, backward, the update; None if none does."""
    for frame in stack:
        if frame.file.endswith(_LOADER):
            return 0
        if "torch/nn/modules/" in frame.file:
            return 1
        if _UPDATES.match(known(frame)):
            return 3 if "torch/optim/" in frame.file else 2
    return None


def is_worker(stack: Stack) -> bool:
    return any(frame.file.endswith(_WORKER) and frame.name == "_worker_loop" for frame in stack)


def of_worker(stack: Stack, source: Sources) -> Moment:
    """Return what a loader's worker does, or torch's loader in the process that trains."""
    for place, frame in enumerate(stack):
        if frame.file.endswith(_COLLATE):
            return Moment(COLLATES, place)
        deeper = stack[place + 1 :]
        if frame.file.endswith(_FETCH) and not (deeper and deeper[0].file.endswith((_FETCH, _COLLATE))):
            return Moment(COLLATES if "collate_fn" in source.text(frame) else LOADS, place)
    return Moment(IDLE)


def loop_thread(threads: Sequence[Thread], pid: int) -> Thread | None:
    """Return the thread of a process that trains: the one most often in a step, else its main thread.

    A loop that waits all the time is hardly ever seen in a step: if the main thread only waits, as for another one or
    in an event loop, it is the thread most often in a loader.
    """
    own = [one for one in threads if one.pid == pid and one.stacks]
    rests = all(_RESTS.match(known(stack[-1])) for one in own if one.tid == pid for stack in one.stacks if stack)

    def seen(thread: Thread) -> tuple[int, int, bool]:
        trains = sum(map(_trains, thread.stacks))
        draws = rests * sum(any(frame.file.endswith(_LOADER) for frame in stack) for stack in thread.stacks)
        return trains, draws, thread.tid == pid

    return max(own, key=seen, default=None)


def producing(stack: Stack) -> bool:
    """Return whether a thread beside the loop, or a process that is no worker of torch's, makes data at this moment."""
    makes = any(users(one) or _MAKES.match(library(one.file)) for one in stack)
    return makes and not _RESTS.match(known(stack[-1])) and not is_worker(stack)


def hot_lines(made: Sequence[tuple[Stack, str]], source: Sources) -> list[HotLine]:
    """Return the lines that stacks were seen at, with their share of them, most first.

    ``made`` are the calls that make a batch, each with its stage. A line is the innermost of the user's own. If none of
    them is the user's, a library's function stands for them: the outermost that does more than to pass on.
    """
    seen: dict[tuple[str, str, str, int], Counter[Frame]] = {}
    calls: dict[tuple[str, str, str, int], Counter[str]] = {}
    for stack, stage in made:
        own = max((place for place, one in enumerate(stack) if users(one)), default=-1)
        does = (
            place for place, one in enumerate(stack) if not _PASSES.search(known(one)) and not STANDARD.match(one.file)
        )
        at = own if own >= 0 else next(does, len(stack) - 1)
        if at >= 0:
            frame = stack[at]
            key = (stage, frame.file, function_around(frame.name), frame.line if own >= 0 else 0)
            seen.setdefault(key, Counter())[frame] += 1
            inner = dict.fromkeys(map(_function, stack[at + 1 if own >= 0 else at :]))
            calls.setdefault(key, Counter()).update(name for name in inner if name)
    lines, whole = [], sum(counts.total() for counts in seen.values())
    for key, counts in sorted(seen.items(), key=lambda one: one[1].total(), reverse=True):
        stage, own, ((frame, _),) = key[0], key[3] > 0, counts.most_common(1)
        text, function = source.text(frame), key[2]
        found = described_line(text, function, source.where(frame))
        name = found.calls if own and found.calls else function
        inside = {one: round(count / whole, 4) for one, count in calls[key].items()}
        share = round(counts.total() / whole, 4)
        lines.append(HotLine(found.where, text, share, name, function, stage, not own, inside))
    return lines


def _function(frame: Frame) -> str:
    """Return a library's function with its module: ``PIL.Image.Image.convert``; "" for the user's."""
    file = library(frame.file)
    if file == frame.file or file.startswith("<"):
        return ""
    module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return f"{module}.{frame.name.rpartition('<locals>.')[2]}"
