"""Runs another script and prints every loss that it computes."""

import runpy
import sys

import torch

forward = torch.nn.CrossEntropyLoss.forward


def printing(self, *given):
    loss = forward(self, *given)
    print(f"loss {loss.item():.9f}")
    return loss


torch.nn.CrossEntropyLoss.forward = printing
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
