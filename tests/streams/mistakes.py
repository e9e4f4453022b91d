"""Handwritten prefetchers: one is right, the others leave one thing out.

Each copies the batches of ``source`` from page-locked memory to the device, on a stream of its own. The checker must
find the mistakes in all but the first; otherwise it would prove nothing about pipediag.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

Prefetcher = Callable[[Iterable[Any], torch.device], Iterator[Any]]


def _copied(sent: Iterable[Tensor], device: torch.device) -> tuple[Tensor, ...]:
    return tuple(tensor.to(device, non_blocking=True) for tensor in sent)


def right(source: Iterable[Any], device: torch.device) -> Iterator[Any]:
    """The consumer waits for the copy, and the allocator is told of the consumer."""
    side = torch.cuda.Stream(device)
    for sent in source:
        with torch.cuda.stream(side):
            batch = _copied(sent, device)
        consumer = torch.cuda.current_stream(device)
        consumer.wait_stream(side)
        for tensor in batch:
            tensor.record_stream(consumer)
        yield batch


def as_published(source: Iterable[Any], device: torch.device) -> Iterator[Any]:
    """The article's loop: it records the stream that the batch was made on, which protects nothing."""
    side = torch.cuda.Stream(device)
    transformed: tuple[Tensor, ...] | None = None
    for sent in source:
        if transformed is not None:
            torch.cuda.current_stream(device).wait_stream(side)
            yield transformed
        with torch.cuda.stream(side):
            transformed = tuple(tensor + 0 for tensor in _copied(sent, device))
            for tensor in transformed:
                tensor.record_stream(side)


def unrecorded(source: Iterable[Any], device: torch.device) -> Iterator[Any]:
    """The allocator is not told of the consumer."""
    side = torch.cuda.Stream(device)
    for sent in source:
        with torch.cuda.stream(side):
            batch = [_copied(sent, device)]
        torch.cuda.current_stream(device).wait_stream(side)
        yield batch.pop()


def unawaited(source: Iterable[Any], device: torch.device) -> Iterator[Any]:
    """The consumer does not wait for the copy."""
    side = torch.cuda.Stream(device)
    for sent in source:
        with torch.cuda.stream(side):
            batch = _copied(sent, device)
        for tensor in batch:
            tensor.record_stream(torch.cuda.current_stream(device))
        yield batch


def refilled(source: Iterable[Any], device: torch.device) -> Iterator[Any]:
    """The next batch overwrites the page-locked memory from which this one is still being copied."""
    side = torch.cuda.Stream(device)
    buffers: list[Tensor] = []
    for sent in source:
        buffers = buffers or [torch.empty_like(tensor).pin_memory() for tensor in sent]
        for buffer, tensor in zip(buffers, sent, strict=True):
            buffer.copy_(tensor)
        with torch.cuda.stream(side):
            batch = tuple(buffer.to(device, non_blocking=True) for buffer in buffers)
        consumer = torch.cuda.current_stream(device)
        consumer.wait_stream(side)
        for tensor in batch:
            tensor.record_stream(consumer)
        yield batch
