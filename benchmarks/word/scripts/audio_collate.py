"""Classify sounds whose spectra the collate function computes: the workers have them ready before the loop asks."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

RATE, WINDOW, HOP = 16_000, 512, 320


class Sounds(Dataset):
    def __init__(self) -> None:
        self.waves = np.random.default_rng(1).standard_normal((64, RATE)).astype(np.float32)

    def __len__(self) -> int:
        return 50_000

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return self.waves[index % 64][: RATE - 100 * (index % 40)], index % 10


def spectra(samples: list) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad the waves to one length, and return the logarithms of their spectra."""
    waves, labels = zip(*samples, strict=True)
    padded = np.zeros((len(waves), max(map(len, waves))), np.float32)
    for row, wave in zip(padded, waves, strict=True):
        row[: len(wave)] = wave
    frames = np.lib.stride_tricks.sliding_window_view(padded, WINDOW, axis=1)[:, ::HOP] * np.hanning(WINDOW)
    power = np.abs(np.fft.rfft(frames))[..., :80] ** 2
    return torch.from_numpy(np.log1p(power)).float(), torch.tensor(labels)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(80, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU())
        self.recur = nn.GRU(512, 256, batch_first=True)
        self.head = nn.Linear(256, 10)

    def forward(self, power: torch.Tensor) -> torch.Tensor:
        return self.head(self.recur(self.encode(power))[0][:, -1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    loader = DataLoader(Sounds(), 16, shuffle=True, num_workers=args.workers, collate_fn=spectra)
    model = Model().to(args.device)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(1000):
        for power, labels in loader:
            loss = nn.functional.cross_entropy(model(power.to(args.device)), labels.to(args.device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
