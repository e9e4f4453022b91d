"""What the scripts beside this file train, each as its framework's users write it, with the ranks that it starts."""

import argparse
import os
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

BATCH = 8


def dim(image):
    """Take long sample by sample, and not when a batch is prepared at once."""
    time.sleep(0.004)
    return image * 0.5


class Images(Dataset):
    def __init__(self, size):
        self.size = size
        self.transform = v2.Compose([v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True), dim])

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        image = (torch.arange(3 * 12 * 12).reshape(3, 12, 12) * (index % 7 + 1) % 256).to(torch.uint8)
        return self.transform(image), index % 4


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, default=200, help="of each rank, in an epoch")
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--way", default="", help="in which the framework starts the ranks")
    return parser.parse_args()


def images(args):
    torch.set_num_threads(1)
    return Images(args.batches * BATCH * 2)


def loader(args, **options):
    return DataLoader(images(args), batch_size=BATCH, num_workers=1, **options)


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 12 * 12, 4))


def tell(rank, loss):
    """Print a loss in one write, so that the lines of two ranks never mix."""
    os.write(1, f"rank {rank} loss {float(loss.detach()):.9f}\n".encode())
