"""Which remedies are tried, whether one pays, when its trial ends, and what reports say about it."""

from __future__ import annotations

import io
import random
import textwrap
from pathlib import Path
from typing import Any

import pytest

from pipediag.analysis import diagnose_session
from pipediag.analysis.numbers.ladder import LadderView
from pipediag.analysis.numbers.paired_windows import FIRST_LOOKS, LEAST, sure_gain
from pipediag.analysis.summary import summarise
from pipediag.analysis.trials.remedy import (
    FEWEST,
    FIRST_LOOK,
    HAND_OFF,
    Outcome,
    any_kept,
    at_ceiling,
    best,
    by_work,
    following,
    left_to_try,
    loading_matters,
    next_trial,
    outcome,
    paired,
    reserved,
    speedup,
    to_dict,
    under_way,
    why_no_handoff,
    why_none,
)
from pipediag.host.progress_line import ProgressLine
from pipediag.report import RENDERERS, text
from pipediag.report.remedy import section
from pipediag.session import (
    DECODED,
    HANDED_OVER,
    LOADED_ONCE,
    REMEDIED,
    RUNGS,
    Apart,
    BatchFacts,
    Edit,
    Elsewhere,
    Keeping,
    Kept,
    Place,
    Proof,
    Remedy,
    Rung,
    Session,
    Window,
)
from pipediag.session.events import Applying
from pipediag.session.remedies import DECODING

from ..golden import agrees
from ..made import but, climbing, inside, lacking, leaf, make, then_tried, without

DIFF = (
    "--- train.py\n+++ train.py\n@@ -1 +1,3 @@\n+import pipediag\n loader = f()\n"
    '+loader = pipediag.offload(loader, "cuda")\n'
)


def tried(ratio: float, rounds: int, noise: float = 0.0, remedy: Remedy | None = None, after: float = 100.0) -> Session:
    """A measured ladder, then ``rounds`` of a trial: ``after`` ms a step, under the remedy ``ratio`` times fewer."""
    remedy = remedy or Remedy(device="cuda:0", moved=[Place("Blur", "aug.py:3")])
    session, draw = then_tried(make(climbing(raw=30.0)), REMEDIED, ratio, rounds, after / 100, remedy), random.Random(5)
    for window in session.windows[-2 * rounds :] if noise else []:
        window.seconds *= 1 + draw.gauss(0, noise)
    return session


def then_handed(session: Session, ratio: float, rounds: int, **remedy: Any) -> Session:
    """Add a trial of the hand-off alone."""
    return then_tried(session, HANDED_OVER, ratio, rounds, 1.0, Remedy(device="cuda:0", **remedy))


def result(session: Session, rung: str = REMEDIED) -> Outcome:
    came = outcome(session, rung)
    assert came is not None
    return came


def test_none_was_asked_for() -> None:
    session = make(climbing())
    assert outcome(session) is None and to_dict(session) is None
    assert "remedy" not in RENDERERS[".txt"](diagnose_session(session))


def test_it_pays() -> None:
    session = tried(2.0, FIRST_LOOK, noise=0.02)
    came = result(session)
    assert came.applied and not came.reverted and not came.why_not
    assert came.speedup is not None and came.speedup.low < 2.0 < came.speedup.high


@pytest.mark.parametrize(
    ("ratio", "noise", "why"),
    [(0.7, 0.01, "slower"), (1.004, 0.0001, "not faster"), (1.02, 0.05, "it is open whether the loop is faster")],
)
def test_it_is_reverted(ratio: float, noise: float, why: str) -> None:
    came = result(tried(ratio, 8, noise))
    assert not came.applied and why in came.reverted


class TestByTheWorkersTime:
    """A loop that waits for its workers: its pace varies by 8 %, their time for a batch by 3 %."""

    def session(self, ratio: float, rounds: int, seed: int = 5, waits: float = 60.0) -> Session:
        session = tried(ratio, rounds)
        draw = random.Random(seed)
        for window in session.windows:
            if window.rung == "baseline":
                made = 400.0 * (1 + draw.gauss(0, 0.03))
                window.seconds = window.steps * made / 4 * (1 + draw.gauss(0, 0.08)) / 1000
                window.evidence = {"wait_ms": waits, "worker_ms": made}
        return session

    def test_two_rounds_decide_a_gain_of_a_third(self) -> None:
        kept = [result(self.session(1.35, 2, seed)) for seed in range(40)]
        assert sum(one.applied for one in kept) >= 38
        plainly = [sure_gain(*paired(self.session(1.35, 2, seed), "baseline", REMEDIED)) for seed in range(40)]
        assert sum(map(bool, plainly)) < 30

    def test_it_keeps_nothing_that_gains_nothing(self) -> None:
        assert sum(result(self.session(1.0, 3, seed)).applied for seed in range(200)) <= 2

    def test_the_pace_counts_for_a_loop_that_does_not_wait(self) -> None:
        session = self.session(1.35, 2, waits=1.0)
        assert by_work(session, REMEDIED)[:2] == paired(session, "baseline", REMEDIED)

    def test_rounds_without_a_window_of_the_remedy_do_not_count(self) -> None:
        session = lacking(self.session(1.35, 3), REMEDIED, after=12)
        slow, fast, _ = by_work(session, REMEDIED)
        assert len(slow) == len(fast) == 2


def test_few_rounds_prove_nothing() -> None:
    session = tried(3.0, FEWEST - 1)
    came = result(session)
    assert not came.applied and came.open and "--apply-budget" in came.reverted
    session.script.argv = ["train.py", "--epochs", "3"]
    decides = "pipediag analyze --apply --plan plan.json --apply-budget 300 train.py --epochs 3"
    assert summarise(diagnose_session(session)).next == f"next, for an answer: {decides}"
    assert result(tried(3.0, FEWEST)).applied


def test_windows_without_a_partner_do_not_count() -> None:
    session = tried(3.0, FEWEST)
    del session.windows[-1]
    assert not result(session).applied


def test_a_script_that_fails_under_it_goes_without() -> None:
    session = tried(3.0, 8)
    session.rungs[REMEDIED] = Rung(REMEDIED, False, "the script failed on these batches: E")
    came = result(session)
    assert not came.applied and came.reverted.endswith("E") and next_trial(session) == []


class TestNextTrial:
    def test_goes_on_until_the_first_look(self) -> None:
        for rounds in range(FIRST_LOOK):
            assert next_trial(tried(2.0, rounds)) == ["baseline", REMEDIED]
        assert next_trial(tried(2.0, FIRST_LOOK)) == []

    @pytest.mark.parametrize("ratio", [0.8, 1.0, 2.0])
    def test_ends_when_it_is_decided_either_way(self, ratio: float) -> None:
        looks = FIRST_LOOK if ratio != 1.0 else FIRST_LOOKS[1]  # that nothing is gained takes longer to show
        assert next_trial(tried(ratio, looks, noise=0.001)) == []

    def test_between_two_looks_it_goes_on(self) -> None:
        """Five rounds say more than four, but a look after every round would multiply chance errors."""
        session = tried(1.0, 0)
        for round_, gain in enumerate((1.2, 0.95, 1.1, 1.0, 3.0), 100):
            assert next_trial(session) == ["baseline", REMEDIED]
            session.windows += [Window("baseline", round_, 10, 1.0), Window(REMEDIED, round_, 10, 1 / gain)]
        assert next_trial(session) == ["baseline", REMEDIED]

    def test_a_gain_that_shows_in_every_round_is_kept(self) -> None:
        """Recorded speedups: 1.35, 1.38 and 1.71. Differences between rounds are no reason to reject."""
        session = tried(1.0, 0)
        for round_, gain in enumerate((1.35, 1.38, 1.71), 100):
            session.windows += [Window("baseline", round_, 10, 1.0), Window(REMEDIED, round_, 10, 1 / gain)]
        assert next_trial(session) == []
        came = result(session)
        assert came.applied and came.speedup is not None
        assert came.speedup.value == pytest.approx((1.35 * 1.38 * 1.71) ** (1 / 3))
        assert came.speedup.low > LEAST

    def test_seldom_pays_by_chance(self) -> None:
        """There is no gain at all, and the interval is looked at again and again."""
        fooled = 0
        for seed in range(60):
            session, draw = tried(1.0, 0), random.Random(seed)
            round_ = 1 + max(w.round for w in session.windows)
            while next_trial(session) and round_ < 40:
                for rung in ("baseline", REMEDIED):
                    session.windows.append(Window(rung, round_, 10, 1.0 + draw.gauss(0, 0.03)))
                round_ += 1
            fooled += result(session).applied
        assert fooled <= 2


def test_the_ladder_knows_nothing_of_the_trial() -> None:
    """The machine may have become faster or slower meanwhile."""
    session = tried(2.0, 8, after=500.0)
    assert LadderView(session).ms("baseline").value < 120
    assert LadderView(session).ms(REMEDIED).value == 250.0
    assert "remedied" not in session.measured()
    before, after = diagnose_session(make(climbing(raw=30.0))), diagnose_session(session)
    assert (before.verdict, before.waterfall, before.partial) == (after.verdict, after.waterfall, after.partial)
    ratio = speedup(session)
    assert ratio is not None and ratio.value == pytest.approx(2.0)


def whole(**more: object) -> Remedy:
    return Remedy(
        device="cuda:0",
        moved=[Place("Blur", "aug.py:3"), Place("Normalize")],
        stayed=[Kept("Warp", "numpy would need the pixels"), Kept("Decode", "it comes before Warp")],
        proof=Proof(
            True,
            64,
            apart=[Apart("blur", 64, 1.0, 1e-5, True), Apart("normalize", 64)],
            elsewhere=[Elsewhere("Blur", "by one level")],
        ),
        memory_bytes=300 << 20,
        edit=Edit(diff=DIFF),
        **more,  # type: ignore[arg-type]
    )


class TestHandOff:
    def test_is_judged_by_its_own_rounds(self) -> None:
        session = then_handed(tried(0.7, 8), 1.3, FIRST_LOOK)
        assert not result(session).applied and result(session, HANDED_OVER).applied
        ratio = speedup(session, HANDED_OVER)
        assert ratio is not None and ratio.value == pytest.approx(1.3)
        kept = best(session)
        assert kept is not None and kept.rung == HANDED_OVER

    def test_where_neither_pays_the_offload_answers(self) -> None:
        kept = best(then_handed(tried(0.7, 8), 0.9, 8))
        assert kept is not None and (kept.rung, kept.applied) == (REMEDIED, False)
        told = why_none(then_handed(tried(0.7, 8), 0.9, 8))
        assert told == "transforms moved: the loop is slower under it; the hand-off alone: the loop is slower under it"
        assert why_none(tried(0.7, 8)) == "the loop is slower under it"
        assert why_none(then_handed(tried(0.7, 8), 1.3, 8)) == why_none(make(climbing())) == ""

    def test_its_rounds_go_on_until_it_is_decided(self) -> None:
        session = tried(0.7, 8)
        for rounds in range(FIRST_LOOK):
            assert next_trial(then_handed(tried(0.7, 8), 1.3, rounds)) == ["baseline", HANDED_OVER]
        assert next_trial(then_handed(session, 1.3, FIRST_LOOK)) == []

    def test_a_script_that_fails_under_it_goes_without(self) -> None:
        session = then_handed(tried(0.7, 8), 1.3, FIRST_LOOK)
        session.rungs[HANDED_OVER] = Rung(HANDED_OVER, False, "the script failed on these batches: E")
        assert result(session, HANDED_OVER).reverted.endswith("E") and next_trial(session) == []

    def test_progress_names_it(self) -> None:
        said = io.StringIO()
        progress, session = ProgressLine(said), tried(0.7, 8)
        progress(Applying(ended="settled", rung=HANDED_OVER), session)
        progress(Applying(budget=20.0), then_handed(session, 1.0, 0))
        first, *then = said.getvalue().splitlines()
        assert first == "pipediag: trying the hand-off alone"
        assert " ".join(line.removeprefix("pipediag: ") for line in then) == f"{HAND_OFF}; measuring whether it pays"

    def test_json(self) -> None:
        session = then_handed(tried(0.7, 8), 1.3, 8, edit=Edit(diff=DIFF), memory_bytes=1 << 20)
        published = diagnose_session(Session.from_dict(session.to_dict())).to_dict()
        assert not published["remedy"]["applied"] and "moved" in published["remedy"]
        told = published["handoff"]
        assert told["applied"] and told["how"]["diff"] == DIFF and told["memory_bytes"] == 1 << 20
        assert told["measured_speedup"]["value"] == pytest.approx(1.3) and told["rounds"] == 8
        assert not {"moved", "stayed", "certificate"} & told.keys()


class TestDecoding:
    def test_alone_it_is_kept_or_says_why_not(self) -> None:
        """There may be no time for the offload, which is tried after it."""
        for ratio in (3.0, 0.7):
            session = decoded_alone(ratio)
            kept = best(session)
            assert kept is not None and (kept.rung, kept.applied) == (DECODED, ratio > 1)
            assert ("slower" in why_none(session)) == (ratio < 1)

    @pytest.mark.parametrize(
        ("exact", "ratio", "rung"),
        [(2.0, 3.0, DECODED), (3.0, 2.0, REMEDIED), (0.7, 1.5, DECODED), (1.5, 0.7, REMEDIED)],
    )
    def test_the_faster_one_is_kept(self, exact: float, ratio: float, rung: str) -> None:
        kept = best(decoded(exact, ratio))
        assert kept is not None and (kept.rung, kept.applied) == (rung, True)

    def test_why_nothing_is_decoded_is_no_reason_to_keep_nothing(self) -> None:
        assert why_none(REPORTED["nothing is decoded"]) == ""

    def test_json(self) -> None:
        session = decoded(2.0, 3.0)
        published = diagnose_session(Session.from_dict(session.to_dict())).to_dict()["decoded"]
        assert published["applied"] and published["certificate"]["apart"][0]["name"] == DECODING
        assert diagnose_session(tried(2.0, 8)).to_dict()["decoded"] is None


class TestReports:
    def test_without_a_certain_change_the_command_is_offered(self) -> None:
        shown = RENDERERS[".md"](diagnose_session(REPORTED["no change is certain"]))
        assert "```\npipediag run train.py\n```" in shown and "```diff" not in shown

    def test_json_is_read_back_to_the_same(self) -> None:
        session = tried(2.0, 8, remedy=whole())
        again = Session.from_dict(session.to_dict())
        assert again.remedy == session.remedy
        published = diagnose_session(again).to_dict()["remedy"]
        assert published == diagnose_session(session).to_dict()["remedy"]
        assert published["applied"] and published["how"]["diff"] == DIFF and published["rounds"] == 8
        assert published["certificate"]["apart"][0]["largest"] == 1.0
        assert published["certificate"]["elsewhere"] == [{"name": "Blur", "how": "by one level"}]


def measured(session: Session, rung: str, remedy: Remedy, ratio: float, each: float = 1.0) -> Session:
    return then_tried(session, rung, ratio, 8, each, remedy)


def offloaded(ratio: float, **facts: Any) -> Session:
    session = make(climbing(raw=30.0), **facts)
    return measured(session, REMEDIED, Remedy(device="cuda:0", moved=[Place("Blur", "aug.py:3")]), ratio)


def kept(session: Session, ratio: float, free: int = 90_000_000_000, **remedy: Any) -> Session:
    keeping = Keeping("kept after Resize (aug.py:31)", 6_100_000_000, free)
    return measured(session, LOADED_ONCE, Remedy(device="cuda:0", keeping=keeping, **remedy), ratio)


class TestOrder:
    def test_a_cache_follows_where_loading_takes_time(self) -> None:
        evidence = {"baseline": {"worker_ms": 400.0, "worker_cpu": 1.0, "process_cpu": 0.1}}
        for gain in (0.7, 1.3):
            session = offloaded(gain, evidence=evidence, inside=inside(3.0, load=3.0))
            assert following(session, REMEDIED) == LOADED_ONCE
            assert reserved(session, REMEDIED) == [LOADED_ONCE]
        for gain, rung in ((2.0, None), (0.7, HANDED_OVER)):
            session = offloaded(gain, evidence=evidence, inside=inside(3.0, load=0.0))
            assert following(session, REMEDIED) == rung
            assert reserved(session, REMEDIED) == []

    def test_what_nobody_has_seen_is_tried(self) -> None:
        assert following(offloaded(1.3), REMEDIED) == LOADED_ONCE

    def test_without_a_ladder_it_is_not_tried(self) -> None:
        session = measured(make({"baseline": 50.0}), REMEDIED, Remedy(device="cuda:0"), 0.7)
        assert following(session, REMEDIED) == HANDED_OVER

    @pytest.mark.parametrize(
        ("rung", "slower", "enough"), [(REMEDIED, 1.03, True), (DECODED, 1.03, True), (DECODED, 1.1, False)]
    )
    def test_nothing_follows_a_remedy_that_leaves_no_input_cost(self, rung: str, slower: float, enough: bool) -> None:
        session = make(climbing(raw=30.0), noise=0.0)
        ceiling, now = (session.windows_of(name)[0].ms_per_step for name in ("device", "baseline"))
        measured(session, rung, Remedy(device="cuda:0"), now / ceiling / slower, each=now / 100)
        assert at_ceiling(session) == enough
        assert following(session, REMEDIED) == (None if enough else LOADED_ONCE)

    def test_the_hand_off_is_last_and_only_if_nothing_pays(self) -> None:
        assert following(kept(offloaded(0.7), 0.9), LOADED_ONCE) == HANDED_OVER
        assert following(kept(offloaded(0.7), 1.9), LOADED_ONCE) is None
        assert following(kept(offloaded(2.0), 0.9), LOADED_ONCE) is None
        over = measured(kept(offloaded(0.7), 0.9), HANDED_OVER, Remedy(device="cuda:0"), 0.9)
        assert following(over, HANDED_OVER) is None

    def test_decoding_comes_first_where_it_is_allowed(self) -> None:
        """It contains the offload, so it is decided even if time runs out."""
        assert [left_to_try(make(climbing()), approximate) for approximate in (False, True)] == [REMEDIED, DECODED]
        decoded = measured(make(climbing(raw=30.0)), DECODED, Remedy(device="cuda:0"), 2.0)
        assert under_way(decoded) == DECODED
        assert following(decoded, DECODED) == REMEDIED and reserved(decoded, DECODED) == [REMEDIED]
        assert under_way(measured(decoded, REMEDIED, Remedy(device="cuda:0"), 0.9)) == REMEDIED

    def test_what_is_left_to_try(self) -> None:
        """A later pass of the script goes on with the trial that is open, or with the next one."""
        assert left_to_try(tried(2.0, FIRST_LOOK - 1), False) == REMEDIED, "it is open"
        assert left_to_try(offloaded(1.3), False) == LOADED_ONCE, "it is decided"
        not_tried = make(climbing(raw=30.0))
        not_tried.remedy = Remedy(device="cpu", why_not="nothing moves")
        failed = tried(2.0, 1)
        failed.rungs[REMEDIED] = Rung(REMEDIED, False, "the script failed on these batches")
        assert left_to_try(not_tried, False) == left_to_try(failed, False) == LOADED_ONCE
        over = kept(offloaded(2.0), 0.9)
        assert left_to_try(over, False) is None and any_kept(over)
        assert not any_kept(kept(offloaded(0.7), 0.9)) and not any_kept(make(climbing()))

    def test_it_is_under_way_once_it_is_prepared(self) -> None:
        assert under_way(make(climbing(raw=30.0))) is None
        assert under_way(kept(offloaded(2.0), 1.0, free=0)) == LOADED_ONCE


class TestLoadingMatters:
    @pytest.mark.parametrize(
        ("load", "worker_ms", "costs", "matters"),
        [
            (8.0, 400.0, {"raw": 30.0}, True),
            # Loading takes no time, or the loop does not wait.
            (0.001, 400.0, {"raw": 30.0}, False),
            (8.0, 20.0, dict.fromkeys(RUNGS[1:], 0.01), False),
        ],
    )
    def test_where(self, load: float, worker_ms: float, costs: dict[str, float], matters: bool) -> None:
        evidence = {"baseline": {"worker_ms": worker_ms, "worker_cpu": 1.0, "process_cpu": 0.1}}
        found = inside(10.0 - load, load=load)
        assert loading_matters(make(climbing(**costs), noise=0.0, evidence=evidence, inside=found)) is matters

    def test_not_where_reading_back_takes_as_long(self) -> None:
        session = make({"baseline": 50.0}, inside=inside(0.05, load=0.05))
        assert loading_matters(session) is False
        session = make({"baseline": 50.0}, inside=inside(3.0, load=3.0))
        assert loading_matters(session) is None

    def test_nobody_knows_before_the_ladder(self) -> None:
        assert loading_matters(make({"baseline": 50.0})) is None


class TestWhyNoHandOff:
    """Whether the hand-off alone can pay, from the ladder."""

    @pytest.mark.parametrize(
        "session",
        [
            make(climbing(worker=7.0)),
            make(climbing(host=7.0)),
            # What was not measured is tried.
            make(without(climbing(host=0.01, worker=0.01), "worker")),
            make({"baseline": 50.0}),
        ],
    )
    def test_it_may_pay(self, session: Session) -> None:
        assert why_no_handoff(session) == ""

    def test_it_may_pay_where_the_workers_collate_for_long(self) -> None:
        ladder = {**climbing(host=0.01, worker=0.01), "raw": 100.0, "warm": 120.0, "baseline": 120.0}
        for collate_ms, may_pay in ((80.0, True), (0.4, False)):
            evidence = {"baseline": {"worker_ms": 400.0, "worker_cpu": 1.0, "process_cpu": 1.0}}
            evidence["sample"] = {"worker_ms": collate_ms}
            session = make(ladder, noise=0.0, evidence=evidence, inside=inside(3.0, 4.0))
            assert (why_no_handoff(session) == "") is may_pay

    def test_it_does_not_where_neither_costs(self) -> None:
        why = why_no_handoff(make(climbing(host=0.01, worker=0.01), noise=0.0))
        assert why == "handing a batch over and copying it cost at most 0.02 ms of a 50.8 ms step"

    def test_it_does_not_where_the_loop_keeps_its_batches_on_the_host(self) -> None:
        session = make(climbing(worker=7.0))
        session.batch = BatchFacts(leaves=[leaf(copied=False), leaf("[1]", copied=False)])
        assert "copies no part of its batches" in why_no_handoff(session)
        session.batch.leaves[1].copied = None  # nobody watched it
        assert why_no_handoff(session) == ""


class TestGain:
    def test_all_samples_fit(self) -> None:
        ratio = speedup(kept(offloaded(1.5), 3.0), LOADED_ONCE)
        assert ratio is not None and ratio.value == pytest.approx(3.0)

    def test_half_of_the_samples_fit(self) -> None:
        """Half of the time shrinks to a third: 1 / (1/2 + 1/6)."""
        ratio = speedup(kept(offloaded(1.2), 3.0, free=3_050_000_000), LOADED_ONCE)
        assert ratio is not None and ratio.value == pytest.approx(1.5)
        assert ratio.low <= ratio.value <= ratio.high

    def test_none_fits(self) -> None:
        came = outcome(kept(offloaded(1.5), 3.0, free=0), LOADED_ONCE)
        assert came is not None and not came.applied

    def test_the_fastest_is_kept(self) -> None:
        for offload, cache, rung in ((1.5, 3.0, LOADED_ONCE), (3.0, 1.5, REMEDIED), (0.7, 1.5, LOADED_ONCE)):
            came = best(kept(offloaded(offload), cache))
            assert came is not None and (came.rung, came.applied) == (rung, True)
        came = best(kept(offloaded(2.0), 2.0))
        assert came is not None and came.rung == REMEDIED, "no more than the offload, but it takes memory"
        assert "samples loaded once: the loop is slower under it" in why_none(kept(offloaded(0.7), 0.8))


def decoded(exact: float, ratio: float, **remedy: Any) -> Session:
    """A trial of the offload, then one with JPEGs decoded on the device too."""
    decoding = but(whole(**remedy), proof=Proof(True, 64, apart=[Apart(DECODING, 64, 1.0, 1e-4, levels=True)]))
    return then_tried(tried(exact, 8, remedy=whole()), DECODED, ratio, 8, 1.0, decoding)


def decoded_alone(ratio: float) -> Session:
    return but(lacking(decoded(1.0, ratio), REMEDIED), remedy=None)


def proven(**proof: Any) -> Session:
    return tried(2.0, 8, remedy=Remedy(device="cpu", moved=[Place("Blur")], proof=Proof(True, 64, **proof)))


def of_a_version_without_elsewhere() -> Session:
    """A file that does not say what is exact."""
    written = proven().to_dict()
    del written["remedy"]["proof"]["elsewhere"]
    return Session.from_dict(written)


NOT_EDITED = Edit(why_not="loader is made in a library")
#: Sessions of which golden/remedy.txt shows what is said of the remedies.
REPORTED: dict[str, Session] = {
    "the offload pays": tried(2.0, 8, remedy=whole(plan_file="a plan.json")),
    "transforms of one reason stand together": tried(
        2.0, 8, remedy=but(
            whole(), stayed=[*(Kept(name, "it gets arrays") for name in "ABCD"), Kept("E", "it draws"), Kept("", "so")]
        ),
    ),
    "what does not pay is not offered": tried(0.5, 8, remedy=whole()),
    "no change is certain": tried(
        2.0, 8, remedy=Remedy(device="cuda:0", moved=[Place("Blur")], edit=NOT_EDITED)
    ),
    "nothing moves": tried(
        2.0, 0, remedy=Remedy(device="cpu", why_not="Warp: it needs pixels", stayed=[Kept("Warp", "it needs pixels")])
    ),
    "exact": proven(elsewhere=[]),
    "exact on these samples": proven(elsewhere=[Elsewhere("Blur", "by one level")]),
    "not known to be exact": of_a_version_without_elsewhere(),
    "the hand-off alone; without a plan run would not use it alone": then_handed(
        tried(0.7, 8), 1.3, 8, edit=NOT_EDITED
    ),
    "the hand-off alone, with a plan": then_handed(
        tried(0.7, 8), 1.3, 8, edit=Edit(diff=DIFF), plan_file="kept.json"
    ),
    "the hand-off was not tried": then_handed(
        tried(2.0, 0, remedy=Remedy(device="cpu", why_not="Warp: it needs pixels")), 1.0, 0, why_not="it is for a GPU"
    ),
    "decoding pays more": decoded(2.0, 3.0),
    "decoding pays more, as the plan says": decoded(2.0, 3.0, plan_file="plan.json"),
    "decoding pays less": decoded(3.0, 2.0),
    "decoding alone pays": decoded_alone(3.0),
    "decoding alone does not": decoded_alone(0.7),
    "nothing is decoded": but(
        tried(2.0, 8, remedy=whole()), decoded=Remedy(device="cpu", why_not="the device cpu has no JPEG engine")
    ),
    "samples are kept": kept(
        offloaded(1.5), 3.0, edit=Edit(diff="+loader = pipediag.cache(loader)\n"), moved=[Place("Flip")]
    ),
    "half of the samples fit": kept(offloaded(0.7), 3.0, free=3_050_000_000),
    "samples are not kept": but(
        offloaded(0.7),
        loaded_once=Remedy(why_not="nothing is kept: the samples of an iterable dataset have no index"),
    ),
}  # fmt: skip


def test_what_is_said_of_the_remedies() -> None:
    told = [
        f"{name}\n\n{textwrap.indent(text.write([section(diagnose_session(session))]), '    ')}"
        for name, session in REPORTED.items()
    ]
    agrees(Path(__file__).parent / "golden" / "remedy.txt", "\n".join(told))


class TestPublished:
    def test_json(self) -> None:
        session = kept(offloaded(0.7), 3.0)
        told = to_dict(Session.from_dict(session.to_dict()), LOADED_ONCE)
        assert told is not None and told["applied"]
        assert told["keeping"] == {
            "what": "kept after Resize (aug.py:31)",
            "nbytes": 6_100_000_000,
            "free": 90_000_000_000,
        }
        assert "keeping" not in (to_dict(session) or {})
