"""Fixtures of the tests of ``pipediag/remedy``."""

from __future__ import annotations

from ..devices import device

__all__ = ["device"]
