"""Shapes and dtypes of a callable's results, for the workers, which no longer make the results themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

#: A shape and a dtype: all that can be known of an image without its pixels.
Kind = tuple[tuple[int, ...], torch.dtype]


@dataclass
class Shapes:
    """What comes out of a callable for an input of some shape and dtype; travels to the workers.

    ``known`` holds the answers so far, those of the proof to begin with.
    """

    fn: Callable[[Tensor], Tensor]
    known: dict[Kind, Kind] = field(default_factory=dict)

    def out(self, shape: Sequence[int], dtype: torch.dtype) -> Kind:
        """Shape and dtype of the result, found by a run without pixels, or on zeros where that fails.

        Raises what the callable raises on zeros.
        """
        given = tuple(shape), dtype
        if given not in self.known:
            try:
                result = self.fn(torch.empty(given[0], dtype=dtype, device="meta"))
            except Exception:  # it holds tensors that are not of the meta device, or it looks at pixels
                result = self.fn(torch.zeros(given[0], dtype=dtype, device="cpu"))
            self.known[given] = tuple(result.shape), result.dtype
        return self.known[given]
