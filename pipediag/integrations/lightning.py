"""A callback for Lightning: ``Trainer(callbacks=[DataMonitor()])``."""

from __future__ import annotations

from contextlib import ExitStack

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ModuleNotFoundError:  # the older package of the same callbacks
    from pytorch_lightning import Callback, LightningModule, Trainer

from ..monitoring import monitored


class DataMonitor(Callback):  # type: ignore[misc]
    """Log how long the loop waits for data to all loggers of the trainer, every ``every`` batches.

    The figures are those of :func:`pipediag.monitor`, of this process's loop and of the first of several training
    loaders. Validation is left out.
    """

    def __init__(self, every: int = 50) -> None:
        self._every = every
        self._running = ExitStack()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        def log(figures: dict[str, float], steps: int) -> None:
            for logger in trainer.loggers:
                logger.log_metrics(figures, step=trainer.global_step)

        if stage == "fit":
            self._running.enter_context(monitored(lambda loader: trainer.training, log, self._every))

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._running.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._running.close()
