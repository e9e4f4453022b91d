"""Train on tensors that lie in memory: the step is the model's own work, and the loader has nothing to do."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def network(gpu: bool) -> nn.Module:
    width, depth = (256, 12) if gpu else (24, 2)
    blocks = [layer for _ in range(depth) for layer in (nn.Conv2d(width, width, 3, padding=1), nn.ReLU())]
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    gpu = args.device == "cuda"
    torch.set_num_threads(1)
    batch, side = (64, 48) if gpu else (16, 48)
    data = TensorDataset(torch.rand(batch * 400, 3, side, side), torch.randint(10, (batch * 400,)))
    loader = DataLoader(data, batch, shuffle=True, num_workers=args.workers, pin_memory=gpu)
    model = network(gpu).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(1000):
        for images, labels in loader:
            images, labels = images.to(args.device), labels.to(args.device)
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
