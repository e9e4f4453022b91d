"""Two processes train together under torchrun; rank 1 makes twice as much of its samples."""

import torch
import torch.distributed as dist
from pace import Pace, arguments, fed, make_sample, network, timed
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __init__(self, work: int) -> None:
        self.work = work

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return make_sample(index, self.work)


def main() -> None:
    args = arguments()
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(network())
    optimizer, pace = torch.optim.SGD(model.parameters(), 0.01), Pace()
    loader = DataLoader(Samples(args.work * (1 + dist.get_rank())), 16, num_workers=1)
    for begun, batch, got in timed(fed(loader, args.cached)):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        pace.step(got - begun)


if __name__ == "__main__":
    main()
