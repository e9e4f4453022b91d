"""Which rank holds up a job: simulated jobs of noisy ranks, single decisions by hand, and pairs of trials."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from pipediag.analysis.numbers.paired_windows import PACE
from pipediag.analysis.ranks.stragglers import (
    DELAY,
    LEAST_DELAY_MS,
    Straggler,
    by_pace,
    input_pace,
    next_trial,
    straggler_of,
    straggler_or_why_none,
    without_slack,
)
from pipediag.analysis.ranks.trials import MOST_PAIRS, Change, Needed, Trials
from pipediag.session import Rank, RankTrial, Session

from ..made import tried
from .planted import Job

SEEDS = range(12)
STEP = 30.0


def _storage(count: int, late: int, seed: int) -> Job:
    """One rank reads from storage that is three times as slow."""
    return Job([60.0 if n == late else 20.0 for n in range(count)], [STEP] * count, seed=seed)


def _cores(count: int, late: int, seed: int) -> Job:
    """One rank has half the cores, and the input of all is slower than the step."""
    return Job([80.0 if n == late else 40.0 for n in range(count)], [STEP] * count, seed=seed)


def _samples(count: int, late: int, seed: int) -> Job:
    """One rank has samples that take longer, so that the job is 40 % slower."""
    return Job([42.0 if n == late else 25.0 for n in range(count)], [STEP] * count, seed=seed)


def _gpu(count: int, late: int, seed: int) -> Job:
    """One rank has a slower device."""
    return Job([20.0] * count, [42.0 if n == late else STEP for n in range(count)], seed=seed)


def _equal(count: int, pace: float, seed: int, shared: bool = False) -> Job:
    return Job([pace] * count, [STEP] * count, seed=seed, shared=shared)


PLANTED: dict[str, tuple[Callable[[int, int, int], Job], str, int]] = {
    "slow storage": (_storage, "input", 8),
    "fewer cores": (_cores, "input", 8),
    "longer samples": (_samples, "input", 14),
    "slower GPU": (_gpu, "step", 40),
}


@pytest.mark.parametrize("count", [2, 3, 4, 8])
@pytest.mark.parametrize("name", PLANTED)
def test_every_planted_straggler_is_found(name: str, count: int) -> None:
    """Few trials suffice in each case, whichever rank it is."""
    planted, kind, most = PLANTED[name]
    for seed in SEEDS:
        late = (seed * 5 + 1) % count
        job = planted(count, late, seed)
        trials = job.analyse()
        found = straggler_of(job.session)
        assert found is not None, (seed, straggler_or_why_none(job.session))
        assert (found.ranks, found.kind) == ((late,), kind), seed
        assert trials <= most, seed


@pytest.mark.parametrize("count", [2, 3, 4, 8])
@pytest.mark.parametrize("pace", [20.0, 34.0, 60.0])
def test_no_straggler_in_a_job_of_equals(count: int, pace: float) -> None:
    """The input is fast enough, a little too slow, or far too slow."""
    for seed in SEEDS:
        job = _equal(count, pace, seed)
        trials = job.analyse()
        assert straggler_or_why_none(job.session)[0] is None, seed
        assert straggler_or_why_none(job.session)[1].startswith("No rank holds up the others: ")
        assert trials <= 40, seed


@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_ranks_that_share_cores_do_not_hold_each_other(count: int) -> None:
    """Feeding some ranks leaves more cores to the others, so feeding any of them helps as much."""
    for seed in SEEDS:
        job = _equal(count, 90.0, seed, shared=True)
        job.analyse()
        assert straggler_of(job.session) is None, seed


def test_two_of_eight() -> None:
    """Both must be fed before the job gains."""
    for seed in SEEDS:
        job = Job([60.0 if n in (1, 6) else 20.0 for n in range(8)], [STEP] * 8, seed=seed)
        assert job.analyse() <= 10
        found = straggler_of(job.session)
        assert found is not None and (found.ranks, found.kind) == ((1, 6), "input")
        assert found.sentence.startswith("Ranks 1 and 6 hold up the job: fed from their caches, the job runs ")


def test_two_slower_devices_of_eight() -> None:
    for seed in SEEDS:
        job = Job([20.0] * 8, [42.0 if n in (2, 5) else STEP for n in range(8)], seed=seed, noise=0.02)
        job.analyse()
        found = straggler_of(job.session)
        assert found is not None and (found.ranks, found.kind) == ((2, 5), "step"), seed


def test_one_of_many_is_found_by_halves() -> None:
    job = Job([20.0] * 64, [42.0 if n == 37 else STEP for n in range(64)], noise=0.02)
    assert job.analyse() <= 40
    found = straggler_of(job.session)
    assert found is not None and found.ranks == (37,)


# By hand, without noise


def exact(
    paces: Sequence[float], steps: Sequence[float], hide: float = 0.0, measured: Sequence[float] | None = None
) -> tuple[Session, list[Rank], Callable[[Change], float]]:
    """A job without noise, its ranks as ``measured`` paces have them, and the milliseconds of its step by change.

    ``hide`` milliseconds of each delay are hidden, as a device that has enough to do hides them.
    """
    job = Job(paces, steps, noise=0.0, phase=0.0)
    ranks = [replace(rank, worker_ms=4 * pace) for rank, pace in zip(job.ranks, measured or paces, strict=True)]

    def ms(change: Change) -> float:
        return job.step(replace(change, delay_ms=max(0.0, change.delay_ms - hide)), 1)

    return job.session, ranks, ms


def answered(session: Session, ranks: Sequence[Rank], ms: Callable[[Change], float]) -> tuple[Straggler | None, str]:
    tried(session, ranks, ms)
    return straggler_or_why_none(replace(session, ranks=list(ranks)))


def test_the_first_trials_of_a_slow_input() -> None:
    """A plain trial, the slowest rank fed, then both in turn; finally the fastest rank fed, as a control."""
    session, ranks, ms = exact([20, 60, 21, 22], [30] * 4)
    found, _ = answered(session, ranks, ms)
    assert found is not None and found.ranks == (1,)
    assert found.gain.value == pytest.approx(2.0)
    told = [(tuple(trial.fed), tuple(trial.delayed)) for trial in session.rank_trials]
    assert told == [((), ()), ((1,), ()), ((1,), ()), ((), ()), ((0,), ())]


def test_an_equal_job_that_starves_needs_one_pair_for_its_input() -> None:
    """The slower half is fed once. No step is delayed: none is as long as it takes any rank to supply a batch."""
    session, ranks, ms = exact([120, 120, 120, 120], [30] * 4)
    found, why = answered(session, ranks, ms)
    assert found is None
    told = [(tuple(trial.fed), tuple(trial.delayed)) for trial in session.rank_trials]
    assert told == [((), ()), ((0, 1), ())]
    assert why == "No rank holds up the others: with ranks 0 and 1 fed from a cache, the job runs 1x as fast."


def test_a_slower_step_among_ranks_that_wait_now_and_then() -> None:
    """The job loses a little to its input, but no rank takes the whole step to supply a batch: steps are delayed."""
    session, ranks, ms = exact([20, 20, 20], [30, 45, 30])
    for window in session.windows_of("baseline"):
        window.seconds *= 1.08
    found, _ = answered(session, ranks, lambda change: ms(change) + 3.6 * (not change.fed))
    assert found is not None and (found.ranks, found.kind) == ((1,), "step")


def test_no_input_is_fed_if_the_job_does_not_wait() -> None:
    session, ranks, ms = exact([10, 20], [30, 30])
    answered(session, ranks, ms)
    assert all(trial.fed == [0, 1] for trial in session.rank_trials)


@pytest.mark.parametrize("step, delay", [(30.0, 30.0 * DELAY), (4.0, LEAST_DELAY_MS)])
def test_the_delay(step: float, delay: float) -> None:
    session, ranks, ms = exact([1, 1], [step, step])
    answered(session, ranks, ms)
    delays = [trial.delay_ms for trial in session.rank_trials if trial.delayed]
    assert delays == [pytest.approx(delay)] * len(delays) and delays


def test_the_gain_of_a_faster_step_is_at_least_the_slack() -> None:
    session, ranks, ms = exact([1, 1, 1], [30, 45, 30])
    found, _ = answered(session, ranks, ms)
    assert found is not None and (found.ranks, found.kind) == ((1,), "step")
    assert found.gain.value == pytest.approx(45 / (45 - 9))
    assert found.gain.low <= found.gain.value < found.gain.high == float("inf")
    assert found.sentence == (
        "Rank 1 holds up the job: its own step takes longest. Delaying it by 9 ms delays the job, delaying the other "
        "ranks does not; if it were as fast as those, the job would run at least 1.25x as fast."
    )


def test_a_delay_that_nobody_notices_proves_nothing() -> None:
    session, ranks, ms = exact([1, 1, 1, 1], [30] * 4, hide=100.0)
    found, why = answered(session, ranks, ms)
    assert found is None
    assert why.endswith("delaying any rank delays the job by less.")


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 16])
def test_ranks_without_slack_are_found_whichever_they_are(count: int) -> None:
    """One or a few critical ranks at any place; none in a job of equals, after two ranks."""
    for slow in range(count):
        asked: list[Sequence[int]] = []

        def slack(group: Sequence[int], slow: int = slow, asked: list[Sequence[int]] = asked) -> bool:
            asked.append(group)
            return slow not in group

        assert without_slack(range(count), slack) == ([slow], "")
        assert len(asked) <= 3 + 2 * math.log2(count)
    assert without_slack(range(count), lambda group: False) == ([], "delaying ranks 0 and 1 delays the whole job")


@pytest.mark.parametrize("slow", [{3, 4}, {0, 7}, {5, 6, 7}, {1, 4, 6}])
def test_a_few_ranks_without_slack(slow: set[int]) -> None:
    assert without_slack(range(8), lambda group: not slow & {*group}) == (sorted(slow), "")


def test_half_of_the_ranks_are_no_stragglers() -> None:
    assert without_slack(range(8), lambda group: not {2, 3, 4, 5} & {*group}) == ([], "many ranks have no slack")


def test_what_is_not_certain_names_nobody() -> None:
    assert without_slack(range(4), lambda group: None if 2 in group else True) == (
        [], "it is not certain whether rank 2 has slack"
    )  # fmt: skip
    assert without_slack(range(4), lambda group: None)[0] == []


def test_paces_that_mislead_do_not_decide() -> None:
    """Rank 0 seems slowest, but feeding it brings nothing; feeding rank 1 too does, since that is the slow one."""
    session, ranks, ms = exact([20, 60, 20, 20], [30] * 4, measured=[90, 50, 40, 40])
    found, _ = answered(session, ranks, ms)
    assert session.rank_trials[1].fed == [0]
    assert found is not None and found.ranks == (0, 1), "the smallest set that was seen to hold the job"


def test_paces_that_are_not_known_are_suspects() -> None:
    session, ranks, ms = exact([20, 20, 60, 20], [30] * 4)
    ranks[2].worker_ms = None
    assert by_pace(ranks)[0].rank == 2
    found, _ = answered(session, ranks, ms)
    assert found is not None and 2 in found.ranks
    for rank in ranks:
        rank.worker_ms = None
    session.rank_trials = []
    found, why = answered(session, ranks, ms)
    assert found is None and "the paces of their inputs are not known" in why


def test_the_answer_stands_when_paces_are_measured_anew() -> None:
    """More windows may change the order of similar ranks, but the trials were made in the old order."""
    session, ranks, ms = exact([60, 60, 20, 20, 20, 20], [30] * 6)
    first, _ = answered(session, ranks, ms)
    draw = random.Random(1)
    for _ in range(20):
        again = [replace(rank, worker_ms=(rank.worker_ms or 0.0) * draw.uniform(0.9, 1.1)) for rank in ranks]
        found = straggler_of(replace(session, ranks=again))
        assert (found.ranks, found.gain) == (first.ranks, first.gain)


def test_trials_that_ended_early_prove_nothing() -> None:
    session, ranks, ms = exact([20, 60], [30, 30])
    tried(session, ranks, ms)
    session.ranks = ranks
    whole = session.rank_trials
    assert straggler_of(session).level == "proven"  # type: ignore[union-attr]
    session.rank_trials = whole[:2]
    assert straggler_or_why_none(session) == (
        None, "It is not known whether one rank holds up the others: the trials ended before it was clear."
    )  # fmt: skip
    session.rank_trials = []
    assert straggler_or_why_none(session)[1].endswith("no trials were made.")


def observing(session: Session, ranks: Sequence[Rank], waits: Sequence[float]) -> Session:
    """The job with the milliseconds of a step for which each rank waits for its own data, and without trials."""
    seen = [replace(rank, wait_ms=wait) for rank, wait in zip(ranks, waits, strict=True)]
    return replace(session, ranks=seen, rank_trials=[])


def test_a_late_rank_is_observed_without_a_trial() -> None:
    session, ranks, _ = exact([325, 10], [8, 8])
    ranks[0].shares = {"load": 0.98, "collate": 0.02}
    found, why = straggler_or_why_none(observing(session, ranks, [321, 4]))
    assert found is not None and why == ""
    assert (found.ranks, found.kind, found.level) == ((0,), "input", "observed")
    assert found.sentence == (
        "Rank 0 holds up the job (observed: its workers give a batch every 325 ms, rank 1's every 10 ms); its workers "
        "spend 98 % in loading."
    )
    assert found.gain.value == pytest.approx(32.5) and 25 < found.gain.low < found.gain.high < 40


def test_what_was_observed_is_then_proven() -> None:
    """The level rises as soon as two pairs and the control are there; until then the observation stands."""
    session, ranks, ms = exact([10, 325], [8, 8])
    seen = observing(session, ranks, [4, 321])
    levels = []
    for _ in range(10):
        found = straggler_of(seen)
        assert found is not None and found.ranks == (1,)
        levels.append(found.level)
        change = next_trial(seen, seen.ranks)
        if change is None:
            break
        seconds = 5 * ms(change) / 1000
        trial = RankTrial(list(change.fed), list(change.delayed), change.delay_ms, len(seen.rank_trials), 5, seconds)
        seen.rank_trials.append(trial)
    assert levels == ["observed"] * 5 + ["proven"]


def test_a_trial_that_speaks_against_it_outweighs_what_was_observed() -> None:
    session, ranks, _ = exact([10, 325], [8, 8])
    seen = observing(session, ranks, [4, 321])
    seen.rank_trials = [RankTrial([], [], 0.0, 0, 5, 1.6), RankTrial([1], [], 0.0, 1, 5, 1.6)]
    assert straggler_of(seen) is None


def test_observed_in_a_job_that_was_not_fed_from_a_cache() -> None:
    session, ranks, _ = exact([60, 20, 20], [30, 30, 30])
    session.windows = session.windows_of("baseline")
    found = straggler_of(observing(session, ranks, [30, 1, 1]))
    assert found is not None and (found.ranks, found.level) == ((0,), "observed")
    assert found.gain.value == pytest.approx(2.0)
    assert "every 60 ms, those of the others every 20 ms or sooner)" in found.sentence


def test_several_late_ranks_are_observed_together() -> None:
    session, ranks, _ = exact([20, 60, 21, 64, 22], [30] * 5)
    found = straggler_of(observing(session, ranks, [1, 30, 1, 33, 1]))
    assert found is not None and found.ranks == (1, 3)
    assert found.sentence.startswith(
        "Ranks 1 and 3 hold up the job (observed: their workers give a batch every 60 ms at best, those of the others "
        "every 22 ms or sooner)"
    )


def test_a_rank_without_workers_is_observed() -> None:
    session, ranks, _ = exact([60, 10], [30, 30])
    ranks[0] = replace(ranks[0], workers=0, worker_ms=None)
    found = straggler_of(observing(session, ranks, [30, 1]))
    assert found is not None and found.ranks == (0,)
    assert "(observed: its data takes 30 ms a batch, that of rank 1 10 ms)" in found.sentence


@pytest.mark.parametrize(
    "paces, waits",
    [
        ([60, 55], [30, 25]),  # equal but for noise
        ([60, 52], [30, 1]),  # no more apart than two equal ranks may be
        ([60, 20], [30, 20]),  # the other one waits for data as well
        ([60, 60, 20], [30, 30, 1]),  # most of the ranks
        ([40, 10], [2, 1]),  # the job's step is longer than that: something else takes it
        ([60, 20], [None, 1]),  # how long it waits is not known
    ],
)
def test_what_is_not_clear_is_not_observed(paces: Sequence[float], waits: Sequence[float | None]) -> None:
    session, ranks, _ = exact([60] * len(paces), [30] * len(paces), measured=paces)
    assert straggler_of(observing(session, ranks, waits)) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_in_jobs_of_noisy_equals_nobody_is_observed(count: int) -> None:
    """Paces and waits as recorded runs scatter them: 6 and 10 % from rank to rank, 200 jobs."""
    draw = random.Random(count)
    for _ in range(200):
        session, ranks, _ = exact(
            [60] * count, [30] * count, measured=[60 * (1 + draw.gauss(0, 0.06)) for _ in range(count)]
        )
        waits = [30 * max(0.0, 1 + draw.gauss(0, 0.2)) for _ in range(count)]
        assert straggler_of(observing(session, ranks, waits)) is None


def test_one_process_has_no_straggler() -> None:
    session, ranks, _ = exact([60], [30])
    assert next_trial(session, ranks) is None
    session.ranks = ranks
    assert straggler_or_why_none(session) == (None, "")


def test_a_job_that_was_not_fed_from_a_cache() -> None:
    session, ranks, _ = exact([60, 20], [30, 30])
    session.windows = session.windows_of("baseline")
    assert next_trial(session, ranks) is None
    session.ranks = ranks
    assert "was not fed from a cache" in straggler_or_why_none(session)[1]


def test_the_sentence_names_what_the_workers_do() -> None:
    session, ranks, ms = exact([20, 60], [30, 30])
    ranks[1].shares = {"load": 0.71, "transform": 0.29}
    found, _ = answered(session, ranks, ms)
    assert found.sentence.endswith(" as fast; its workers spend 71 % in loading.")
    assert found.to_dict().keys() == {"ranks", "kind", "gain", "sentence", "level"}


def test_pace() -> None:
    assert input_pace(Rank(0, 2, workers=4, worker_ms=100.0)) == 25.0
    assert input_pace(Rank(0, 2, workers=0, worker_ms=100.0, wait_ms=90.0)) == 90.0
    assert input_pace(Rank(0, 2, workers=4)) is None


def test_a_second_pass_goes_on_where_the_first_has_ended() -> None:
    """Trials of two passes are not neighbours in time, but count for the same answer."""
    session, ranks, ms = exact([20, 60], [30, 30])
    first = next_trial(session, ranks)
    assert first == Change()
    session.rank_trials.append(RankTrial([], [], 0.0, 7, 5, 5 * ms(first) / 1000, attempt=1))
    for number in range(40):
        change = next_trial(session, ranks)
        if change is None:
            break
        seconds = 5 * ms(change) / 1000
        trial = RankTrial(list(change.fed), list(change.delayed), change.delay_ms, number, 5, seconds, attempt=2)
        session.rank_trials.append(trial)
    found = straggler_of(replace(session, ranks=ranks))
    assert found is not None and found.ranks == (1,)


PLAIN, FED, OTHER = Change(), Change(fed=(2,)), Change(fed=(0,))
WAYS = {"p": PLAIN, "f": FED, "o": OTHER}


def made(ways: str, *ms: float, attempts: str = "") -> Session:
    """A session of trials in this order: plain, fed, or another one."""
    session = Session()
    for number, way in enumerate(ways):
        each = ms[number] if ms else 100.0
        attempt = int(attempts[number]) if attempts else 1
        trial = RankTrial(list(WAYS[way].fed), [], 0.0, number, 10, each / 100, attempt)
        session.rank_trials.append(trial)
    return session


def following(session: Session, bound: float = 1.0) -> Change:
    with pytest.raises(Needed) as needed:
        Trials(session).compare(PLAIN, FED, bound, PACE, 2)
    return needed.value.change


@pytest.mark.parametrize(
    "before, then",
    [
        ("", "p"),
        ("p", "f"),
        ("pf", "f"),
        ("pff", "p"),
        ("pffp", "p"),
        ("pffpp", "f"),
        ("o", "p"),
        ("opf", "f"),
        ("poop", "f"),
        ("pfo", "p"),
        ("po", "p"),
    ],
)
def test_the_order_is_reversed_from_pair_to_pair(before: str, then: str) -> None:
    """A plain trial at the end of another comparison opens the first pair of this one."""
    assert following(made(before)) == WAYS[then]


def test_a_plain_trial_counts_for_two_comparisons() -> None:
    trials = Trials(made("poopff", 100, 100, 100, 120, 60, 60))
    with pytest.raises(Needed):
        trials.compare(PLAIN, FED, 1.9, PACE, 2)
    assert trials.compare(PLAIN, FED, 1.2, PACE, 1).ratio.value == pytest.approx(2.0)


def test_only_neighbours_of_one_pass_are_pairs() -> None:
    assert following(made("pf", attempts="12")) == PLAIN
    assert following(made("pof")) == PLAIN


def test_trials_are_read_in_the_order_in_which_they_were_made() -> None:
    session = made("pffp", 100, 50, 50, 100)
    session.rank_trials.reverse()
    assert Trials(session).compare(PLAIN, FED, 1.2, PACE, 2).above is True


def test_a_decision_stands() -> None:
    """Trials after the first certain answer do not change it."""
    session = made("pffppf", 100, 50, 50, 100, 100, 400)
    assert Trials(session).compare(PLAIN, FED, 1.2, PACE, 2).ratio.value == pytest.approx(2.0)


def test_one_pair_may_be_enough() -> None:
    session = made("pf", 100, 100)
    assert Trials(session).compare(PLAIN, FED, 1.5, PACE, 1).above is False
    assert following(session, 1.5) == FED, "where two pairs are asked for"


def test_what_no_pair_decides_stays_open() -> None:
    ways = "pffp" * (MOST_PAIRS // 2)
    session = made(ways, *(100.0 + n % 3 for n in range(len(ways))))
    assert Trials(session).compare(PLAIN, FED, 1.001, PACE, 2).above is None


def test_if_no_more_come_a_pair_must_do() -> None:
    session = made("pf", 100, 50)
    assert Trials(session, closed=True).compare(PLAIN, FED, 1.2, PACE, 2).above is None
    with pytest.raises(Needed):
        Trials(made("p"), closed=True).compare(PLAIN, FED, 1.2, PACE, 2)


def test_what_was_fed_and_delayed() -> None:
    session = made("pfo")
    session.rank_trials.append(RankTrial([0, 2], [2], 12.5, 3, 10, 1.0))
    trials = Trials(session)
    assert trials.fed() == [(2,), (0,)]
    assert trials.delay_ms() == 12.5
    assert Trials(made("pf")).delay_ms() is None
