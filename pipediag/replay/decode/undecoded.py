"""Provide the base class of images whose files the device decodes: Pillow's pictures and torchvision's tensors."""

from __future__ import annotations

from typing import Any

from .jpeg_header import Jpeg


class Undecoded:
    """Image whose pixels no code has needed yet. The first code that needs them turns it into a usual image.

    Attributes:
        encoded: its file.
    """

    encoded: Jpeg
    height: int
    width: int

    @property
    def untouched(self) -> bool:
        """Whether the image that it shares its pixels with, if any, is still undecoded too."""
        return True


def is_undecoded(value: Any) -> bool:
    return isinstance(value, Undecoded) and value.untouched
