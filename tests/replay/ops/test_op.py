"""Ops and their kinds."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref

import torch

from pipediag.replay.ops.op import Kind, Op, State, state_of

SHAPE = (3, 8, 6)


def test_equal_kinds_are_one_object() -> None:
    one, other = (Kind("blur", (3, "bilinear"), (3,), torch.uint8) for _ in range(2))
    assert one is other
    assert Kind("blur", (5, "bilinear"), (3,), torch.uint8) is not one
    assert Kind("blur", (3, "bilinear"), (1,), torch.uint8) is not one
    assert Kind("blur", (3, "bilinear"), (3,), torch.float32) is not one
    assert pickle.loads(pickle.dumps(one)) is one
    assert copy.deepcopy(one) is one


def test_kinds_are_forgotten_with_their_last_op() -> None:
    op = Op("crop", ("a size of its own",), (), SHAPE, torch.uint8)
    kind = weakref.ref(op.kind)
    assert kind() is not None
    del op
    gc.collect()
    assert kind() is None
    assert Kind("crop", ("a size of its own",), (3,), torch.uint8).name == "crop"


def test_samples_of_other_sizes_are_of_one_kind() -> None:
    one, other = (Op("invert", (), (), shape, torch.uint8) for shape in (SHAPE, (3, 9, 9)))
    assert one.kind is other.kind
    assert one.shape != other.shape


def test_an_op_has_the_parts_that_it_is_made_of() -> None:
    bulk = torch.rand(3, 2)
    op = Op("noise", (0.5,), (1.0, 2.0), SHAPE, torch.float32, bulk)
    assert (op.name, op.static, op.numbers, op.shape, op.dtype) == ("noise", (0.5,), (1.0, 2.0), SHAPE, torch.float32)
    assert op.bulk is bulk
    again = pickle.loads(pickle.dumps(op))
    assert again[:3] == op[:3] and torch.equal(again.bulk, bulk)


def test_an_op_that_is_given_numbers() -> None:
    op = Op("rotate", (8, 6), (), SHAPE, torch.uint8)
    assert op.given(1.5, 2.0) == Op("rotate", (8, 6), (1.5, 2.0), SHAPE, torch.uint8)


def test_a_state_of_all_its_parts() -> None:
    assert state_of((SHAPE, torch.uint8, True, False, True)) == State(SHAPE, torch.uint8, mask=True)
