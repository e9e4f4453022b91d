"""The loop's streams are found, and looking for them leaves nothing behind."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from pipediag.streams.handover import loops_streams

from . import imagined as imaginary

CUDA = torch.device("cuda", 0)

pytestmark = pytest.mark.usefixtures("imagined")


class Prefetcher:
    def __init__(self) -> None:
        self.stream = imaginary.Stream()

    def asks(self) -> list[Any]:
        return loops_streams(CUDA)

    def generates(self) -> Iterator[list[Any]]:
        yield loops_streams(CUDA)


def test_streams_of_functions_and_of_their_objects() -> None:
    assert loops_streams(CUDA) == []
    prefetcher = Prefetcher()
    assert prefetcher.asks() == next(prefetcher.generates()) == [prefetcher.stream]
    own = imaginary.Stream()
    assert {*prefetcher.asks()} == {prefetcher.stream, own}


def test_streams_of_another_device_are_left_out() -> None:
    prefetcher = Prefetcher()
    assert prefetcher.stream.device == CUDA
    prefetcher.stream.device = torch.device("cuda", 1)
    assert prefetcher.asks() == []


def test_no_batch_is_kept() -> None:
    """In some versions of Python, a function's ``f_locals`` keeps its values until the function ends."""
    batch: Any = Prefetcher()
    watched = weakref.ref(batch)
    assert len(loops_streams(CUDA)) == 0
    del batch
    assert watched() is None


def test_variables_are_not_changed() -> None:
    """Neither those that the loop took from ``locals()``, nor those that only ``exec`` has made."""

    def took() -> None:
        number = 3
        kept = locals()
        assert loops_streams(CUDA) == []
        assert number == kept["number"] == 3

    def made() -> None:
        exec("number = 5")
        assert loops_streams(CUDA) == []
        if sys.version_info < (3, 13):  # in later versions it cannot be read again
            assert eval("number") == 5

    took()
    made()
