"""Images whose files travel to the device, which decodes them: Pillow's pictures and torchvision's tensors."""

from __future__ import annotations

from typing import Any

from .jpeg_header import Jpeg


class Undecoded:
    """Image whose pixels nobody has needed yet. It becomes a usual one as soon as somebody does.

    Attributes:
        encoded: its file.
    """

    encoded: Jpeg
    height: int
    width: int

    @property
    def untouched(self) -> bool:
        """Whether no other image that shares the pixels was decoded."""
        return True


def is_undecoded(value: Any) -> bool:
    return isinstance(value, Undecoded) and value.untouched
