"""Every window is read as if it had met its share of the rare long steps."""

from __future__ import annotations

import pytest

from pipediag.analysis.numbers.ladder import LadderView
from pipediag.analysis.numbers.rare_steps import RareSteps
from pipediag.analysis.verdict import measured_share, starved_share
from pipediag.session import LONGER, Account, SlowBatches, Window

from ..made import make, waits
from .test_verdict import judged


def window(rung: str, steps: int, ms: float, *, round_: int = 0, waits: float = 0.0, trains: float = 0.0) -> Window:
    """Return a window of steps of ``ms``, in which one step waits and trains longer by these milliseconds."""
    seen = {"wait_ms": 2.0 + waits / steps, "next_ms": 2.0 + waits / steps} if rung in ("baseline", LONGER) else {}
    if waits or trains:
        seen |= {"rare": 1.0, "rare_wait_ms": waits / steps, "rare_train_ms": trains / steps}
        seen |= {"rare_wait_root": waits, "rare_train_root": trains}
    return Window(rung, round_, steps, (steps * ms + waits + trains) / 1000, steps, evidence=seen)


def test_a_window_gets_its_share() -> None:
    """900 ms of waiting in 100 steps, of which the windows of ten steps met none."""
    short, long, fed = window("baseline", 10, 10), window(LONGER, 80, 10, waits=900), window("device", 10, 8)
    rare = RareSteps([short, long, fed])
    assert rare.waits == (pytest.approx(10.0), pytest.approx(10.0)) and rare.trains == (0.0, 0.0)
    assert rare.spread(short).ms_per_step == pytest.approx(20.0)
    assert rare.spread(short).evidence["wait_ms"] == rare.spread(short).evidence["next_ms"] == pytest.approx(12.0)
    assert rare.spread(long).ms_per_step == pytest.approx(20.0)
    assert rare.spread(fed) is fed


def test_a_step_that_trains_longer_does_so_whatever_feeds_it() -> None:
    """A checkpoint of 300 ms fell into the window that was fed from the device."""
    windows = [window("baseline", 50, 10), window("device", 50, 8, trains=300)]
    rare = RareSteps(windows)
    assert [rare.spread(one).ms_per_step for one in windows] == [pytest.approx(13.0), pytest.approx(11.0)]
    assert rare.trains == (pytest.approx(3.0), pytest.approx(3.0))


@pytest.mark.parametrize("waits, trains", [(450.0, 0.0), (0.0, 900.0), (20.0, 70.0)])
def test_the_account_still_closes(waits: float, trains: float) -> None:
    met = window("baseline", 10, 100, waits=waits, trains=trains)
    step = met.ms_per_step
    met.account = Account(cpu_ms=step - 30, queue_ms=5, waits_ms=20, other_ms=5)
    account = RareSteps([met, window(LONGER, 90, 100)]).spread(met).account
    assert account is not None and account.queue_ms == 5
    total = account.cpu_ms + account.queue_ms + account.waits_ms + account.other_ms
    assert total == pytest.approx(100 + (waits + trains) / 100)


def test_the_verdict_holds_for_the_loop_with_its_rare_steps() -> None:
    session = make({"device": 50.0, "baseline": 50.0}, noise=0.0, workers=0)
    assert judged(session).verdict.bottleneck == "none"
    steps = sum(one.steps for one in session.windows if one.rung == "baseline")
    session.windows.append(window(LONGER, 500, 50.0, round_=9, waits=50.0 * (500 + steps)))
    share = measured_share(LadderView(session))
    assert share is not None and share.value == pytest.approx(0.5)
    told = starved_share(LadderView(session))
    assert told is not None and told.low < 0.05, "one such step may be one too many"


@pytest.mark.parametrize("slow", [1, 25])
def test_many_of_them_are_known_well(slow: int) -> None:
    session = make({"device": 50.0, "baseline": 50.0}, noise=0.0, workers=0)
    long = window(LONGER, 500, 50.0, round_=9, waits=12_500)
    long.evidence |= {"rare": slow, "rare_wait_root": 12_500 / slow**0.5}
    session.windows.append(long)
    share = starved_share(LadderView(session))
    assert share is not None and (share.low > 0.15) is (slow > 1)


def share_beside(longer: Window, slow: list[float], pause: float = 0.0, workers: int = 2) -> tuple[float, float]:
    """Return the ends of the starved share of a loop that waits 50 of 100 ms, with a long window and slow batches."""
    session = make({"device": 50.0, "baseline": 100.0}, noise=0.0, workers=workers, evidence=waits(50.0))
    longer.account = Account(cpu_ms=1, queue_ms=0, waits_ms=50, other_ms=1, left_out_s=pause)
    session.windows.append(longer)
    session.slow_batches = SlowBatches(100, slow)
    found = starved_share(LadderView(session))
    assert found is not None
    return found.low, found.high


def long(ms: float, waits: float) -> Window:
    return Window(LONGER, 9, 100, ms / 10, 100, evidence={"wait_ms": waits})


def test_what_was_seen_beside_the_windows_widens_the_interval() -> None:
    """One slow batch of 20 s in 100, in which others fill queues for 400 ms: 196 ms a step."""
    low, high = share_beside(long(100, 50), [])
    assert 0.3 < low < 0.5 < high < 0.7
    later_low, later_high = share_beside(long(250, 200), [])
    assert later_low == low and later_high > 0.75, "the long window waited for more"
    sooner_low, sooner_high = share_beside(long(55, 5), [])
    assert sooner_low < 0.15 and sooner_high == high, "it waited for less"
    slow_low, slow_high = share_beside(long(100, 50), [20_000.0])
    assert slow_low == low and slow_high == pytest.approx(high + (246 / 296 - 0.5), abs=0.005)


def test_a_process_that_stood_still_made_no_slow_batch() -> None:
    assert share_beside(long(100, 50), [20_000.0], pause=21.0) == share_beside(long(100, 50), [])


def test_pauses_of_several_windows_are_how_the_steps_are() -> None:
    """Two steps take 5 s longer, in which the training sleeps: it does so under each rung."""
    session = make({"device": 50.0, "baseline": 100.0}, noise=0.0, workers=0, evidence=waits(50.0))
    plain = session.windows_of("baseline")
    for window in plain[:2]:
        window.account = Account(cpu_ms=50, waits_ms=50, left_out_s=5.0)
    ladder = LadderView(session)
    longer = 10_000 / sum(window.steps for window in session.windows)
    assert ladder.ms("baseline").value == pytest.approx(100 + longer)
    assert ladder.ms("device").value == pytest.approx(50 + longer)
    assert (ladder.rare.waits.ms, ladder.rare.trains.ms, ladder.cut_out) == (0.0, pytest.approx(longer), [])
    plain[0].account = None
    alone = LadderView(session)
    assert alone.ms("baseline").value == pytest.approx(100) and alone.cut_out == [(5.0, False)]
    plain[0].account = Account(cpu_ms=50, waits_ms=50, stopped_s=9.0)
    assert LadderView(session).cut_out == [(9.0, True), (5.0, False)]
