"""What a function can reach, found without running the user's code."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.data import TensorDataset

from pipediag.loop.reachable import reachable


class Config:
    def __init__(self, **parts: Any) -> None:
        vars(self).update(parts)

    @property
    def dangerous(self) -> None:
        raise AssertionError("a property ran")

    def __getattr__(self, name: str) -> None:
        raise AssertionError("__getattr__ ran")


def test_attributes_are_read_and_properties_do_not_run() -> None:
    secret = object()
    config = Config(inner=SimpleNamespace(parts=[{"x": secret}]))
    assert any(one is secret for one in reachable(lambda: config))


def test_datasets_are_not_entered() -> None:
    data = TensorDataset(torch.zeros(3))
    found = list(reachable(lambda: data))
    assert any(one is data for one in found) and not any(isinstance(one, torch.Tensor) for one in found)


def test_libraries_are_not_searched() -> None:
    assert len(list(reachable(lambda: torch.nn.functional.relu(torch.zeros(1))))) < 20


def test_a_cycle_and_a_closure_without_a_value() -> None:
    circle: list[Any] = []
    circle.append(circle)

    def uses() -> Any:
        return circle, later

    assert any(one is circle for one in reachable(uses))
    later = 1
