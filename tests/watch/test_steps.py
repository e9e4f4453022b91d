from __future__ import annotations

import bisect
import random

import pytest

from pipediag.watch.sampling import Frame, LocalFrame, Stack
from pipediag.watch.stacks import DATA, START, TRAINS, Moment
from pipediag.watch.steps import Look, blocks, counted, middle, turns_of

from .made import BACKWARD_CALL, CALL, IN_WORKER, NEXT, STEP_CALL, at, local

#: A step as it is seen at five moments, and at more.
STEP: list[Stack] = [at(40, NEXT), at(41, CALL), at(41, CALL), at(42, BACKWARD_CALL), at(43, STEP_CALL)]


SLOW = [moment for moment in STEP for _ in range(3)]


def worker(idx: int) -> list[LocalFrame]:
    loop: Frame = IN_WORKER[-1]
    return [LocalFrame(loop, {"idx": idx, "worker_id": 0})]


def looks(*values: tuple[float, int]) -> list[Look]:
    return [
        Look(second, 5, local(at(40 + number, CALL), i=value, epoch=1)) for number, (second, value) in enumerate(values)
    ]


def test_a_workers_number_of_its_batch_counts_the_batches_of_all() -> None:
    seen = [Look(0.0, 7, worker(10)), Look(4.0, 7, worker(50))]
    found = counted([], seen, [])
    assert found is not None and found.per_s == 10 and found.by == "the workers' numbers of batches"


@pytest.mark.parametrize("numbers, expected", [((67_370, 50, 52), 52), ((0, 50, 52), 50), ((50, None, 51, 9999), 51)])
def test_a_number_that_was_misread_is_left_out(numbers: tuple[int | None, ...], expected: int) -> None:
    """Of a worker that runs, one number in some dozens is none of its own."""
    looks = [Look(4.0, 7, [] if number is None else worker(number)) for number in numbers]
    assert middle(looks) == Look(4.0, 7, worker(expected))
    assert middle([look for look in looks if look.frames][:2]) is None


def test_a_new_epochs_workers_count_from_zero_again() -> None:
    seen = [Look(0.0, 7, worker(10)), Look(4.0, 7, worker(50)), Look(14.0, 7, worker(3)), Look(15.0, 8, worker(400))]
    found = counted([], seen, [])
    assert found is not None and found.per_s == 10


def test_the_loops_own_counter() -> None:
    found = counted(looks((0, 5), (2, 26), (12, 125)), [], [])
    assert found is not None and found.per_s == 10 and found.by == "the loop's own counter i, /home/me/train.py:40"


@pytest.mark.parametrize(
    "values",
    [
        ((0, 16), (2, 336), (12, 2000)),  # samples, 16 in a step
        ((0, 5), (2, 7), (12, 905)),  # it grows unevenly
        ((0, 5), (2, 5), (12, 5)),
    ],
)
def test_other_numbers_are_no_steps(values: tuple[tuple[float, int], ...]) -> None:
    assert counted(looks(*values), [], []) is None


def test_a_counter_slower_than_the_turns_that_were_seen_counts_no_steps() -> None:
    stacks = SLOW * 30  # 30 steps in 12 seconds
    found = counted(looks((0, 5), (2, 6), (12, 11)), [], [(12.0, stacks)])
    assert found is not None and found.by == "the rhythm of its stacks" and found.per_s == pytest.approx(29 / 12)


def test_turns_are_counted_where_every_step_is_seen_several_times() -> None:
    assert turns_of(SLOW * 10) == (9, True)
    found = counted([], [], [(5.0, SLOW * 11), (10.0, SLOW * 21)])
    assert found is not None and found.per_s == 2
    assert counted([], [], [(5.0, SLOW * 11), (50.0, SLOW * 21)]) is None  # too few looks in the second stretch
    assert counted([], [], [(5.0, STEP[::2] * 10)]) is None


@pytest.mark.parametrize(("gap", "complete"), [(0.03, True), (0.1, True), (0.5, False), (1.5, False), (10.0, False)])
def test_a_rhythm_is_told_only_if_the_samples_follow_it(gap: float, complete: bool) -> None:
    """Steps of a second: a fifth draws, two fifths forward, then backward, a twentieth updates."""
    draw, now, stacks = random.Random(3), 0.0, list[Stack]()
    for _ in range(400):
        now += draw.expovariate(1 / gap)
        part = bisect.bisect([0.2, 0.6, 0.95], now % 1)
        stacks.append([STEP[0], STEP[1], STEP[3], STEP[4]][part])
    turns, whole = turns_of(stacks)
    assert whole == complete
    if complete:
        assert turns == pytest.approx(now, rel=0.1)


def test_two_updates_in_a_step_are_one_turn() -> None:
    second = [at(50, CALL), at(51, BACKWARD_CALL), at(52, STEP_CALL)]
    assert turns_of([*STEP, *second] * 10)[0] == 9


def test_blocks_have_one_pace_and_their_own_waits() -> None:
    moments = [Moment(DATA)] * 8 + [Moment(START)] * 8 + [Moment(TRAINS)] * 16
    assert blocks([(8.0, moments)], 4, most=2) == [(2, 4.0, 4.0), (2, 4.0, 0.0)]
    assert blocks([(8.0, moments)], 1) == [(1, 8.0, 4.0)]  # never more blocks than steps
    assert sum(steps for steps, _, _ in blocks([(8.0, moments)], 101)) == 101


def test_a_stretch_counts_by_its_seconds_not_by_its_samples() -> None:
    often, seldom = [Moment(DATA)] * 40, [Moment(TRAINS)] * 4
    assert blocks([(2.0, often), (6.0, seldom)], 1) == [(1, 8.0, pytest.approx(2.0))]
    found = blocks([(2.0, often), (6.0, seldom)], 80, most=4)
    assert [round(waited, 3) for _, _, waited in found] == [2.0, 0.0, 0.0, 0.0]
