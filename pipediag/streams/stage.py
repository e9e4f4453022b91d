"""Run one stage of a pipeline: work on a batch, on its own stream.

A stage runs ahead of the loop, so it must be frozen: no module in it may have state or weights that training changes.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.module import register_module_forward_pre_hook

from ..errors import UsageError
from ..usercode import tree
from ..usercode.places import label
from .graph import Graphed, Work
from .handover import Ready, hand_over, labelled

#: Number of batches during which a stage is checked for random draws.
_OBSERVED = 2


class Stage:
    """Work that does not depend on what the loop learns, so that it can run before the loop asks for it.

    Args:
        work: takes a batch and returns a batch, of any structure.
        device: where it runs; on the CPU it is called directly.
        graph: whether it may be captured in CUDA graphs.
    """

    def __init__(self, work: Work, device: torch.device, graph: bool) -> None:
        self.name = label(work)  # name of the callable
        self.draws = False  # True if it was seen to draw random numbers on the device
        self._device = device
        self._work = Frozen(work, self.name)
        self._runs = 0
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._graphed = Graphed(self._work, device) if graph and device.type == "cuda" else None

    @property
    def note(self) -> str:
        """Sentence that says whether it is captured in a graph, and if not, why."""
        return "runs as it is" if self._graphed is None else self._graphed.note

    def begin(self) -> None:
        """Begin a new epoch, with all changes made since the last one."""
        if self._stream is not None:  # for weights that the loop's stream has made or changed
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
        moved = self._work.begin()
        if self._graphed is not None:
            self._graphed.begin()
            if moved:
                self._graphed.forget()

    def launch(self, ready: Ready) -> Ready:
        """Return the batch after this stage; on a GPU its making has been launched."""
        self._work.check()
        with labelled(f"stage {self.name}"):
            if self._stream is None:
                return replace(ready, batch=self._work(ready.batch))
            with torch.cuda.stream(self._stream):
                batch = hand_over(ready, self._stream)
                return replace(ready, batch=self._launched(batch), event=self._stream.record_event())

    def _launched(self, batch: Any) -> Any:
        if self._runs == _OBSERVED:
            return self._work(batch) if self._graphed is None else self._graphed(batch)
        self._runs += 1
        before = torch.cuda.get_rng_state(self._device)
        made = self._work(batch)
        self.draws = self.draws or not torch.equal(before, torch.cuda.get_rng_state(self._device))
        return made


class Frozen:
    """Work of one stage, checked against the rules for stages. Its modules are found by watching its first run.

    Args:
        work: takes a batch and returns one.
        stage: its name.
    """

    def __init__(self, work: Callable[[Any], Any], stage: str) -> None:
        self._work = work
        self._stage = stage
        self._roots: list[nn.Module] = []
        self._names: dict[nn.Module, str] = {}
        self._by_mode: list[nn.Module] = []  # modules that behave differently in train mode
        self._weights: list[Tensor] = []
        self._versions: tuple[int, ...] = ()
        self._memory: list[int] = []
        self._known = False

    def begin(self) -> bool:
        """Begin a new epoch, before which weights may have changed. Return whether weights or buffers have moved in
        memory."""
        self._names = {part: name for root in self._roots for name, part in root.named_modules()}
        self._by_mode = [module for module in self._names if learns(module) or drops(module)]
        self._weights = [weight for module in self._names for weight in module.parameters(recurse=False)]
        self._versions = tree.versions(self._weights)
        buffers = [buffer for module in self._names for buffer in module.buffers(recurse=False)]
        memory = [tensor.data_ptr() for tensor in (*self._weights, *buffers)]
        changed, self._memory = memory != self._memory, memory
        return changed

    def check(self) -> None:
        """Raise if the loop has changed what the stage runs.

        Raises:
            UsageError: a module is in train mode now, or weights have changed since the epoch began.
        """
        for module in self._by_mode:
            self._refuse(module)
        if tree.versions(self._weights) != self._versions:
            raise UsageError(
                f"weights of the stage {self._stage} change while the loop runs: it would be a step behind them."
                " Leave it in the loop"
            )

    def __call__(self, batch: Any) -> Any:
        """Do the work.

        Raises:
            UsageError: a module is in train mode and uses batch statistics or random dropout, or the result requires a
                gradient.
        """
        if self._known:
            made = self._work(batch)
        else:
            with self._watching():
                made = self._work(batch)
        if any(tensor.requires_grad for tensor in tree.tensors(made)):
            raise UsageError(
                f"the stage {self._stage} gives tensors that require a gradient: it would run with weights that the"
                " loop has not updated yet. Freeze it (requires_grad_(False), or torch.no_grad() inside the stage),"
                " or leave it in the loop"
            )
        return made

    @contextmanager
    def _watching(self) -> Iterator[None]:
        """Find the modules that run inside the context."""
        thread = threading.get_ident()

        def about_to_run(module: nn.Module, args: Any) -> None:
            if threading.get_ident() != thread:
                return
            if module not in self._names:
                self._roots.append(module)
                self._names.update({part: name for name, part in module.named_modules() if part not in self._names})
            self._refuse(module)

        # Without torch.compile: global hooks would become part of the compiled code.
        with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Using `torch.compile")
            hook = register_module_forward_pre_hook(about_to_run)
            try:
                yield
            finally:
                hook.remove()
        self._known = True
        self.begin()

    def _refuse(self, module: nn.Module) -> None:
        if not module.training:
            return
        if learns(module):
            what = "learns the statistics of its batches"
        elif drops(module) and any(any(True for _ in part.parameters(recurse=False)) for part in self._names):
            what = "drops values at random"  # an augmentation has no weights, and is meant to draw at random
        else:
            return
        raise UsageError(
            f"{type(module).__name__} ({self._names[module] or 'itself'}) in the stage {self._stage} is in train mode"
            f" and {what}: a frozen stage gives the same for the same batch. Call .eval() on it before the loop, or"
            " leave the stage in the loop"
        )


def learns(module: nn.Module) -> bool:
    """Return whether a module updates running statistics in train mode."""
    return isinstance(module, _NormBase) and bool(module.track_running_stats)


def drops(module: nn.Module) -> bool:
    """Return whether a module draws random numbers in train mode."""
    if isinstance(module, _DropoutNd):
        return bool(module.p > 0)
    if isinstance(module, (nn.RNNBase, nn.MultiheadAttention)):
        return bool(module.dropout > 0)
    return isinstance(module, nn.RReLU)
