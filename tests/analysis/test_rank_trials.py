"""Pairs of trials of ranks, and which trial comes next."""

from __future__ import annotations

import pytest

from pipediag.analysis.numbers.estimate import PACE
from pipediag.analysis.ranks.trials import MOST_PAIRS, Change, Needed, Trials
from pipediag.session import RankTrial, Session

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
