"""Results come back equal in every respect, new and writable, or are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from pipediag.memo.arena import Arena
from pipediag.memo.values import Unfit, pack, unpack

KEY = bytes(16)


def again(value: Any, given: Any = ()) -> Any:
    arena = Arena.create(1 << 20)
    head, parts = pack(value, given)
    assert arena.add(KEY, head, parts)
    entry = arena.find(KEY)
    assert entry is not None
    return unpack(entry)


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(map(same, one.values(), other.values()))
    if isinstance(one, (np.ndarray, np.generic)):
        facts = [(a.dtype, a.shape, a.strides, a.flags.num, a.base is None) for a in (one, other)]
        return facts[0] == facts[1] and one.tobytes() == other.tobytes()
    if isinstance(one, torch.Tensor):
        return (one.dtype, one.stride()) == (other.dtype, other.stride()) and torch.equal(one, other)
    if isinstance(one, Image.Image):
        return (one.mode, one.size, one.info, one.tobytes()) == (other.mode, other.size, other.info, other.tobytes())
    return bool(one == other)


RANDOM = np.random.default_rng(0)
VALUES = [
    None,
    (1, 2.5, True, "text", b"bytes", 1j),
    [{"a": (1, [])}, {3: None}],
    RANDOM.random((3, 4)),
    np.asfortranarray(RANDOM.random((3, 4))),
    RANDOM.random(12).reshape(3, 4),
    RANDOM.integers(0, 9, (2, 3, 5), dtype=np.uint8),
    RANDOM.random(7).astype(">f4"),
    np.array(["2020-01-01"], "M8[ns]"),
    np.array(5, np.int16),
    np.empty((0, 3), np.float32),
    (np.float32(1.5), np.int64(3), np.bool_(True)),
    torch.arange(24).reshape(2, 3, 4),
    torch.rand(4, 5, 3).permute(2, 0, 1),
    torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
    torch.rand(3).to(torch.bfloat16),
    torch.tensor(3.5),
    torch.empty(0, 4),
    torch.tensor([True, False]),
    (torch.arange(3), 16_000),
    Image.fromarray(RANDOM.integers(0, 256, (5, 7, 3), dtype=np.uint8)),
    Image.new("LA", (3, 2), (7, 9)),
    Image.new("F", (2, 2), 0.5),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_equal(value: Any) -> None:
    assert same(value, again(value))


def test_writable_and_not_shared() -> None:
    arena = Arena.create(1 << 20)
    head, parts = pack([np.zeros(4), torch.zeros(4), Image.new("RGB", (2, 2))])
    arena.add(KEY, head, parts)
    entry = arena.find(KEY)
    assert entry is not None
    array, tensor, picture = unpack(entry)
    array += 1
    tensor += 1
    picture.putpixel((0, 0), (1, 2, 3))
    assert array.flags.owndata and same(unpack(entry), [np.zeros(4), torch.zeros(4), Image.new("RGB", (2, 2))])


class Derived(np.ndarray[Any, Any]):
    pass


def twice() -> Any:
    array = np.zeros(8)
    return [array, array[2:]]


def read_only() -> Any:
    array = np.zeros(8)
    array.flags.writeable = False
    return array


def same_list() -> Any:
    inner: list[int] = []
    return [inner, inner]


@pytest.mark.parametrize(
    "value",
    [
        np.array([object()]),
        np.zeros(3, [("a", "i4")]),
        np.zeros(8)[::2],
        np.zeros(8)[None],
        np.zeros(3).view(Derived),
        read_only(),
        twice(),
        same_list(),
        torch.zeros(3, requires_grad=True),
        torch.zeros(8)[::2],
        torch.zeros(1).expand(3),
        torch.nn.Parameter(torch.zeros(2)),
        torch.zeros(2, dtype=torch.complex64).conj(),
        Image.new("P", (2, 2)),
        Image.new("1", (2, 2)),
        {1, 2},
        object(),
        type("Text", (str,), {})("a"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_refused(value: Any) -> None:
    with pytest.raises(Unfit):
        pack(value)


def test_arguments_and_their_memory_are_refused() -> None:
    array, tensor, kept = np.zeros((2, 4)), torch.zeros(2, 4), [1]
    given = (array, {"tensor": tensor}, kept)
    for result in (array, array[1:], tensor, (tensor[1], 2), kept, torch.from_numpy(array)):
        with pytest.raises(Unfit):
            pack(result, given)
    assert same(again(array + 1, given), array + 1)


def test_the_last_row_of_every_other_row_is_refused() -> None:
    """It lies behind as many bytes as the argument has."""
    array, tensor = np.zeros((8, 4)), torch.zeros(8, 4)
    for result, given in (
        *((array[6], array[::2]), (array[0], array[::-1])),
        *((tensor[6], tensor[::2]), (tensor.numpy()[6], tensor[::2]), (torch.from_numpy(array)[6], array[::2])),
    ):
        with pytest.raises(Unfit):
            pack(result, (given,))


def test_a_tensor_comes_back_in_host_memory() -> None:
    with torch.device("meta"):
        assert again(torch.ones(3, device="cpu")).tolist() == [1, 1, 1]
