"""Objects of the script that refer to each other, from a dataset whose pictures are kept."""

import dataclasses

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as T

from record import alive, called, files, finish, saw, trainer


@dataclasses.dataclass
class Node:
    x: object
    number: int
    parent: object = None
    children: list = dataclasses.field(default_factory=list)


class Data(Dataset):
    def __init__(self):
        self.paths = files("png")
        self.transform = T.Compose([T.RandomHorizontalFlip(), T.ToTensor()])
        alive.add(self)

    def __len__(self):
        return 16

    def __getitem__(self, i):
        called()
        node = Node(self.transform(Image.open(self.paths[i]).convert("RGB")), i)
        node.children = [Node(torch.tensor(k), k, node) for k in range(2)]
        return node


def main():
    step = trainer()
    for workers in (0, 1):
        loader = DataLoader(Data(), batch_size=4, collate_fn=list, num_workers=workers)
        for epoch in range(3):
            for batch in loader:
                saw("parents", [child.parent is node for node in batch for child in node.children])
                step((torch.stack([node.x for node in batch]), torch.tensor([node.number for node in batch])))


if __name__ == "__main__":
    main()
    finish()
