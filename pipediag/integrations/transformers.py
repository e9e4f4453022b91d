"""A callback for the Trainer of Hugging Face: ``trainer.add_callback(DataMonitor(trainer))``."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from transformers import Trainer, TrainerCallback

from ..monitoring import monitored


class DataMonitor(TrainerCallback):  # type: ignore[misc]
    """Log how long the loop waits for data by ``trainer.log``, every ``every`` batches.

    The figures are those of :func:`pipediag.monitor`, of the main process's loop. Evaluation is left out.
    """

    def __init__(self, trainer: Trainer, every: int = 50) -> None:
        self._trainer, self._every = trainer, every
        self._running = ExitStack()

    def on_train_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **kwargs: Any) -> None:
        self._running.close()  # of a training that failed
        if not state.is_world_process_zero:
            return

        def log(figures: dict[str, float], steps: int) -> None:
            self._trainer.log(dict(figures))

        trains = getattr(train_dataloader, "base_dataloader", train_dataloader)  # accelerate's loaders hold torch's
        self._running.enter_context(monitored(lambda loader: loader is trains, log, self._every))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._running.close()
