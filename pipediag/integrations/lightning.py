"""A callback for Lightning: ``Trainer(callbacks=[DataMonitor()])``."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ModuleNotFoundError:  # the older package of the same callbacks
    from pytorch_lightning import Callback, LightningModule, Trainer

from ..errors import UsageError
from ..monitoring import monitored


class DataMonitor(Callback):  # type: ignore[misc]
    """Log how long the loop waits for data to all loggers of the trainer, every ``every`` batches.

    The figures are those of :func:`pipediag.monitor`, of this process's loop. Validation is left out.
    """

    def __init__(self, every: int = 50) -> None:
        self._every = every
        self._running = ExitStack()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        def log(figures: dict[str, float], steps: int) -> None:
            for logger in trainer.loggers:
                logger.log_metrics(figures, step=trainer.global_step)

        try:
            self._running.enter_context(monitored(trainer.train_dataloader, log, self._every))
        except UsageError as error:
            from lightning_utilities.core.rank_zero import rank_zero_warn

            rank_zero_warn(f"pipediag monitors nothing: {error}")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._running.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: Any) -> None:
        self._running.close()
