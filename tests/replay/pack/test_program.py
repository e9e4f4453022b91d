"""A merged program applies exactly its own tape's ops to every image, in few launches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipediag.replay.ops.op import Kind, Op, Shape
from pipediag.replay.ops.operation import Operation
from pipediag.replay.ops.table import OPERATIONS
from pipediag.replay.pack.program import Output, Program, Rows, Step, Take, merge

SHAPE, DTYPE = (3, 8, 6), torch.uint8
Track = tuple[tuple[Op, ...], tuple[float, ...]]


@pytest.fixture(autouse=True, scope="module")
def made_up() -> Iterator[None]:
    """Let ops have other names than the real ones."""
    operation = Operation("made up", None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Kind, "operation", property(lambda kind: OPERATIONS.get(kind.name, operation)))
        yield


# ---- programs of small batches


def op(name: str, number: float = 0.0, shape: Shape = SHAPE, dtype: torch.dtype = DTYPE) -> Op:
    return Op(name, (), (number,), shape, dtype)


def track(*ops: tuple[Op, float]) -> Track:
    return tuple(one for one, _ in ops), tuple(site for _, site in ops)


def merged(
    tracks: Sequence[Track],
    places: Sequence[tuple[int, int]] | None = None,
    groups: Sequence[tuple[Any, ...]] = ((SHAPE, DTYPE, False),),
    leaves: Sequence[Sequence[int]] | None = None,
) -> Program:
    """By default each image has its own source in one group, and all form one leaf."""
    places = [(0, row) for row in range(len(tracks))] if places is None else places
    return merge(tracks, places, groups, [range(len(tracks))] if leaves is None else leaves)


def launches(program: Program) -> list[tuple[str, list[tuple[int, Rows]], str]]:
    """The op of each launch, the images that it takes, and where they go."""
    return [
        (step.ops[0].name, [tuple(take) for take in step.takes], f"into {step.group}" if step.in_place else step.group)
        for step in program.steps
    ]


def test_resized_originals_lie_in_the_batchs_order() -> None:
    groups = [((3, side, 6), DTYPE, False) for side in (8, 9)]
    tracks = [track((op("fast_resample", i), 0)) for i in range(3)]
    program = merged(tracks, [(1, 0), (0, 0), (1, 1)], groups)
    (step,) = program.steps
    assert step.ragged and [one.numbers for one in step.ops] == [(0,), (1,), (2,)]
    assert step.takes == (Take(1, range(1)), Take(0, range(1)), Take(1, range(1, 2)))
    assert program.outputs == [Output((Take(2, None),), None)]


def test_samples_that_are_all_alike_take_each_step_together() -> None:
    tracks = [track((op("a", i), 0), (op("b", 10 + i), 1)) for i in range(3)]
    program = merged(tracks)
    everything = (Take(0, None),), (Take(1, None),)
    assert program.steps == [
        Step([op("a", 0), op("a", 1), op("a", 2)], everything[0], 1, False),
        Step([op("b", 10), op("b", 11), op("b", 12)], everything[1], 2, False),
    ]
    assert program.outputs == [Output((Take(2, None),), None)]
    assert program.rows == [3, 3, 3]


def test_nothing_to_do() -> None:
    program = merged([track(), track()])
    assert program == Program([], [Output((Take(0, None),), None)], [2])


def test_an_optional_op_works_in_place() -> None:
    a, b, c = (op("a"), 0), (op("b"), 1), (op("c"), 2)
    program = merged([track(a, b, c), track(a, c), track(a, b, c)])
    assert launches(program) == [("a", [(0, None)], 1), ("b", [(1, (0, 2))], "into 1"), ("c", [(1, None)], 2)]
    assert program.outputs == [Output((Take(2, None),), None)]


def test_neighbours_are_taken_as_a_range() -> None:
    a, b = (op("a"), 0), (op("b"), 1)
    program = merged([track(a), track(a, b), track(a, b), track(a)])
    assert launches(program) == [("a", [(0, None)], 1), ("b", [(1, range(1, 3))], "into 1")]


def test_sources_are_never_written_into() -> None:
    b = (op("b"), 0)
    program = merged([track(), track(b), track(b), track()])
    assert launches(program) == [("b", [(0, range(1, 3))], 1)]
    assert program.outputs == [Output((Take(0, (0, 3)), Take(1, None)), (0, 2, 3, 1))]
    assert program.rows == [4, 2]


def test_an_op_that_changes_the_shape_or_the_dtype_makes_a_new_group() -> None:
    small, floats = (3, 4, 4), torch.float32
    a, cut, b = (op("a"), 0), (op("cut", shape=small), 1), (op("b", shape=small), 2)
    program = merged([track(a, cut, b), track(a)], leaves=[[0], [1]])
    assert launches(program) == [("a", [(0, None)], 1), ("cut", [(1, range(1))], 2), ("b", [(2, None)], 3)]
    convert = (op("convert", dtype=floats), 1)
    assert launches(merged([track(a, convert), track(a)], leaves=[[0], [1]])) == [
        ("a", [(0, None)], 1),
        ("convert", [(1, range(1))], 2),
    ]


def test_different_orders() -> None:
    """Two of three samples begin with the same op; the third joins them at the next."""
    a, b, c = (op("a"), 0), (op("b"), 0), (op("c"), 1)
    first = (op("first"), -1)
    program = merged([track(first, a, b, c), track(first, b, a, c), track(first, a, b, c)])
    assert launches(program) == [
        ("first", [(0, None)], 1),
        ("a", [(1, (0, 2))], "into 1"),
        ("b", [(1, None)], 2),
        ("a", [(2, range(1, 2))], "into 2"),
        ("c", [(2, None)], 3),
    ]


def test_samples_that_skip_a_link_wait_for_the_others() -> None:
    first, a, b, c = (op("first"), -1), (op("a"), 0), (op("b"), 1), (op("c"), 2)
    program = merged([track(first, c), track(first, a, c), track(first, b, c), track(first, a, b, c)])
    assert [step.ops[0].name for step in program.steps] == ["first", "a", "b", "c"]


def test_a_launch_takes_ops_of_one_kind() -> None:
    wide, narrow = (Op("blur", static, (), SHAPE, DTYPE) for static in ((5, 5), (3, 3)))
    program = merged([track((wide, 0)), track((narrow, 0)), track((wide, 0))])
    assert launches(program) == [("blur", [(0, (0, 2))], 1), ("blur", [(0, range(1, 2))], 2)]
    assert [step.ops for step in program.steps] == [[wide, wide], [narrow]]
    assert program.outputs == [Output((Take(1, None), Take(2, None)), (0, 2, 1))]


def test_images_of_different_sizes_are_resized_in_one_launch() -> None:
    groups = [((3, 9, 9), DTYPE, False), ((3, 5, 7), DTYPE, False)]
    resize = (op("resample", shape=(3, 4, 4)), 0)
    program = merged([track(resize)] * 3, [(0, 0), (1, 0), (0, 1)], groups)
    assert launches(program) == [("resample", [(0, None), (1, None)], 2)]
    assert program.outputs == [Output((Take(2, (0, 2, 1)),), None)]
    assert program.rows == [2, 1, 3]


def test_images_of_different_sizes_take_no_other_step_together() -> None:
    groups = [((3, 9, 9), DTYPE, False), ((3, 5, 7), DTYPE, False)]
    crop = (op("crop", shape=(3, 4, 4)), 0)
    program = merged([track(crop)] * 2, [(0, 0), (1, 0)], groups)
    assert launches(program) == [("crop", [(0, None)], 2), ("crop", [(1, None)], 3)]
    assert program.outputs == [Output((Take(2, None), Take(3, None)), None)]


def test_images_of_different_dtypes_or_layouts_are_not_resized_together() -> None:
    groups = [((9, 9, 3), DTYPE, True), ((3, 9, 9), DTYPE, False), ((3, 9, 9), torch.float32, False)]
    tracks = [track((op("resample", shape=(3, 4, 4), dtype=dtype), 0)) for _, dtype, _ in groups]
    assert len(merged(tracks, [(0, 0), (1, 0), (2, 0)], groups).steps) == 3


def test_two_leaves_of_one_source() -> None:
    """Two views of two images: the images are stored once, and each launch takes both views."""
    tracks = [track((op("a", i), 0)) for i in range(4)]
    program = merged(tracks, [(0, 0), (0, 1), (0, 0), (0, 1)], leaves=[[0, 1], [2, 3]])
    assert program.steps == [Step([op("a", i) for i in range(4)], (Take(0, (0, 1, 0, 1)),), 1, False)]
    assert program.outputs == [Output((Take(1, range(2)),), None), Output((Take(1, range(2, 4)),), None)]


def test_two_leaves_of_one_source_of_which_one_is_unchanged() -> None:
    program = merged([track((op("a"), 0)), track()], [(0, 0), (0, 0)], leaves=[[0], [1]])
    assert launches(program) == [("a", [(0, None)], 1)]
    assert program.outputs == [Output((Take(1, None),), None), Output((Take(0, None),), None)]


# ---- any tapes


class Case(NamedTuple):
    tracks: list[Track]
    places: list[tuple[int, int]]
    groups: list[tuple[Any, ...]]
    leaves: list[list[int]]


#: The shape and dtype after an op (None if unchanged), and its possible static parts.
KINDS: dict[str, tuple[Shape | None, torch.dtype | None, list[tuple[Any, ...]]]] = {
    "flip": (None, None, [()]),
    "blur": (None, None, [(3,), (5,)]),
    "crop": ((3, 4, 4), None, [()]),
    "resample": ((3, 5, 5), None, [("bilinear",), ("nearest",)]),
    "to_dtype": (None, torch.float32, [()]),
}


@st.composite
def cases(draw: st.DrawFn) -> Case:
    kinds = [(SHAPE, DTYPE, False), ((8, 6, 3), DTYPE, True), ((3, 7, 9), DTYPE, False), (SHAPE, torch.float32, False)]
    groups = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=4, unique=True))
    # Every row of a group is the source of some sample, as in packed batches.
    rows = [draw(st.integers(1, 3)) for _ in groups]
    places = [(group, row) for group, count in enumerate(rows) for row in range(count)]
    places += draw(st.lists(st.sampled_from(places), max_size=4))
    places = draw(st.permutations(places))
    tracks = [draw(_tracks(i, groups[group])) for i, (group, _) in enumerate(places)]
    samples = draw(st.permutations(range(len(places))))
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(samples) - 1)), max_size=2)))
    leaves = [list(samples[begin:end]) for begin, end in zip([0, *cuts], [*cuts, len(samples)], strict=True)]
    return Case(tracks, list(places), groups, [leaf for leaf in leaves if leaf])


@st.composite
def _tracks(draw: st.DrawFn, sample: int, kind: tuple[Any, ...]) -> Track:
    """A track whose ops have unique numbers."""
    shape, dtype, channels_last = kind
    shape = (shape[2], *shape[:2]) if channels_last else shape
    ops = []
    names = draw(st.lists(st.sampled_from(sorted(KINDS)), max_size=5))
    for k, name in enumerate(names):
        new_shape, new_dtype, statics = KINDS[name]
        shape, dtype = new_shape or shape, new_dtype or dtype
        ops.append(Op(name, draw(st.sampled_from(statics)), (sample, k), shape, dtype))
    sites = draw(st.lists(st.sampled_from([0, 0.5, 1, 2, 3]), min_size=len(ops), max_size=len(ops)))
    return tuple(ops), tuple(sorted(sites))


class Symbol(NamedTuple):
    """An image: its source, the numbers of the ops applied to it, and its shape, dtype and layout."""

    source: tuple[int, int]
    done: tuple[tuple[float, ...], ...]
    kind: tuple[Any, ...]


def run(program: Program, case: Case) -> list[list[Symbol]]:
    """Replay a program on symbols, and check what the kernels rely on."""
    groups = [
        [Symbol((group, row), (), kind) for row in range(1 + max(r for g, r in case.places if g == group))]
        for group, kind in enumerate(case.groups)
    ]
    sources = [list(group) for group in groups]
    for step in program.steps:
        taken = [image for take in step.takes for image in _taken(groups, take)]
        assert len({(one.name, one.static, one.shape, one.dtype) for one in step.ops}) == 1
        kinds = {image.kind[1:] if step.ops[0].kind.operation.ragged else image.kind for image in taken}
        assert len(kinds) == 1, "a launch takes images that are not alike"
        made = [
            Symbol(image.source, (*image.done, one.numbers), (one.shape, one.dtype))
            for image, one in zip(taken, step.ops, strict=True)
        ]
        if not step.in_place:
            assert step.group == len(groups)
            groups.append(made)
            continue
        (take,) = step.takes
        assert take.group == step.group >= len(sources), "a source is written into"
        assert take.rows is not None and len(set(take.rows)) == len(take.rows)
        for row, image in zip(take.rows, made, strict=True):
            assert image.kind == groups[take.group][row].kind
            groups[take.group][row] = image
    assert groups[: len(sources)] == sources
    assert [len(group) for group in groups] == program.rows
    results = []
    for takes, order in program.outputs:
        images = [image for take in takes for image in _taken(groups, take)]
        results.append(images if order is None else [images[k] for k in order])
    return results


def _taken(groups: list[list[Symbol]], take: Take) -> list[Symbol]:
    group = groups[take.group]
    if take.rows is None:
        return group
    assert all(0 <= row < len(group) for row in take.rows)
    return [group[row] for row in take.rows]


@given(cases())
def test_every_image_takes_its_own_ops_once_and_in_order(case: Case) -> None:
    """Launches are in the order of their links, and merging twice gives the same program and changes nothing."""
    kept = (list(case.tracks), list(case.places), list(case.groups))
    program = merge(*case)
    assert program == merge(*case) and (case.tracks, case.places, case.groups) == kept
    sites = {op.numbers: site for ops, sites in case.tracks for op, site in zip(ops, sites, strict=True)}
    launched = [{sites[op.numbers] for op in step.ops} for step in program.steps]
    assert all(len(together) == 1 for together in launched) and launched == sorted(launched, key=min)
    assert sum(len(step.ops) for step in program.steps) == sum(len(ops) for ops, _ in case.tracks)
    results = run(program, case)
    assert len(results) == len(case.leaves)
    for images, leaf in zip(results, case.leaves, strict=True):
        assert [image.source for image in images] == [case.places[i] for i in leaf]
        assert [image.done for image in images] == [tuple(op.numbers for op in case.tracks[i][0]) for i in leaf]


@given(st.lists(st.booleans(), min_size=1, max_size=9), st.integers(0, 3))
def test_a_chain_with_one_optional_op_takes_one_launch_a_link(takes: list[bool], before: int) -> None:
    """After a common first op, an op that some images skip takes one launch, and splits no other."""
    first = [(op(f"first{k}"), k - 9) for k in range(before + 1)]
    optional, last = (op("optional"), 0), (op("last"), 1)
    program = merged([track(*first, *([optional] if take else []), last) for take in takes])
    names = [*(f"first{k}" for k in range(before + 1)), *(["optional"] if any(takes) else []), "last"]
    assert [step.ops[0].name for step in program.steps] == names
    assert program.outputs == [Output((Take(len(program.rows) - 1, None),), None)]
