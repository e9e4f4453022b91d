"""Measure the first part of the article: a frozen encoder, and a decoder that trains on its features."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, default_collate

from examples.frozen_encoder import FakeSegmentation, make_decoder, make_encoder
from pipediag.streams.pipeline import StagePipeline

from .loops import Options, Repeated, Training, pinned, trained
from .published import Loop, Train, article_stage_streams
from .tables import Row, ratios
from .windows import Form, measure

KEY = ("batch", "feed")
FEEDS = ("loader", "cached")
_BATCHES = (2, 4, 8, 16, 32, 64, 128, 256)
_WORKERS = 8
#: Channels of the encoder's first stage.
_WIDTH = 32
_OVER = ("serial", "serial_pinned", "article_streams", "stage_pipeline_no_graphs")


def rows(options: Options) -> Iterator[Row]:
    """Yield rows fed by workers, and rows fed from a few page-locked batches, so that no loader limits them."""
    for batch, feed in itertools.product(options.batches or _BATCHES, options.feeds or FEEDS):
        yield _row(batch, feed, options)


def _row(batch: int, feed: str, options: Options) -> Row:
    size, device = options.size, options.device
    workers = (options.workers or (_WORKERS,))[0]
    encoder = make_encoder(_WIDTH).to(device).eval().requires_grad_(False)
    train = Training(make_decoder(_WIDTH).to(device).train())
    dataset = FakeSegmentation(size)
    # Few distinct samples: drawing whole label maps takes longer than training on them.
    batches = (
        [pinned(default_collate([dataset[0]] * batch), options.on_gpu) for _ in range(4)] if feed == "cached" else []
    )
    pipelines: dict[str, StagePipeline] = {}

    def source(pin: bool = False) -> Iterable[Any]:
        if feed == "cached":
            return Repeated(batches)
        loader: Iterable[Any] = DataLoader(dataset, batch_size=batch, num_workers=workers, pin_memory=pin)
        return loader

    def encode(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        images, labels = batch
        with torch.no_grad():
            return encoder(images.float()), labels

    def staged(name: str, graphs: bool) -> Loop:
        pipelines[name] = StagePipeline(source(), [encode], device, graphs=graphs)
        return trained(pipelines[name], train)

    turn = workers if feed == "loader" else 1
    forms = [Form("serial", lambda: _serial(source(), device, encoder, train), turn)]
    if options.on_gpu:
        if feed == "loader":
            forms.append(Form("serial_pinned", lambda: _serial(source(pin=True), device, encoder, train), turn))
        forms += [
            Form("article_streams", lambda: article_stage_streams(source(), device, encoder, train), turn),
            Form("stage_pipeline_no_graphs", lambda: staged("stage_pipeline_no_graphs", False), turn),
        ]
    forms.append(Form("stage_pipeline", lambda: staged("stage_pipeline", True), turn))
    rates = measure([form for form in forms if options.wants(form.name)], options.windows, device)
    return {
        "batch": batch,
        "feed": feed,
        "steps_per_s": rates.medians,
        "ratios": ratios(rates.rounds, "stage_pipeline", _OVER),
        "rounds": rates.rounds,
        "failed": rates.failed,
        "notes": {name: pipeline.notes for name, pipeline in pipelines.items()},
    }


def _serial(loader: Iterable[Any], device: torch.device, encoder: nn.Module, train: Train) -> Loop:
    """Run the encoder, then the decoder."""
    for images, labels in loader:
        images = images.to(device, non_blocking=True).float()
        labels = labels.to(device, non_blocking=True)
        with torch.no_grad():
            features = encoder(images)
        train(features, labels)
        yield
