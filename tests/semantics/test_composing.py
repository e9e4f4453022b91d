"""The composer: the same seed gives the same text, every part occurs, and shrinking finds the part at fault."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.semantics.choosing import invent, shrunk, size
from benchmarks.semantics.compose import compose
from benchmarks.semantics.parts import CHOICES, SEVERAL
from benchmarks.semantics.settling import settled
from benchmarks.semantics.stages import Parts

numbers = st.integers(0, 10_000)


@given(seed=numbers, number=numbers)
def test_a_script_compiles_and_is_the_same_again(seed: int, number: int) -> None:
    parts = invent(seed, number)
    assert settled(parts) == parts
    text = compose(parts)
    compile(text, "train.py", "exec")
    assert compose(invent(seed, number)) == text


def test_every_part_occurs() -> None:
    invented = [invent(0, number) for number in range(4000)]
    for name, options in CHOICES.items():
        assert {parts[name] for parts in invented} == {*options}, name
    for name, (most, options) in SEVERAL.items():
        assert {one for parts in invented for one in parts[name]} == {*options}, name
        assert max(len(parts[name]) for parts in invented) == most


def test_a_part_can_be_left_out() -> None:
    invented = [invent(0, number, frozenset({"spawn", "late"})) for number in range(500)]
    assert all(parts["context"] != "spawn" and "late" not in parts["state"] for parts in invented)


def test_shrinking_leaves_what_fails() -> None:
    def fails(parts: Parts) -> bool:
        return "late" in parts["state"] and parts["workers"] != "0"

    first = next(parts for parts in (invent(0, number) for number in range(1000)) if fails(parts))
    plainest = shrunk(first, fails)
    assert fails(plainest) and size(plainest) == 2 < size(first)
