"""Run one stage of a pipeline: work on a batch, on its own stream."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ..usercode.places import label
from .frozen import Frozen
from .graph import Graphed, Work
from .handover import Ready, hand_over
from .labels import labelled

#: Number of batches during which a stage is checked for random draws.
_OBSERVED = 2


class Stage:
    """Work that does not depend on what the loop learns, so that it can run before the loop asks for it.

    Args:
        work: takes a batch and returns a batch, of any structure.
        device: where it runs; on the CPU it is called directly.
        graph: whether it may be captured in CUDA graphs.

    Attributes:
        name: name of the callable.
        draws: True if it was seen to draw random numbers on the device.
    """

    def __init__(self, work: Work, device: torch.device, graph: bool) -> None:
        self.name = label(work)
        self.draws = False
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
        if self._runs < _OBSERVED:
            return self._observed(batch)
        return self._work(batch) if self._graphed is None else self._graphed(batch)

    def _observed(self, batch: Any) -> Any:
        self._runs += 1
        before = torch.cuda.get_rng_state(self._device)
        made = self._work(batch)
        self.draws = self.draws or not torch.equal(before, torch.cuda.get_rng_state(self._device))
        return made
