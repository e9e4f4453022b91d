"""Replacements of other people's attributes: in any order with those of others, only their own are taken back."""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from typing import Any

import pytest

from pipediag.patches import replaced


def native(text: str) -> str:
    return f"native({text})"


@pytest.fixture
def owner() -> types.SimpleNamespace:
    return types.SimpleNamespace(call=native)


def around(original: Callable[[str], str], name: str) -> Callable[[str], str]:
    @wraps(original)  # which copies everything that is attached to the original
    def call(text: str) -> str:
        return f"{name}({original(text)})"

    return call


def ours(owner: Any, name: str) -> Any:
    return replaced(owner, "call", around(owner.call, name))


def test_alone(owner: Any) -> None:
    with ours(owner, "a"), ours(owner, "b"):
        assert owner.call("x") == "b(a(native(x)))"
    assert owner.call is native


def test_the_users_patch_from_before(owner: Any) -> None:
    mine = owner.call = around(native, "user")
    with ours(owner, "a"):
        assert owner.call("x") == "a(user(native(x)))"
    assert owner.call is mine


@pytest.mark.parametrize("put_back", ["while", "after", "never"])
def test_the_users_patch_from_meanwhile(owner: Any, put_back: str) -> None:
    with ours(owner, "a"):
        saved = owner.call
        mine = owner.call = around(saved, "user")
        assert owner.call("x") == "user(a(native(x)))"
        if put_back == "while":
            owner.call = saved
    if put_back == "while":
        assert owner.call is native
        return
    assert owner.call is mine and owner.call("x") == "user(native(x))"
    if put_back == "after":
        owner.call = saved
        assert owner.call("x") == "native(x)"
        with ours(owner, "b"):
            assert owner.call("x") == "b(native(x))"
        assert owner.call is native
    else:
        with ours(owner, "b"):
            assert owner.call("x") == "b(user(native(x)))"
        assert owner.call is mine


@pytest.mark.parametrize("order", list(itertools.permutations("abc")))
def test_ours_end_in_any_order(owner: Any, order: tuple[str, ...]) -> None:
    layers: dict[str, ExitStack] = {}
    for name in "abc":
        layers[name] = ExitStack()
        layers[name].enter_context(ours(owner, name))
    for name in order:
        layers.pop(name).close()
        left = [other for other in "cba" if other in layers]
        assert owner.call("x") == "".join(f"{other}(" for other in left) + "native(x)" + ")" * len(left)
    assert owner.call is native


def test_an_inherited_attribute() -> None:
    class Base:
        def call(self) -> str:
            return "base"

    class Below(Base):
        pass

    with replaced(Below, "call", lambda self: "ours"):
        assert Below().call() == "ours"
        saved = Below.call
        Below.call = lambda self: f"user({saved(self)})"  # type: ignore[method-assign]
    assert Below().call() == "user(base)"
    del Below.call
    with replaced(Below, "call", lambda self: "ours"):
        assert Below().call() == "ours"
    assert "call" not in vars(Below)
