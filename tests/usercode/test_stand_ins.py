"""A stand-in is what it stands for, in all but its calls."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from typing import Any

import pytest
import torch
from torchvision.transforms import v2

from pipediag.usercode.stand_ins import standing_in


class Shift:
    def __init__(self, by: int = 1) -> None:
        self.by = by

    def __call__(self, x: int) -> int:
        return x + self.by

    def twice(self, x: int) -> int:
        return self(self(x))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shift) and other.by == self.by

    def __hash__(self) -> int:
        return self.by


def called(*args: Any, **kwargs: Any) -> Any:
    return args, kwargs


def module_function(x: int) -> int:
    return x


def test_only_its_calls_are_others() -> None:
    shift = Shift()
    made = standing_in(shift, called)
    assert made(3, key=4) == ((3,), {"key": 4}) and made.twice(3) == 5
    made.by = 7
    made.note = "noted"
    vars(made)["other"] = 1
    assert (shift.by, shift.note, shift.other, made.by) == (7, "noted", 1, 7)  # type: ignore[attr-defined]
    del made.note
    assert not hasattr(shift, "note") and not hasattr(made, "note") and dir(made) == dir(shift)
    assert isinstance(made, Shift) and made.__class__ is Shift and type(made).__name__ == "Shift"
    assert made == shift == made and made == Shift(7) and made != Shift(8) and hash(made) == 7
    assert (repr(made), str(made)) == (repr(shift), str(shift))


def test_names_of_its_own_hide_none_of_the_originals() -> None:
    shift = Shift()
    for name in ("transform", "links", "start", "_call", "_original"):
        setattr(shift, name, name)
        assert getattr(standing_in(shift, called), name) == name


def test_it_has_the_methods_of_the_originals_class_and_no_others() -> None:
    chain = torch.nn.Sequential(v2.RandomInvert(), v2.Resize(4))
    made = standing_in(chain, called)
    assert len(made) == 2 and made[0] is chain[0] and list(made) == list(chain) and isinstance(made, torch.nn.Module)
    made[0] = v2.Grayscale()
    assert isinstance(chain[0], v2.Grayscale)
    empty = standing_in(torch.nn.Sequential(), called)
    assert not empty and standing_in(Shift(), called)
    for absent in (len, iter, lambda value: value[0]):
        with pytest.raises(TypeError):
            absent(standing_in(Shift(), called))


@pytest.mark.parametrize("original", [Shift(3), module_function, v2.Compose([v2.Resize(4)])])
def test_a_copy_and_a_pickle_are_of_the_original(original: Any) -> None:
    made = standing_in(original, called)
    for again in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert type(again) is type(original)
    assert copy.copy(made) is not original or original is module_function


def test_it_keeps_no_class_alive() -> None:
    class Local(Shift):
        pass

    made = standing_in(Local(), called)
    known = weakref.ref(made), weakref.ref(Local)
    del made, Local
    gc.collect()
    assert [one() for one in known] == [None, None]
