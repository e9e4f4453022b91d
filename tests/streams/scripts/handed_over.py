"""Hand the batches of loaders over to an imagined device, without moving transforms, and print findings as JSON.

For each loader: why it cannot be handed over, or whether its batches equal the plain loader's.
"""

# ruff: noqa: E402
from __future__ import annotations

import json
import sys
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.streams import imagined
from tests.streams.ledger import pretend

LEDGER = pretend(imagined.Device())

from pipediag import offload
from pipediag.remedy.handoff import why_not
from pipediag.streams.executor import Executor

GPU = torch.device("cuda", 0)
COUNT = 24
Pair = namedtuple("Pair", "image label")


class Numbers(Dataset[Any]):
    def __init__(self, sample: Callable[[int], Any]) -> None:
        self.sample = sample

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, number: int) -> Any:
        return self.sample(number)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        assert info is not None
        for number in range(info.id, COUNT, info.num_workers):
            yield image(number), number


@dataclass
class Record:
    image: Tensor
    names: list[str]


class Graph:
    """A user's own batch, which is moved by its own method."""

    def __init__(self, nodes: Tensor) -> None:
        self.nodes = nodes

    def to(self, device: Any, **_: Any) -> Graph:
        return Graph(self.nodes.to(device))


def image(number: int) -> Tensor:
    return torch.full((3, 8, 8), float(number))


def drawn(number: int) -> Any:
    return image(number) + torch.rand(1), number


def permuted(samples: Any) -> Any:
    images, labels = default_collate(samples)
    return images.contiguous(memory_format=torch.channels_last), labels


def emptied(samples: list[Any]) -> Any:
    """Collate, emptying the samples and drawing a number."""
    images = torch.stack([sample.pop("image") for sample in samples])
    return images * torch.rand(1), torch.tensor([sample.pop("label") for sample in samples])


class Alternating:
    """Collates differently each time."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, samples: Any) -> Any:
        self.calls += 1
        return default_collate(samples) if self.calls % 2 else (default_collate(samples),)


def loader(sample: Any, **settings: Any) -> DataLoader[Any]:
    dataset = sample if isinstance(sample, IterableDataset) else Numbers(sample)
    return DataLoader(dataset, **{"batch_size": 4, "num_workers": 2, **settings})


def pair(number: int) -> Any:
    return image(number), number


#: Loaders that can, and that cannot.
ABLE: dict[str, Callable[[], DataLoader[Any]]] = {
    "pairs": lambda: loader(pair),
    "pairs, shuffled, with draws": lambda: loader(drawn, shuffle=True),
    "persistent workers": lambda: loader(pair, persistent_workers=True),
    "named tuples": lambda: loader(lambda n: Pair(image(n), n)),
    "dictionaries": lambda: loader(lambda n: {"image": image(n), "deep": [n, {"name": str(n)}]}),
    "not a number": lambda: loader(lambda n: (image(n) * float("nan"), n)),
    "channels last": lambda: loader(pair, collate_fn=permuted),
    "pinned by the loader": lambda: loader(lambda n: {"deep": (n, [(image(n),)])}, pin_memory=True, collate_fn=tuple),
    "records": lambda: loader(pair, collate_fn=lambda samples: Record(default_collate(samples)[0], ["a"])),
    "a collate function that empties its samples": lambda: loader(
        lambda n: {"image": image(n), "label": n}, collate_fn=emptied
    ),
    "without batching": lambda: loader(pair, batch_size=None),
    "a stream": lambda: loader(Stream()),
}
UNABLE: dict[str, Callable[[], DataLoader[Any]]] = {
    "no workers": lambda: loader(pair, num_workers=0),
    "no tensors": lambda: loader(str),
    "objects that move themselves": lambda: loader(
        pair, collate_fn=lambda samples: [Graph(default_collate(samples)[0])]
    ),
    "batches that differ each time": lambda: loader(pair, collate_fn=Alternating()),
    "a dataset that fails": lambda: loader(lambda n: 1 / 0),
}


def told(batch: Any) -> Any:
    """Return a batch as text: containers, types, strides and values."""
    if isinstance(batch, Tensor):
        return [str(batch.dtype), list(batch.stride()), str(batch.tolist())]
    if isinstance(batch, dict):
        return {key: told(value) for key, value in batch.items()}
    if isinstance(batch, Record):
        return ["record", told(batch.image), batch.names]
    return [type(batch).__name__, *map(told, batch)] if isinstance(batch, (tuple, list)) else str(batch)


def batches(made: Any) -> list[Any]:
    torch.manual_seed(3)
    return [told(batch) for _ in range(2) for batch in made]


def main() -> None:
    found: dict[str, Any] = {}
    with LEDGER.watched():
        for name, make in {**ABLE, **UNABLE}.items():
            plain = make()
            kept = (vars(plain).copy(), torch.get_rng_state())
            found[name] = {"why": why_not(plain, GPU)}
            assert vars(plain) == kept[0] and torch.equal(torch.get_rng_state(), kept[1]), name
            if name in ABLE:
                LEDGER.take()
                handed = offload(plain, GPU, transforms=False)
                assert isinstance(handed._executor, Executor) and not handed.plan.pieces
                found[name] |= {"same": batches(handed) == batches(make()), "ledger": LEDGER.take()}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
