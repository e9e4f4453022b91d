"""Measure the second part of the article: augmentations that overload the workers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch.utils.data import DataLoader

from examples.augmentations import FakeImages, augmentations, strided_cnn
from pipediag import offload

from .loops import Options, Repeated, Training, fetching
from .published import (
    Loop,
    Train,
    article_offload,
    article_transforms,
    article_two_streams,
    kornia_transforms,
    streamed,
)
from .tables import Row, ratios
from .windows import Form, measure

KEY = ("batch", "workers")
#: Batch sizes and numbers of workers for every form.
_FULL = ((32, 128, 256), (8, 15))
#: Batch sizes and numbers of workers for the forms of the article's table and their bounds.
_SENSITIVITY = ((2, 4, 8, 16, 64), (8,))
_REDUCED = ("device_cached", "raw_pinned", "plain", "article_offload", "article_two_streams", "offload")
_OVER = ("plain", "article_offload", "article_two_streams", "kornia_streams_pinned", "device_cached")


def rows(options: Options) -> Iterator[Row]:
    """Yield every form, at a few batch sizes and numbers of workers."""
    batches, workers = _FULL
    for count, batch in itertools.product(options.workers or workers, options.batches or batches):
        yield _row(batch, count, options, options.wants)


def sensitivity_rows(options: Options) -> Iterator[Row]:
    """Yield the forms of the article's table, at the other batch sizes."""
    batches, workers = _SENSITIVITY
    count = (options.workers or workers)[0]
    for batch in batches:
        if not options.batches or batch in options.batches:
            yield _row(batch, count, options, lambda form: form in _REDUCED and options.wants(form))


def _row(batch: int, workers: int, options: Options, wants: Callable[[str], bool]) -> Row:
    size, device = options.size, options.device
    train = Training(strided_cnn(size).to(device).train())
    augmented, bare = FakeImages(size, augmentations(size)), FakeImages(size)
    settings: dict[str, Any] = {"batch_size": batch, "num_workers": workers}
    notes: dict[str, Any] = {}

    def raw(pin: bool) -> DataLoader[Any]:
        return DataLoader(bare, **settings, pin_memory=pin)

    def cached() -> Loop:
        samples = [augmented[index] for index in range(min(batch, 32))]  # the other samples repeat these
        images, labels = (torch.stack([samples[i % len(samples)][n] for i in range(batch)]).to(device) for n in (0, 1))
        return _plain(Repeated([(images, labels)]), device, train)

    def offloaded() -> Loop:
        moved = offload(DataLoader(augmented, **settings), device)
        if not moved.plan.pieces:
            raise RuntimeError(f"nothing was moved to the device: {'; '.join(moved.plan.reasons)}")
        notes["unrecorded"] = lambda: moved.unrecorded
        return _plain(moved, device, train)

    def kornia() -> Loop:
        return streamed(raw(pin=True), device, kornia_transforms(size), train)

    def article(loop: Callable[..., Loop]) -> Loop:
        return loop(raw(pin=False), device, article_transforms(size), train)

    forms = [
        Form("device_cached", cached),
        Form("raw_pageable", lambda: fetching(raw(pin=False)), workers),
        Form(
            "plain",
            lambda: _plain(DataLoader(augmented, **settings, pin_memory=options.on_gpu), device, train),
            workers,
        ),
        Form("article_offload", partial(article, article_offload), workers),
    ]
    if options.on_gpu:
        forms += [
            Form("raw_pinned", lambda: fetching(raw(pin=True)), workers),
            Form("article_two_streams", partial(article, article_two_streams), workers),
        ]
        if find_spec("kornia"):
            forms.append(Form("kornia_streams_pinned", kornia, workers))
    forms.append(Form("offload", offloaded, workers))
    rates = measure([form for form in forms if wants(form.name)], options.windows, device)
    return {
        "batch": batch,
        "workers": workers,
        "steps_per_s": rates.medians,
        "ratios": ratios(rates.rounds, "offload", _OVER),
        "rounds": rates.rounds,
        "failed": rates.failed,
        "notes": {name: note() for name, note in notes.items()},
    }


def _plain(loader: Iterable[Any], device: torch.device, train: Train) -> Loop:
    """Run the article's loop; the copy to the device does nothing for a batch that is already there."""
    for images, labels in loader:
        train(images.to(device, non_blocking=True), labels.to(device, non_blocking=True).squeeze(1))
        yield
