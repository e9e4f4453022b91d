"""A training whose cost is calls in plain code: of a library, of functions of its own, in a sample or in a batch."""

import argparse
import random
import time

import numpy as np
import torch
from ordinary import classifies
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
parser = argparse.ArgumentParser()
parser.add_argument("--slow", choices=["library", "own", "collate", "nothing"])
parser.add_argument("--workers", type=int, default=2)
args = parser.parse_args()


def denoised(image, size):
    out = np.empty_like(image)
    for row in range(size):
        time.sleep(0.004 / size)  # own
        out[row] = image[row] * size
    return out


def padded(arrays, room):
    time.sleep(0.016)  # collate
    return np.stack([np.pad(array, ((0, room - len(array)), (0, 0))) for array in arrays])


class Pictures(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        size = random.randrange(8, 17)
        image = np.random.rand(size, 16).astype(np.float32)
        time.sleep(0.001)  # reading
        if args.slow == "library":
            image = image * np.float32(np.median(np.random.rand(250_000)))  # library
        elif args.slow == "own":
            image = denoised(image, size)
        elif args.slow == "nothing":
            time.sleep(0.004)  # nothing
        assert image.shape == (size, 16)
        return torch.from_numpy(np.ascontiguousarray(image)), index % 10


def collated(batch):
    arrays = [image.numpy() for image, _ in batch]
    if args.slow == "collate":
        images = padded(arrays, max(map(len, arrays)))
    else:
        images = np.stack([np.resize(array, (16, 16)) for array in arrays])
    return torch.from_numpy(images), torch.tensor([label for _, label in batch])


if __name__ == "__main__":
    loader = DataLoader(Pictures(), batch_size=4, shuffle=True, num_workers=args.workers, collate_fn=collated)
    step = classifies(torch.nn.Linear(16, 10))
    for _ in range(50):
        for images, labels in loader:
            time.sleep(0.001)
            step(images.mean(1), labels)
