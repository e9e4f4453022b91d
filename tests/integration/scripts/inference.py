"""Scores a data set with a trained model: a loader and no optimizer."""

import torch
from ordinary import Data
from torch import nn
from torch.utils.data import DataLoader


class Rows(Data):
    def __getitem__(self, index):
        return super().__getitem__(index)[0]


model = nn.Linear(8, 2).eval()
predictions = []
with torch.no_grad():
    for x in DataLoader(Rows(40_000, 0.005), batch_size=4):
        predictions.append(model(x).argmax(1))
print(len(torch.cat(predictions)), "predictions")
