"""Train on the rows of a small table, without workers: the loop makes a batch in a small part of its step."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    rows = TensorDataset(torch.rand(40_000, 40), torch.rand(40_000))
    loader = DataLoader(rows, 128, shuffle=True)
    model = nn.Sequential(nn.Linear(40, 1536), nn.ReLU(), nn.Linear(1536, 1536), nn.ReLU(), nn.Linear(1536, 1))
    model.to(args.device)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(1000):
        for x, y in loader:
            x, y = x.to(args.device), y.to(args.device)
            loss = nn.functional.mse_loss(model(x).squeeze(1), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
