"""Batches of many shapes, each checked at every step as a picky training loop would."""

import argparse
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

import torch
from ordinary import step
from torch.utils.data import DataLoader, Dataset


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


@dataclass
class Meta:
    names: list
    weight: torch.Tensor


class GraphBatch:
    """As graph libraries have them: no container, moves itself in place, knows its number of graphs."""

    def __init__(self, x, edges, num_graphs):
        self.x, self.edges, self.num_graphs = x, edges, num_graphs

    def to(self, device):
        self.x = self.x.to(device)
        self.edges = self.edges.to(device)
        return self


class Data(Dataset):
    def __len__(self):
        return 10_000

    def __getitem__(self, index):
        time.sleep(0.002)
        image = torch.full((3, 4 + index % 5, 4), index % 7, dtype=torch.uint8)
        return image, {"name": f"image {index}", "id": index, "boxes": torch.ones(index % 3, 4)}


def collate_nested(samples):
    images, targets = zip(*samples, strict=True)
    return {
        "images": list(images),
        "names": [t["name"] for t in targets],
        "ids": tuple(t["id"] for t in targets),
        "nothing": None,
        "scale": 1.5,
        "pair": Pair(torch.zeros(len(samples), 8), torch.ones(len(samples), dtype=torch.int64)),
        "meta": Meta([t["name"] for t in targets], torch.ones(len(samples))),
        "ordered": OrderedDict(b=torch.zeros(1), a=[torch.zeros(2), "text"]),
    }


def check_nested(batch):
    assert type(batch) is dict
    assert list(batch) == ["images", "names", "ids", "nothing", "scale", "pair", "meta", "ordered"]
    assert type(batch["images"]) is list and len(batch["images"]) == 4
    assert all(type(i) is torch.Tensor and i.dtype is torch.uint8 and i.dim() == 3 for i in batch["images"])
    assert all(type(name) is str and name.startswith("image ") for name in batch["names"])
    assert type(batch["ids"]) is tuple and all(type(i) is int for i in batch["ids"])
    assert batch["nothing"] is None and batch["scale"] == 1.5
    assert type(batch["pair"]) is Pair and batch["pair"].right.dtype is torch.int64
    assert type(batch["meta"]) is Meta and type(batch["meta"].names) is list and batch["meta"].weight.shape == (4,)
    assert type(batch["ordered"]) is OrderedDict and list(batch["ordered"]) == ["b", "a"]
    assert type(batch["ordered"]["a"]) is list and batch["ordered"]["a"][1] == "text"
    return batch["pair"].left


def collate_detection(samples):
    return tuple(zip(*samples, strict=True))


def check_detection(batch):
    assert type(batch) is tuple and len(batch) == 2
    images, targets = batch
    assert type(images) is tuple and type(targets) is tuple and len(images) == len(targets) == 4
    for image, target in zip(images, targets, strict=True):
        assert type(target) is dict and list(target) == ["name", "id", "boxes"]
        assert type(target["name"]) is str and type(target["id"]) is int
        assert image.dtype is torch.uint8 and image.shape == (3, 4 + target["id"] % 5, 4)
        assert target["boxes"].shape == (target["id"] % 3, 4)
        assert (image == target["id"] % 7).all()
    return torch.stack([image.float().mean().expand(8) for image in images])


def collate_graph(samples):
    return GraphBatch(torch.zeros(len(samples), 8), torch.zeros(2, 6, dtype=torch.int64), len(samples))


def check_graph(batch):
    assert type(batch) is GraphBatch and batch.num_graphs == 4 and batch.edges.dtype is torch.int64
    return batch.to("cpu").x


FORMS = {
    "nested": (collate_nested, check_nested),
    "detection": (collate_detection, check_detection),
    "graph": (collate_graph, check_graph),
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("form", choices=FORMS)
    args = parser.parse_args()
    collate, check = FORMS[args.form]
    for batch in DataLoader(Data(), batch_size=4, num_workers=2, collate_fn=collate):
        step(check(batch), 0.0)
        time.sleep(0.001)


if __name__ == "__main__":
    main()
