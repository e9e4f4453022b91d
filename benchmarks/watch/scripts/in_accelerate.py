"""accelerate prepares loader and model; the dataset's own method takes the time of the process that trains."""

import torch
from accelerate import Accelerator
from pace import Pace, arguments, fed, make_sample, network, timed
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __init__(self, work: int) -> None:
        self.work = work

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return make_sample(index, self.work)


def main() -> None:
    args, pace, helper = arguments(), Pace(), Accelerator(cpu=True)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    loader = DataLoader(Samples(args.work), 16, shuffle=True)
    model, optimizer, loader = helper.prepare(model, optimizer, loader)
    for begun, batch, got in timed(fed(loader, args.cached)):
        optimizer.zero_grad()
        helper.backward(model(batch).square().mean())
        optimizer.step()
        pace.step(got - begun)


if __name__ == "__main__":
    main()
