"""Text classification on a machine without torchvision, with helper modules of its own beside it."""

import time

import errors
import torch
import utils
from torch import nn
from torch.utils.data import DataLoader, Dataset

assert utils.MINE == "the script's own utils"
assert errors.WHOSE == "the script's own errors"


class Words(Dataset):
    def __init__(self):
        self.transform = self.tokenise

    def __len__(self):
        return 10_000

    def tokenise(self, text):
        time.sleep(0.004)
        return torch.tensor([hash(word) % 100 for word in text.split()])

    def __getitem__(self, index):
        return self.transform(f"sample number {index}"), index % 2


model = nn.EmbeddingBag(100, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x, y in DataLoader(Words(), batch_size=4):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
