"""Determine shapes and dtypes of a callable's results for the workers, which no longer compute the results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

#: Shape and dtype of an image.
Kind = tuple[tuple[int, ...], torch.dtype]


@dataclass
class Shapes:
    """Result shapes and dtypes of a callable by input shape and dtype; sent to the workers.

    ``known`` holds the results so far, initially those of the proof.
    """

    fn: Callable[[Tensor], Tensor]
    known: dict[Kind, Kind] = field(default_factory=dict)

    def out(self, shape: Sequence[int], dtype: torch.dtype) -> Kind:
        """Return shape and dtype of the result, found by a run without pixels, or on zeros if that fails.

        Raises:
            Exception: any error that the callable raises on zeros.
        """
        given = tuple(shape), dtype
        if given not in self.known:
            try:
                result = self.fn(torch.empty(given[0], dtype=dtype, device="meta"))
            except Exception:  # it holds tensors on another device than meta, or it reads pixels
                result = self.fn(torch.zeros(given[0], dtype=dtype, device="cpu"))
            self.known[given] = tuple(result.shape), result.dtype
        return self.known[given]
