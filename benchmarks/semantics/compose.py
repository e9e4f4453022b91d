"""Compose a training script from chosen parts. The same parts give the same text."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from .datasets import dataset_of, states_of
from .loops import OPEN_ENDED, body_of, goes_over_two
from .stages import Parts, block, transform_of

_OWN = Path(__file__).with_name("own.py")
_IMPORTS = """
import argparse
import contextvars
import copy
import io
import logging
import multiprocessing as mp
import os
import pickle
import queue
import random
import sys
import threading
import time
import weakref
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import cycle, islice
from types import SimpleNamespace

import numpy as np
import torch
import torchvision
from PIL import Image, ImageChops, ImageEnhance, ImageFilter, ImageOps
from torch.overrides import TorchFunctionMode
from torch.utils.data import BatchSampler, ChainDataset, ConcatDataset, DataLoader, Dataset, IterableDataset
from torch.utils.data import RandomSampler, Sampler, Subset, SubsetRandomSampler, WeightedRandomSampler
from torch.utils.data import default_collate, get_worker_info, random_split
from torch.utils.data.distributed import DistributedSampler
from torchvision import tv_tensors
from torchvision.transforms import functional as TF, v2
from torchvision.transforms.functional import to_tensor, vflip

import helper
from helper import load
from record import alive, called, files, finish, given, saw
"""
_LIBRARIES = {
    "v1": "from torchvision import transforms as T\nfrom torchvision.transforms import functional as F",
    "v2": "from torchvision.transforms import v2 as T\nfrom torchvision.transforms.v2 import functional as F",
}
#: Names at the end of a script that is no function, which hold what a function would let go of.
_LET_GO = "batch batches ahead again data dataset gathered kept loader other train val val_loader sampler extra"


def compose(p: Parts) -> str:
    """Return the script's text."""
    body = body_of(p)
    if p["form"] == "main":
        stored = ["LEVEL"] if "global" in p["state"] else []
        stored += ["FACTOR"] if {"level", "constant"} & {*p["curriculum"]} else []
        words = [f"global {', '.join(stored)}"] if stored else []
        body = f"def main():\n{block(*words, body)}\n\n\nif __name__ == '__main__':\n    main()\n{block(_last(p))}"
    else:
        body += f"\nfor name in '{_LET_GO}'.split():\n    globals().pop(name, None)\n{_last(p)}"
    own = [state.top for state in states_of(p) if state.top] + [transform_of(p)]
    text = "\n\n\n".join([*filter(None, own), dataset_of(p), body])
    samples = 160 if p["load"] == "heavy" else 16
    head = f"{_IMPORTS.strip()}\n{_LIBRARIES[str(p['library'])]}\n\nN, EPOCHS = {samples}, 3\n"
    return "\n\n".join([head, *_pasted(text), text]) + "\n"


@cache
def _definitions() -> dict[str, str]:
    """Return what stands at the top of ``own.py``, by name."""
    source = _OWN.read_text()
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found[node.name] = "".join(f"@{ast.unparse(one)}\n" for one in node.decorator_list)
            found[node.name] += ast.get_source_segment(source, node) or ""
        elif isinstance(node, ast.Assign):
            found[ast.unparse(node.targets[0])] = ast.unparse(node)
    return found


def _pasted(text: str) -> list[str]:
    """Return the definitions that a script needs, in order."""
    needed: set[str] = set()
    while True:
        words = {*re.findall(r"\w+", " ".join([text, *(_definitions()[name] for name in needed)]))}
        if words & {*_definitions()} == needed:
            return [f"{one}\n" for name, one in _definitions().items() if name in needed]
        needed = words & {*_definitions()}


def _last(p: Parts) -> str:
    # An error ends a generator, while workers go on.
    ended = p["loop"] in OPEN_ENDED or (p["loop"] == "skip" and p["loader"] == "Counting")
    counted = not ended and p["loader"] != "Shortened" and not goes_over_two(p)
    return f"finish(calls={counted})" + ("\nsys.exit(3)" if p["loop"] == "exit" else "")
