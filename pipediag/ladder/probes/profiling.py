"""Record a few steps on device-resident batches with torch's profiler, to analyze the model's side of a step.

These steps are outside every timed window, because recording slows them down.
"""

from __future__ import annotations

import gc
import sys
import tempfile
import threading
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.autograd import profiler as autograd_profiler
from torch.autograd.profiler import record_function
from torch.autograd.profiler_util import FunctionEvent
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.profiler import ProfilerActivity, profile, schedule

from ...analysis.numbers.profile import Path as ModulePath
from ...analysis.numbers.profile import Piece, heaviest, heaviest_modules
from ...patches import hooked
from ...report.files import write_whole
from ...session import Profile
from ...usercode.holders import call_site
from ..loop_side import LoopSide, Turn
from .tensor_uses import why_unwatched

#: Unrecorded steps while the profiler warms up, and recorded steps.
WARM_UP, STEPS = 3, 5
#: Maximum number of recordings if epochs end within them; the last one is kept anyway.
_TRIES = 3
_MICROSECONDS = 1000.0
_ACTIVITIES = {"cuda": ProfilerActivity.CUDA, "xpu": ProfilerActivity.XPU}
#: Prefix of a backward step's name in a recording.
_BACKWARD = "autograd::engine::evaluate_function: "
#: Our own profilers that are still alive.
_ours: weakref.WeakSet[profile] = weakref.WeakSet()


def why_unrecorded() -> str:
    """Return why nothing can be recorded, or "". A process can have only one profiler at a time."""
    others = (one for one in gc.get_objects() if issubclass(type(one), profile) and one not in _ours)
    if autograd_profiler._is_profiler_enabled or next(others, None) is not None:
        return "the script uses torch's profiler itself, and only one can record at a time"
    return ""


def profile_steps(loop_side: LoopSide, step_ms: float, file: str) -> Turn[Profile]:
    """Record steps on batches cached on the device, write the trace to ``file``, and return their breakdown.

    ``step_ms`` is the duration of an unrecorded step. The profiler is stopped in every case.
    """
    why_not = why_unrecorded()
    if why_not:
        return Profile(why_not=why_not)
    for attempt in range(_TRIES):
        if loop_side.epochs.complete:  # the loop's work between two epochs is not part of a step
            yield from loop_side.hand(loop_side.cache("device").next())
        recording = _Recording(loop_side)
        try:
            whole = yield from recording.run()
        except RuntimeError as error:
            return Profile(why_not=f"torch's profiler failed: {error}")
        if whole or attempt + 1 == _TRIES:
            break
    return recording.summary(step_ms, file)


class _Recording:
    """One recording, which always undoes its own changes."""

    def __init__(self, loop_side: LoopSide) -> None:
        kind = loop_side.device.torch_device.type
        self._loop_side = loop_side
        self._device = loop_side.device
        self._clock = loop_side.clock
        self._labels = Labels()
        self._activities = {ProfilerActivity.CPU, *filter(None, [_ACTIVITIES.get(kind)])}
        self._profiler: profile
        self._ms = 0.0

    def run(self) -> Turn[bool]:
        """Record the steps; return whether all of them were in one epoch."""
        cache = self._loop_side.cache("device")
        whole, begun = True, 0.0
        with ExitStack() as stack:
            if not why_unwatched():  # compiled code has no modules any more
                stack.enter_context(self._labels.on())
            self._profiler = profile(
                activities=self._activities, schedule=schedule(wait=0, warmup=WARM_UP, active=STEPS, repeat=1)
            )
            _ours.add(self._profiler)
            stack.callback(self._profiler.stop)
            self._profiler.start()
            for number in range(WARM_UP + STEPS):
                if number == WARM_UP:
                    self._device.synchronize()
                    self._labels.counting, begun = True, self._clock.now()
                back = yield from self._loop_side.hand(cache.next())
                whole = whole and (back or number < WARM_UP)
                if number == WARM_UP + STEPS - 1:
                    self._device.synchronize()
                    self._ms = 1000 * (self._clock.now() - begun) / STEPS
                self._profiler.step()
        return whole

    def summary(self, step_ms: float, file: str) -> Profile:
        on_cpu = self._device.is_cpu
        try:
            with tempfile.TemporaryDirectory() as folder:  # torch leaves a part of a file that it cannot write
                whole = Path(folder, "trace.json")
                self._profiler.export_chrome_trace(str(whole))
                write_whole(file, whole.read_bytes())
        except (OSError, RuntimeError) as error:
            return Profile(why_not=f"{file} could not be written ({getattr(error, 'strerror', None) or error})")
        events = list(self._profiler.events() or [])
        pieces = operators(events, on_cpu)
        kernels = [] if on_cpu else kernels_of(events)
        busy = sum(piece.ms for piece in pieces) if on_cpu else busy_ms(events)
        return Profile(
            trace=file,
            steps=STEPS,
            step_ms=self._ms if on_cpu else step_ms,
            busy_ms=busy / STEPS,
            operators=heaviest(pieces, STEPS),
            kernels=heaviest(kernels, STEPS),
            modules=heaviest_modules(pieces, self._labels.calls, STEPS),
        )


def operators(events: Sequence[FunctionEvent], on_cpu: bool) -> list[Piece]:
    """Return every operator with its own device time; on the CPU without that of the operators it called.

    A backward step belongs to the module whose forward call created it: autograd gives both the same sequence number.
    """
    made: dict[int, ModulePath] = {}
    for event in sorted(events, key=lambda one: one.time_range.start):
        if event.sequence_nr >= 0 and not event.name.startswith(_BACKWARD) and not _backward_around(event):
            made[event.sequence_nr] = _module_around(event)  # of several, the last one has created the backward step
    pieces = []
    for event in events:
        times = _own_times(event, on_cpu)
        if not times:
            continue
        backward = _backward_around(event)
        module = _module_around(event) or (made.get(backward.sequence_nr, ()) if backward is not None else ())
        pieces += [Piece(_short(name), microseconds / _MICROSECONDS, module) for name, microseconds in times]
    return pieces


def _own_times(event: FunctionEvent, on_cpu: bool) -> list[tuple[str, float]]:
    """Return names and microseconds of an event's own device time."""
    if event.device_type != torch.autograd.DeviceType.CPU or event.is_async:
        return []
    if event.is_user_annotation:  # kernels not launched by an operator go by their own names
        return [] if on_cpu else [(kernel.name, kernel.duration) for kernel in event.kernels]
    microseconds = event.self_cpu_time_total if on_cpu else sum(kernel.duration for kernel in event.kernels)
    return [(event.name, microseconds)] if microseconds > 0 else []


def kernels_of(events: Iterable[FunctionEvent]) -> list[Piece]:
    return [Piece(one.name, one.time_range.elapsed_us() / _MICROSECONDS) for one in events if _on_device(one)]


def busy_ms(events: Iterable[FunctionEvent]) -> float:
    """Return the milliseconds in which anything ran on the device, on one stream or several."""
    spans = sorted((one.time_range.start, one.time_range.end) for one in events if _on_device(one))
    total, reached = 0.0, float("-inf")
    for start, end in spans:
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total / _MICROSECONDS


def _on_device(event: FunctionEvent) -> bool:
    return event.device_type != torch.autograd.DeviceType.CPU and not event.is_user_annotation


def _module_around(event: FunctionEvent | None) -> ModulePath:
    while event is not None:
        path = path_in(event.name)
        if path:
            return path
        event = event.cpu_parent
    return ()


def _backward_around(event: FunctionEvent | None) -> FunctionEvent | None:
    while event is not None and not event.name.startswith(_BACKWARD):
        event = event.cpu_parent
    return event


def _short(name: str) -> str:
    return sys.intern(name.removeprefix(_BACKWARD).removeprefix("aten::"))


_PREFIX, _BETWEEN = "module: ", " > "


def path_in(label: str) -> ModulePath:
    """Return the module path of a label, or () if the label is not ours."""
    return tuple(label[len(_PREFIX) :].split(_BETWEEN)) if label.startswith(_PREFIX) else ()


class Labels:
    """Labels around every call of a module."""

    def __init__(self) -> None:
        self.calls: Counter[ModulePath] = Counter()  # number of calls of each module while :attr:`counting`
        self.counting = False
        self._paths: dict[int, tuple[nn.Module, ModulePath]] = {}
        self._open = _Open()

    @contextmanager
    def on(self) -> Iterator[None]:
        """Label every module of the process within the context."""
        with (
            hooked(register_module_forward_pre_hook(self._begin)),
            hooked(register_module_forward_hook(self._end, always_call=True)),
        ):
            yield

    def _begin(self, module: nn.Module, args: Any) -> None:
        stack = self._open.stack
        if id(module) not in self._paths:
            self._name(module, stack[-1][1] if stack else ())
        path = self._paths[id(module)][1]
        self.calls[path] += self.counting
        label = record_function(_PREFIX + _BETWEEN.join(path))
        label.__enter__()
        stack.append((module, path, label))

    def _end(self, module: nn.Module, args: Any, result: Any) -> None:
        stack = self._open.stack
        if stack and stack[-1][0] is module:
            stack.pop()[2].__exit__(None, None, None)

    def _name(self, root: nn.Module, around: ModulePath) -> None:
        """Name a module that is called for the first time, and its submodules."""
        whole = (*around, call_site(root)[0])
        self._paths[id(root)] = root, whole
        try:
            for path, part in root.named_modules():
                self._paths.setdefault(id(part), (part, (*whole, *filter(None, path.split(".")))))
        except Exception:  # a module that raises here must not stop the loop
            return


class _Open(threading.local):
    def __init__(self) -> None:
        self.stack: list[tuple[nn.Module, ModulePath, record_function]] = []
