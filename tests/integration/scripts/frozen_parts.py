"""Trains a head on an encoder that is not trained, or trains all of it."""

import argparse
import contextlib
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--form", choices=["separate", "inside", "trained"], default="separate")
parser.add_argument("--own-profiler", action="store_true")
parser.add_argument("--batches", type=int, default=1000, help="in an epoch")
parser.add_argument("--epochs", type=int, default=100_000)
parser.add_argument("--mark", help="a file to be written at once")
args = parser.parse_args()
if args.mark:
    with open(args.mark, "w") as file:
        file.write("ran")


class Images(Dataset):
    def __len__(self):
        return 8 * args.batches

    def __getitem__(self, index):
        time.sleep(0.0005)
        return torch.full((3, 16, 16), index % 255, dtype=torch.uint8), index % 4


torch.manual_seed(0)
loader = DataLoader(Images(), batch_size=8)
encoder = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
head = nn.Sequential(nn.Conv2d(8, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
if args.form != "trained":
    encoder.eval().requires_grad_(False)
model = nn.Sequential(encoder, head)
optimizer = torch.optim.SGD(head.parameters(), lr=0.01)
activities = [torch.profiler.ProfilerActivity.CPU]
profiler = torch.profiler.profile(activities=activities) if args.own_profiler else contextlib.nullcontext()
with profiler:
    for _epoch in range(args.epochs):
        for images, labels in loader:
            images = images.float() / 255
            if args.form == "separate":
                with torch.no_grad():
                    features = encoder(images)
                output = head(features)
            else:
                output = model(images)
            optimizer.zero_grad()
            nn.functional.cross_entropy(output, labels).backward()
            optimizer.step()
            time.sleep(0.002)
