"""Train a workload of the article twice under one seed, without and with pipediag, and print both as JSON.

    CUBLAS_WORKSPACE_CONFIG=:4096:8 python equivalence.py frozen_encoder | augmentations | exact

For each way: the losses of all steps as hexadecimal floats, a digest of the weights at the end, and what the stages or
the plan say of themselves.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import torch
import torchvision.transforms.v2 as v2
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from examples.augmentations import FakeImages, augmentations, strided_cnn
from examples.frozen_encoder import NUM_CLASSES, FakeSegmentation, make_decoder, make_encoder
from pipediag import offload
from pipediag.remedy.loader import OffloadedLoader
from pipediag.streams.pipeline import StagePipeline

STEPS = 50
SIZE, BATCH, WIDTH = 64, 4, 8
DEVICE = torch.device("cuda", 0)

Trained = tuple[list[str], str]


def train(model: nn.Module, batches: Iterable[Any], loss_of: Callable[[Any], Tensor]) -> Trained:
    """Return the losses, read at the end, and the digest of the weights."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    losses = []
    for batch in islice(batches, STEPS):
        optimizer.zero_grad()
        loss = loss_of(batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    weights = hashlib.sha256()
    for tensor in model.state_dict().values():
        weights.update(tensor.cpu().numpy().tobytes())
    assert len(losses) == STEPS
    return [float(loss).hex() for loss in losses], weights.hexdigest()


def frozen_encoder() -> dict[str, Any]:
    """Part 1: a decoder on the features of a frozen encoder, encoded in the loop or ahead of it."""

    def models() -> tuple[nn.Module, nn.Module]:
        torch.manual_seed(0)
        return make_encoder(WIDTH).to(DEVICE).eval().requires_grad_(False), make_decoder(WIDTH).to(DEVICE).train()

    def loader() -> DataLoader[Any]:
        torch.manual_seed(1)
        return DataLoader(FakeSegmentation(SIZE), batch_size=BATCH, num_workers=2)

    def encoded(encoder: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        images, labels = (part.to(DEVICE, non_blocking=True) for part in batch)
        with torch.no_grad():
            return encoder(images.float()), labels

    def loss_of(decoder: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        # Channels come last, so that sums over pixels have one order.
        scores = decoder(features).permute(0, 2, 3, 1).reshape(-1, NUM_CLASSES)
        return F.cross_entropy(scores, labels.reshape(-1))

    ways: dict[str, Any] = {}
    encoder, decoder = models()
    ways["plain"] = train(decoder, loader(), lambda batch: loss_of(decoder, *encoded(encoder, batch)))
    for name, graphs in (("stages", False), ("captured stages", True)):
        encoder, decoder = models()
        pipeline = StagePipeline(loader(), [lambda batch: encoded(encoder, batch)], DEVICE, graphs=graphs)  # noqa: B023
        ways[name] = train(decoder, pipeline, lambda batch: loss_of(decoder, *batch))  # noqa: B023
        ways[f"{name}: notes"] = pipeline.notes
    return ways


def in_sequence(offloaded: OffloadedLoader) -> Iterator[Any]:
    """Yield the batches of the offloaded loader without an executor, each complete before the next begins."""
    for sent in offloaded.feed.begin():
        ready = offloaded.feed.arrive(sent)
        torch.cuda.synchronize()
        yield ready.batch


def classifier(transform: Any, with_plain: bool) -> dict[str, Any]:
    """Part 2: a classifier after augmentations."""

    def trained(batches: Iterable[Any]) -> Trained:
        torch.manual_seed(0)
        model = strided_cnn(SIZE).to(DEVICE).train()

        def loss_of(batch: Any) -> Tensor:
            images, labels = (part.to(DEVICE, non_blocking=True) for part in batch)
            return F.cross_entropy(model(images.float() / 255), labels.squeeze(1))

        torch.manual_seed(1)
        return train(model, batches, loss_of)

    plain = DataLoader(FakeImages(SIZE, transform), batch_size=BATCH, num_workers=2)
    offloaded = offload(plain, DEVICE)
    assert offloaded.plan.pieces, offloaded.plan.reasons
    ways: dict[str, Any] = {
        "in sequence": trained(Later(lambda: in_sequence(offloaded))),
        "offload": trained(offloaded),
        "stages on offload": trained(StagePipeline(offloaded, [lambda batch: (batch[0], batch[1])], DEVICE)),
    }
    if with_plain:
        assert offloaded.certificate is not None
        ways["exact"] = all(verdict.difference.equal for verdict in offloaded.certificate.whole)
        ways["plain"] = trained(plain)
    return ways


class Later:
    """An epoch that begins with the request for its first batch, under the seed that is set then."""

    def __init__(self, begin: Callable[[], Iterator[Any]]) -> None:
        self._begin = begin

    def __iter__(self) -> Iterator[Any]:
        return self._begin()


WORKLOADS: dict[str, Callable[[], dict[str, Any]]] = {
    "frozen_encoder": frozen_encoder,
    "augmentations": lambda: classifier(augmentations(SIZE), with_plain=False),
    "exact": lambda: classifier(v2.Compose([v2.RandomCrop(SIZE, padding=4), v2.RandomHorizontalFlip()]), True),
}

if __name__ == "__main__":
    torch.use_deterministic_algorithms(True)
    print(json.dumps(WORKLOADS[sys.argv[1]]()))
