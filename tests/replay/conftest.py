"""Fixtures of the tests of ``pipediag/replay``."""

from __future__ import annotations

from ..devices import device

__all__ = ["device"]
