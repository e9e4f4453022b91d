"""A collate function that writes into the samples it gets, as those of boxes and graphs do: the loop checks labels."""

import argparse
import time

import numpy as np
import torch
from ordinary import step
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--workers", type=int, default=2)
args = parser.parse_args()


def augment(x):
    time.sleep(0.005)
    return x + 0.0


class Data(Dataset):
    def __init__(self):
        self.transform = augment

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        count = 1 + index % 5
        return {
            "image": self.transform(torch.full((8,), float(index % 100))),
            "batch_idx": torch.zeros(count),
            "marks": np.full(count, index % 100),
        }


def collate(samples):
    """Each box gets the number of its sample; marks are padded and made negative, where they are."""
    longest = max(len(sample["marks"]) for sample in samples)
    for place, sample in enumerate(samples):
        sample["batch_idx"] += place
        sample["marks"] *= -1
        sample["marks"].resize(longest, refcheck=False)
    return {
        "image": torch.stack([sample["image"] for sample in samples]),
        "batch_idx": torch.cat([sample["batch_idx"] for sample in samples]),
        "marks": torch.from_numpy(np.stack([sample["marks"] for sample in samples])),
    }


for batch in DataLoader(Data(), batch_size=4, shuffle=True, num_workers=args.workers, collate_fn=collate):
    images, places, marks = batch["image"], batch["batch_idx"], batch["marks"]
    assert places.unique().tolist() == [0, 1, 2, 3], places
    assert (marks[:, 0] == -images[:, 0]).all(), (marks, images)
    counts = 1 + images[:, 0].long() % 5
    assert torch.bincount(places.long()).tolist() == counts.tolist(), (places, images)
    assert marks.shape[1] == counts.max() and len(places) == counts.sum(), (places, marks)
    step(images, torch.zeros(4, 1))
    time.sleep(0.002)
