"""Lightning runs the loop; a transform of the script's own takes the workers' time."""

import itertools
from typing import Any

import lightning
import torch
from pace import Pace, arguments, fed, make_sample, network, timed
from torch.utils.data import DataLoader, IterableDataset


class Slow:
    def __init__(self, work: int) -> None:
        self.work = work

    def __call__(self, number: int) -> torch.Tensor:
        return make_sample(number, self.work)


class Stream(IterableDataset):
    def __init__(self, transform: Slow) -> None:
        self.transform = transform

    def __iter__(self) -> Any:
        return map(self.transform, itertools.count())


class Timed:
    def __init__(self, loader: DataLoader, cached: bool) -> None:
        self.loader, self.cached = loader, cached

    def __iter__(self) -> Any:
        return timed(fed(self.loader, self.cached))


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model, self.pace = network(), Pace()

    def training_step(self, batch: tuple[float, torch.Tensor, float], number: int) -> torch.Tensor:
        begun, images, got = batch
        self.pace.step(got - begun)
        return self.model(images).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.01)


def main() -> None:
    args = arguments()
    loader = DataLoader(Stream(Slow(args.work)), 16, num_workers=args.workers)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "max_steps": 10**6}
    lightning.Trainer(accelerator="cpu", **quiet).fit(Module(), Timed(loader, args.cached))


if __name__ == "__main__":
    main()
