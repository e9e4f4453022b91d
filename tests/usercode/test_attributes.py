"""Objects whose ``__getattr__`` raises are looked at like any other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from pipediag.ladder.loader_facts import describe
from pipediag.usercode import tree
from pipediag.usercode.attributes import attribute, has_attribute, unwrapped
from pipediag.usercode.loops import loop_line
from pipediag.usercode.places import place_of

ERRORS = [KeyError, RuntimeError, ValueError, AttributeError, RecursionError]


class Rigid(Dataset[Any]):
    def __init__(self, error: type[Exception]) -> None:
        self.error = error

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(1)

    def __call__(self, data: Any) -> Any:
        return data

    def __getattr__(self, name: str) -> Any:
        raise self.__dict__.get("error", AttributeError)(name)


@pytest.mark.parametrize("error", ERRORS)
def test_an_attribute_that_raises_is_absent(error: type[Exception]) -> None:
    rigid = Rigid(error)
    assert attribute(rigid, "transform", 7) == 7 and attribute(rigid, "error") is error
    assert not has_attribute(rigid, "transform") and has_attribute(rigid, "error")
    assert unwrapped(rigid) is rigid and unwrapped(len) is len


@pytest.mark.parametrize("error", ERRORS)
def test_a_loader_of_such_objects_is_described(error: type[Exception]) -> None:
    loader = DataLoader(Rigid(error), batch_size=None, collate_fn=Rigid(error))
    loop_line(loader)
    assert describe(loader, "", 0).dataset
    assert place_of(Rigid(error)).name == "Rigid"
    assert tree.nbytes([Rigid(error)]) == tree.nbytes([Rigid(AttributeError)])
