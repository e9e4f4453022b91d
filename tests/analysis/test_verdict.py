"""The verdict: every class, with its band, co-bottlenecks, ceiling and numbers; the interim result in a few words."""

from __future__ import annotations

import json
import math
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipediag.analysis import Diagnosis, diagnose_session
from pipediag.analysis.compare import compare
from pipediag.analysis.numbers.intervals import Interval
from pipediag.analysis.numbers.ladder import LadderView
from pipediag.analysis.stopping import next_round
from pipediag.analysis.summary import summarise
from pipediag.analysis.thresholds import GATE, SEVERE
from pipediag.analysis.verdict import decided, measured_share, so_far, starved_share
from pipediag.analysis.words import percent
from pipediag.report import RENDERERS
from pipediag.session import RUNGS, STAGE_OF_RUNG, Account, HotLine, Observed, Place, Session

from ..made import FLAT, blocks, but, climbing, cut, inside, make, waits, without

CLASSES = {
    "none", "transfer", "ipc", "collate", "transform", "load", "storage", "startup", "contention", "inconclusive",
    "sampler",
}  # fmt: skip


def judged(session: Session, *says: str, **expected: Any) -> Diagnosis:
    """Diagnose a session: all of ``says`` is in its sentence, and its verdict's attributes are the expected ones."""
    diagnosis = diagnose_session(session)
    verdict = diagnosis.verdict
    assert verdict.bottleneck in CLASSES
    json.dumps(diagnosis.to_dict(), allow_nan=False)
    assert {name: getattr(verdict, name) for name in expected} == expected
    assert [part for part in says if part not in verdict.sentence] == [], verdict.sentence
    return diagnosis


def ceiling(stage: str, ms: float) -> tuple[str, Any]:
    """The next ceiling: what limits then, and the steps a second of a step that takes so long."""
    return stage, pytest.approx(1000 / ms, rel=0.01)


def costs(diagnosis: Diagnosis) -> dict[str, float]:
    return {piece.stage: piece.ms.value for piece in diagnosis.waterfall}


def thread(cpu_ms: float, queue_ms: float) -> dict[str, Account]:
    """Accounts of a training thread that computes 50 ms of a step under each rung, and this under the baseline."""
    return dict.fromkeys(RUNGS, Account(cpu_ms=50.0)) | {"baseline": Account(cpu_ms=cpu_ms, queue_ms=queue_ms)}


@pytest.mark.parametrize(("beside", "verdict"), [(0.0, "none"), (2.0, "none"), (20.0, "inconclusive")])
def test_no_loop_is_free_that_waits_for_another_loader(beside: float, verdict: str) -> None:
    """What it waits there is part of its own step under each rung."""
    session = make(climbing(), evidence=waits(0.1, beside_ms=beside))
    found = judged(session, bottleneck=verdict, certain=verdict == "none").verdict
    assert ("another loader" in found.sentence + found.uncertain) == (verdict == "inconclusive")


def test_nor_is_the_cost_of_its_data_certain_then() -> None:
    why = "the loop waits 18 % of a step for another loader, too"
    judged(make(climbing(raw=60.0), evidence=waits(60.0, beside_ms=20.0)), bottleneck="transform", uncertain=why)


def test_figures_of_one_epoch_are_not_certain() -> None:
    session = make(climbing(raw=60.0))
    judged(session, certain=True)
    session.warn("kept-batches", "as with itertools.cycle")
    judged(session, certain=False, uncertain="the script goes on without its loader after an epoch")


@pytest.mark.parametrize(
    ("rung", "culprit"),
    [
        ("host", Place("DataLoader", "train.py:10")),
        ("worker", Place("DataLoader", "train.py:10")),
        ("sample", Place("pad", "data.py:60")),
        ("raw", Place("Compose(Crop, Flip)", "data.py:40")),
        ("warm", Place("Photos.__getitem__", "data.py:5")),
        ("baseline", Place("Photos.__getitem__", "data.py:5")),
    ],
)
def test_the_stage_whose_inclusion_costs_the_time(rung: str, culprit: Place) -> None:
    assert rung in RUNGS[1:]
    verdict = judged(
        make(climbing(**{rung: 30.0})), bottleneck=STAGE_OF_RUNG[rung], band="severe", culprit=culprit,
        co_bottlenecks=[], next_ceiling=("compute", pytest.approx(1000 / 50.5, rel=0.02)),
    ).verdict  # fmt: skip
    assert verdict.starved.value == pytest.approx(1 - 50 / 81, abs=0.01)
    assert verdict.starved.low > SEVERE


def test_none() -> None:
    judged(
        make(FLAT | {"baseline": 101.0}, noise=0.0), "Not starved", "101 ms", "100 ms",
        bottleneck="none", band="none", culprit=None, next_ceiling=ceiling("compute", 101.0),
    )  # fmt: skip


@pytest.mark.parametrize(
    "cost, bottleneck, band", [(1.0, "none", "none"), (7.0, "transform", "mild"), (30.0, "transform", "severe")]
)
def test_bands(cost: float, bottleneck: str, band: str) -> None:
    judged(make(climbing(raw=cost), noise=0.0005), bottleneck=bottleneck, band=band)


def test_thresholds_are_the_published_ones() -> None:
    assert (GATE, SEVERE) == (0.05, 0.20)


def test_startup() -> None:
    judged(
        make(FLAT, startups=[9.0, 5.0, 5.0], length=10), "500 ms", "persistent_workers=True",
        bottleneck="startup", culprit=Place("DataLoader", "train.py:10"), next_ceiling=ceiling("compute", 100),
    )  # fmt: skip


def test_startup_beside_a_starved_loop() -> None:
    session = make(climbing(raw=30.0), startups=[5.0, 5.0], length=10)
    next_ceiling = judged(session, bottleneck="startup", co_bottlenecks=["transform"]).verdict.next_ceiling
    assert next_ceiling is not None and next_ceiling[0] == "transform"


@pytest.mark.parametrize(
    ("session", "bottleneck"),
    [
        (make(FLAT, startups=[5.0, 5.0], length=10, persistent=True), "none"),
        (make(FLAT, startups=[5.0, 5.0], length=None), "none"),
        (make(FLAT, startups=[5.0, 5.0], length=10, workers=0), "none"),
        (make(FLAT, startups=[5.0, 5.0], length=10_000), "none"),
        (make(climbing(raw=30.0), startups=[1.0, 1.0], length=100), "transform"),
    ],
    ids=["persistent workers", "unknown length", "no workers", "long epoch", "smaller than the largest stage"],
)
def test_startup_that_does_not_matter(session: Session, bottleneck: str) -> None:
    judged(session, bottleneck=bottleneck, certain=True)


#: Workers that take 200 ms for a batch, all of it on a CPU, and for which the loop hardly waits.
ON_TIME = waits(0.4, worker_ms=200.0, worker_cpu=1.0)


def test_contention() -> None:
    """30.2 of 81 ms are neither waiting nor needed with batches ready: the workers cause contention."""
    judged(
        make(climbing(raw=30.0), noise=0.0, evidence=ON_TIME, accounts=thread(52.0, 28.2)),
        "while they run, a step takes 30.2 ms longer (of 81 ms)",
        bottleneck="contention", level="proven", certain=True, culprit=Place("DataLoader", "train.py:10"),
        co_bottlenecks=[], next_ceiling=ceiling("compute", 50.8),
    )  # fmt: skip


def test_contention_is_not_certain_where_the_kernel_does_not_count() -> None:
    session = make(climbing(raw=30.0), noise=0.0, evidence=waits(0.4))
    verdict = judged(session, bottleneck="contention", level="intervened", certain=False).verdict
    assert "kernel" in verdict.uncertain


@pytest.mark.parametrize(("busy", "certain"), [(4.0, True), (6.0, False)])
def test_contention_beside_other_processes_is_not_certain(busy: float, certain: bool) -> None:
    """They took 2 of 8 cores in every window alike: the time that they take remains of a step as contention does."""
    seen = {rung: {"cores_busy": busy, "cores_used": 4.0} | ON_TIME.get(rung, {}) for rung in RUNGS}
    session = make(
        climbing(raw=30.0), noise=0.0, evidence=seen, accounts=thread(52.0, 28.2), environment={"cores": 8}
    )  # fmt: skip
    verdict = judged(session, bottleneck="contention", certain=certain).verdict
    assert ("other processes used 2 of 8 cores" in verdict.uncertain) is not certain


def test_contention_is_at_most_what_the_training_thread_lost() -> None:
    """A step takes 30.2 ms longer, but its thread works no longer, and waits for a core 5 ms: no more is contention."""
    diagnosis = judged(make(climbing(raw=30.0), noise=0.0, evidence=ON_TIME, accounts=thread(50.0, 5.0)))
    assert costs(diagnosis)["contention"] == pytest.approx(5.0)
    assert diagnosis.verdict.bottleneck != "contention"


def test_contention_of_workers_that_use_little_cpu_is_foreign() -> None:
    """Workers that compute 8 ms a batch cost the training at most 16 ms for a core where others have half of them."""
    seen = waits(0.4, worker_ms=8.0, worker_cpu=1.0, cores_busy=2.0, cores_used=1.0)
    diagnosis = judged(
        make(climbing(raw=30.0), noise=0.0, evidence=seen, accounts=thread(50.0, 30.2), environment={"cores": 2}),
        certain=False,
    )
    assert costs(diagnosis).get("contention", 0.0) <= 16.0
    assert "other processes used 1 of 2 cores" in diagnosis.verdict.uncertain


@pytest.mark.parametrize(
    ("passes", "busy", "told"),
    [
        (2, 1.0, "measured once only"),
        (3, 1.0, "measured once only: the script is short"),
        (3, 1.8, "measured once only: the script is short and other processes used 0.8 of 2 cores"),
        (1, 1.8, "measured once only: other processes used 0.8 of 2 cores"),
    ],
)
def test_why_it_was_measured_once(passes: int, busy: float, told: str) -> None:
    seen = waits(50.0, worker_ms=100.0, worker_cpu=1.0, cores_busy=busy, cores_used=1.0)
    session = make(climbing(raw=50.0), rounds=1, noise=0.0, evidence=seen, environment={"cores": 2})
    session.script.passes = passes
    judged(session, uncertain=told)


def test_workers_on_time_are_not_free_where_cores_are_shared_among_groups() -> None:
    """The script's processes have a quarter of full cores: 15 ms of the workers' CPU time may be all of 60 ms more."""
    seen = waits(0.4, worker_ms=15.0, worker_cpu=1.0, cores_busy=2.0, cores_used=0.5)
    seen |= {rung: {"cores_busy": 2.0, "cores_used": 0.5} for rung in ("device", "host", "worker")}
    ladder = {"device": 50.0, "host": 50.0, "worker": 50.0, "baseline": 110.0}
    session = make(ladder, noise=0.0, evidence=seen, accounts=thread(50.0, 60.0), environment={"cores": 2})
    verdict = judged(session, certain=False).verdict
    assert verdict.starved is not None and verdict.starved.value > 0.5 and verdict.starved.low < 0.2
    assert verdict.bottleneck != "none"
    assert "other processes used 1.5 of 2 cores" in verdict.uncertain


def test_hand_off_under_foreign_load_is_not_called_certain() -> None:
    """The loop waits 10 ms, its workers need 8 ms a batch, and its CPU time is equal under all rungs: 460 of 732 ms."""
    ladder = {"device": 447.0, "host": 447.0, "worker": 469.0, "baseline": 732.0}
    seen = {"worker": {"wait_ms": 9.0}, "baseline": {"wait_ms": 10.0, "worker_ms": 16.0, "worker_cpu": 0.5}}
    accounts = {
        **dict.fromkeys(("device", "host"), Account(cpu_ms=447.0)),
        "worker": Account(cpu_ms=460.0, waits_ms=9.0),
        "baseline": Account(cpu_ms=460.0, queue_ms=262.0, waits_ms=10.0),
    }
    session = make(ladder, workers=2, device="cpu", noise=0.0, evidence=seen, accounts=accounts)
    found = costs(judged(session, certain=False))
    assert found["ipc"] <= 25.0 and found.get("contention", 0.0) <= 8.0


@pytest.mark.parametrize(
    ("wait", "bottleneck", "beside"), [(12.0, "contention", "transform"), (20.0, "transform", "contention")]
)
def test_contention_beside_workers_that_are_late_as_well(wait: float, bottleneck: str, beside: str) -> None:
    session = make(climbing(raw=30.0), noise=0.0, evidence=waits(wait))
    verdict = judged(session, bottleneck=bottleneck, co_bottlenecks=[beside]).verdict
    assert bottleneck == "transform" or verdict.next_ceiling == ceiling("transform", 81.0), "they still take as long"


def test_what_handing_over_waits_is_no_lateness_of_the_workers() -> None:
    """The loop also waits 5 ms a step if the workers only send."""
    found = costs(judged(make(climbing(raw=30.0), noise=0.0, evidence=waits(35.6, 5.0))))
    assert "contention" not in found and found["transform"] == pytest.approx(30.0)


def test_waiting_longer_than_a_batch_is_made_is_handing_over() -> None:
    """The loop waits 30 ms a step for batches that a worker makes in 0.8 ms; under ``worker`` it waits 10 ms.

    A worker begins a batch before the loop asks for it, so 29.2 ms of the wait are for its delivery.
    """
    ladder = {"device": 6.0, "worker": 16.0, "baseline": 36.0}
    session = make(ladder, noise=0.0, workers=2, evidence=waits(30.0, 10.0, worker_ms=0.8))
    diagnosis = judged(session, bottleneck="ipc", next_ceiling=ceiling("compute", 6.8))
    assert costs(diagnosis) == pytest.approx({"compute": 6.0, "ipc": 29.2, "load": 0.8})


@pytest.mark.parametrize("wait", [0.0, 10.0, 40.0, 81.0])
def test_no_ceiling_above_that_of_cached_batches(wait: float) -> None:
    """The loop may have waited more or less than rungs measured at another time suggest."""
    verdict = judged(make(climbing(raw=30.0), evidence=waits(wait))).verdict
    assert verdict.next_ceiling is not None
    assert 0 < verdict.next_ceiling[1] <= 1000 / 50 * 1.01


def test_without_workers_nobody_is_in_the_way() -> None:
    ladder = without(climbing(raw=30.0), "host", "worker")
    session = make(ladder, workers=0, device="cpu", absent=["host", "worker"], evidence=waits(30.5))
    assert "contention" not in costs(judged(session, bottleneck="transform"))


@pytest.mark.parametrize(("wait", "bottleneck"), [(1.0, "none"), (4.5, "inconclusive")])
def test_a_loop_that_does_not_wait_is_believed_on_a_noisy_host(wait: float, bottleneck: str) -> None:
    """One window of each rung on a CPU leaves room for a cost of 20 %; the loop was seen to wait 1 %."""
    rungs = {"device": 98.0, "baseline": 100.0}
    session = make(rungs, rounds=1, workers=2, device="cpu", noise=0.0, evidence=waits(wait))
    verdict = judged(session, bottleneck=bottleneck).verdict
    assert verdict.starved is not None and (bottleneck != "none" or verdict.starved.high > 0.15)


@pytest.mark.parametrize(
    ("device", "wait", "share"),
    [
        # After a wait a step is slower than on cached batches: a core that was idle is, and so are threads that slept.
        (10.0, 80.0, 0.9),
        # The wait is lost whatever cached batches save.
        (97.0, 20.0, 0.2),
    ],
)
def test_without_workers_data_costs_what_cached_batches_save_and_at_least_the_wait(
    device: float, wait: float, share: float
) -> None:
    rungs = {"device": device, "baseline": 100.0}
    diagnosis = judged(make(rungs, workers=0, device="cpu", noise=0.0, evidence=waits(wait)))
    assert diagnosis.verdict.starved is not None and diagnosis.verdict.starved.value == pytest.approx(share)
    step = 100.0 * (1 - share)
    assert diagnosis.waterfall[0].ms.value == pytest.approx(step), "the rest of the step is the input's, too"
    assert summarise(diagnosis).rates[-1].steps_per_s == pytest.approx(1000 / step)


@pytest.mark.parametrize(("wait", "certain"), [(3.0, False), (9.0, True)])
def test_without_workers_a_cost_outside_of_the_wait_is_not_certain(wait: float, certain: bool) -> None:
    """The loop makes its batches in next(): what else a step with cached batches saves may be anything."""
    session = make({"device": 90.0, "sample": 92.0, "baseline": 100.0}, workers=0, device="cpu", evidence=waits(wait))
    verdict = judged(session, bottleneck="load", certain=certain).verdict
    assert certain or verdict.uncertain == "it makes its batches in 3 % of a step"


def test_inconclusive_without_a_ladder() -> None:
    judged(make({"baseline": 100.0}), "baseline", bottleneck="inconclusive", starved=None, band="unknown")
    assert judged(make(without(FLAT, "baseline")), bottleneck="inconclusive").waterfall == []
    judged(Session(), bottleneck="inconclusive", level="")


def test_one_window_of_each_rung_names_the_stage_but_proves_nothing() -> None:
    verdict = judged(
        make(climbing(raw=30.0), rounds=1),
        bottleneck="transform", level="intervened", band="severe", certain=False, uncertain="measured once only",
    ).verdict  # fmt: skip
    assert verdict.starved is not None
    assert GATE < verdict.starved.low < verdict.starved.value < verdict.starved.high < 1


def test_one_window_of_each_rung_near_the_gate_is_not() -> None:
    told = "It is not yet certain whether the loop starves"
    judged(make(climbing(raw=3.0), rounds=1), told, bottleneck="inconclusive")


def test_inconclusive_in_noise() -> None:
    """The pipeline costs 5 % of a step, and windows differ by that much."""
    found = [judged(make(climbing(raw=1.6), rounds=3, noise=0.05, seed=seed)).verdict for seed in range(20)]
    open_ones = [verdict for verdict in found if verdict.bottleneck == "inconclusive"]
    assert len(open_ones) >= 15
    assert all("longer budget" in verdict.sentence for verdict in open_ones)


def test_starved_though_what_costs_it_is_uncertain() -> None:
    """Both ends of the ladder are precise, and the rungs between vary from round to round: the loop starves."""
    session = make({"device": 50.0, "baseline": 100.0}, noise=0.001)
    between = make(dict.fromkeys(RUNGS[1:-1], 75.0), noise=0.0)
    for number, window in enumerate(between.windows):
        window.seconds *= (0.5, 1.5, 1.2, 0.8)[number % 4]
    session.windows += between.windows
    verdict = judged(session, "50 %", level="intervened").verdict
    assert verdict.bottleneck not in ("inconclusive", "none")


@pytest.mark.parametrize("cost, half_width", [(0.0, 0.0), (50.0, 0.25 * 0.25), (200.0, 0.25 * 0.2 * 0.8)])
def test_the_share_holds_for_another_run(cost: float, half_width: float) -> None:
    """Its input may cost a quarter more or less, which says little of a share near 0 or 1."""
    rungs = {"device": 50.0, "baseline": 50.0 + cost}
    ladder = LadderView(make(rungs, noise=0.0))
    measured, told = measured_share(ladder), starved_share(ladder)
    assert told.value == measured.value == pytest.approx(cost / (50.0 + cost))
    assert told.value - told.low == pytest.approx(math.hypot(half_width, measured.value - measured.low))
    assert told.high - told.value == pytest.approx(math.hypot(half_width, measured.high - measured.value))


@pytest.mark.parametrize(
    "cost, bottleneck, why",
    [
        (2.0, "none", ""),
        (2.4, "none", "another run may find more than 5 %"),
        (2.8, "transform", "another run may find less than 5 %"),
        (4.0, "transform", ""),
    ],
)
def test_certain_means_that_another_run_falls_on_the_same_side_of_the_gate(
    cost: float, bottleneck: str, why: str
) -> None:
    verdict = judged(
        make({"device": 50.0, "sample": 50.0, "raw": 50.0 + cost, "baseline": 50.0 + cost}, noise=0.0)
    ).verdict
    assert (verdict.bottleneck, verdict.uncertain, verdict.certain) == (bottleneck, why, not why)


def test_co_bottlenecks() -> None:
    """A stage at least half as large as the largest is named; a small one is not."""
    judged(
        make(climbing(raw=40.0, warm=38.0, host=10.0)),
        "A comparable part goes into loading.", "limited next by load",
        bottleneck="transform", co_bottlenecks=["load"],
        # Workers that need 40 of 78.4 ms less for a batch take so much less of a step that waits for nothing else.
        next_ceiling=("load", pytest.approx(1000 / (138.6 * (1 - 40 / 78.4)), rel=0.02)),
    )  # fmt: skip


def test_next_ceiling_names_a_smaller_stage_that_is_worth_it() -> None:
    """Without the transforms the workers are early, and the training process limits."""
    told = "limited next by copying to the device; if data were free, 20."
    judged(make(climbing(raw=40.0, host=10.0)), told, co_bottlenecks=[], next_ceiling=ceiling("transfer", 60.2))


def test_what_others_hide_brings_nothing_alone() -> None:
    """Workers take 81 ms for a batch, and the loop hardly waits: with less to copy, a step would take as long."""
    judged(
        make(climbing(host=20.0, raw=10.0), noise=0.0, evidence=waits(2.4)),
        "Removing it alone would not make the loop faster: transforms would still limit it; if data were free, "
        "20 steps/s.",
        bottleneck="transfer",
        next_ceiling=ceiling("transform", 81.0),
    )


@pytest.mark.parametrize(
    "wait, bottleneck", [(None, "inconclusive"), (3.0, "inconclusive"), (1.0, "none"), (0.0, "none")]
)
def test_a_loop_that_certainly_does_not_wait_is_believed_sooner(wait: float | None, bottleneck: str) -> None:
    """By pace alone, one window of each rung leaves it open: about 2.6 ms of 52.6."""
    seen = None if wait is None else waits(wait, 0.0)
    verdict = judged(make(climbing(raw=1.4), rounds=1, noise=0.0, evidence=seen), bottleneck=bottleneck).verdict
    assert verdict.starved is not None and decided(verdict.starved) is None


@pytest.mark.parametrize("rung", ["raw", "host"])
def test_the_loop_starves_no_less_than_it_waits(rung: str) -> None:
    """Under ``raw`` the loop waits for its workers too, and cached windows may have met other load."""
    verdict = judged(make({rung: 90.0, "baseline": 100.0}, noise=0.0, evidence=waits(50.0))).verdict
    assert verdict.starved is not None and verdict.starved.value == pytest.approx(0.5)
    assert verdict.starved.low > 0.4


class TestTheSideThatBinds:
    """If the loop certainly waits for its workers, its own costs are hidden, however large."""

    LADDER: ClassVar = climbing(host=20.0, raw=10.0)

    def test_the_workers(self) -> None:
        diagnosis = judged(
            make(self.LADDER, noise=0.0, evidence=waits(10.6)),
            "Without it the loop would run at about 14.2 steps/s, limited next by copying to the device",
            bottleneck="transform", co_bottlenecks=["transfer"], next_ceiling=ceiling("transfer", 70.2),
        )  # fmt: skip
        [transfer] = [piece for piece in diagnosis.waterfall if piece.stage == "transfer"]
        assert transfer.ms.value == pytest.approx(20.0), "the larger one"
        assert transfer.without is not None
        assert transfer.without.steps_per_s == pytest.approx(1000 / 80.8), "and yet it would bring nothing"

    def test_the_training_process(self) -> None:
        """A wait of 0.4 ms does not count."""
        session = make(climbing(host=20.0), noise=0.0, evidence=waits(0.4))
        judged(session, bottleneck="transfer", next_ceiling=ceiling("compute", 51.0))

    def test_the_largest_while_it_is_open(self) -> None:
        """It may wait 13 % of its step or not at all: the windows differ by that much."""
        session = make(self.LADDER, noise=0.0, evidence=waits(10.6))
        for window, wait in zip(session.windows_of("baseline"), (0.0, 25.0, 1.0, 27.0, 0.0), strict=True):
            window.evidence["wait_ms"] = wait
        judged(session, bottleneck="transfer")

    def test_without_workers_there_is_one_side(self) -> None:
        session = make(without(self.LADDER, "worker"), workers=0, noise=0.0, absent=["worker"], evidence=waits(10.6))
        judged(session, bottleneck="transfer", co_bottlenecks=["transform"])


def test_sentence_has_the_numbers() -> None:
    judged(
        make(climbing(raw=30.0), noise=0.0),
        "Data costs your training 38 % of each step (32 to 44 %): ", "30 of 81 ms", "19.8 steps/s", "instead of 12.3",
    )  # fmt: skip
    on_a_cpu = make(without(climbing(raw=30.0), "host"), absent=["host"], device="cpu")
    assert judged(on_a_cpu).verdict.sentence.startswith("Data costs your training ")


def test_sentence_says_that_the_dataset_could_not_be_split() -> None:
    session = make(without(climbing(raw=30.0), "raw"), unavailable={"raw": "not separable"})
    judged(session, "loading and transforms together")


@given(st.dictionaries(st.sampled_from(RUNGS), st.floats(0.01, 5000), min_size=1), st.integers(1, 4), st.integers())
def test_any_ladder_gets_a_verdict(ladder: dict[str, float], rounds: int, seed: int) -> None:
    verdict = judged(make(ladder, rounds=rounds, noise=0.05, seed=seed)).verdict
    assert verdict.sentence
    if verdict.next_ceiling is not None:
        assert verdict.next_ceiling[1] > 0


def test_the_same_session_gets_the_same_diagnosis() -> None:
    assert judged(make(climbing(raw=9.0))).to_dict() == judged(make(climbing(raw=9.0))).to_dict()


def chained(*costs: float, cuts: tuple[int, ...] = (), **ladder: float) -> Session:
    """A chain cut at these places (by default everywhere), whose links cost training as much as the workers."""
    return make(cut(climbing(raw=sum(costs), **ladder), costs, *cuts), noise=0.0, inside=inside(*costs))


class TestLinks:
    """A costly chain: the stage is ``transform``, the culprit a link."""

    def test_the_costliest_link_is_the_culprit(self) -> None:
        """The ceiling is without all of them."""
        sentence = judged(
            chained(2.0, 25.0, 5.0), "running the transforms on every sample costs 32 of 83 ms",
            bottleneck="transform", culprit=Place("B", "aug.py:20"), co_bottlenecks=[],
            next_ceiling=ceiling("compute", 50.4),
        ).verdict.sentence  # fmt: skip
        assert sentence.endswith("Of the transforms, B (aug.py:20) costs 25 ms.")

    def test_links_of_like_cost_are_named_together(self) -> None:
        sentence = judged(chained(20.0, 2.0, 12.0)).verdict.sentence
        assert sentence.endswith("Of the transforms, A (aug.py:10) costs 20 ms; C (aug.py:30) costs 12 ms.")
        assert judged(chained(*[10.0] * 5)).verdict.sentence.count(" costs 10 ms") == 3, "at most"

    def test_a_range_that_was_not_cut_further(self) -> None:
        told = "Of the transforms, A, B (aug.py:10) costs 16 ms"
        judged(chained(8.0, 8.0, 8.0, cuts=(2,)), told, culprit=Place("A, B", "aug.py:10"))

    def test_a_link_without_a_place(self) -> None:
        session = chained(2.0, 25.0)
        session.links[1].where = ""
        judged(session, "Of the transforms, B costs 25 ms")

    @pytest.mark.parametrize(
        ("session", "expected"),
        [
            (
                make(climbing(raw=30.0), inside=inside(10.0, 20.0, unsplit="because")),
                {"bottleneck": "transform", "culprit": Place("Compose(Crop, Flip)", "data.py:40")},
            ),
            (chained(6.0, 3.0, warm=40.0), {"bottleneck": "load", "culprit": Place("Photos.__getitem__", "data.py:5")}),
        ],
        ids=["a chain that was not cut", "another stage is to blame"],
    )
    def test_none_is_named(self, session: Session, expected: dict[str, Any]) -> None:
        assert "Of the transforms" not in judged(session, **expected).verdict.sentence

    def test_transforms_together_beat_a_stage_that_is_larger_than_each(self) -> None:
        judged(chained(10.0, 10.0, 10.0, warm=15.0), bottleneck="transform")

    NOT_SPLIT: ClassVar[dict[str, Any]] = {"noise": 0.0, "unavailable": {"raw": "not separable"}}

    def test_transforms_that_cannot_be_told_from_loading(self) -> None:
        """The ladder sees one stage; the workers' own time says what is in it."""
        ladder, found = without(climbing(raw=30.0), "raw"), inside(1.0, 15.0, load=4.0)
        sentence = judged(make(ladder, inside=found, **self.NOT_SPLIT), bottleneck="load").verdict.sentence
        assert sentence.endswith("75 % of the time a worker spends on a sample goes into B (aug.py:20).")
        timed = make(ladder, inside=found, evidence=waits(30.6, worker_ms=324.0), **self.NOT_SPLIT)
        judged(timed, bottleneck="transform", culprit=Place("B", "aug.py:20"))

    def test_loading_that_takes_the_time_itself(self) -> None:
        session = make(without(climbing(raw=30.0), "raw"), inside=inside(1.0, 5.0, load=14.0), **self.NOT_SPLIT)
        sentence = judged(session, culprit=Place("Photos.__getitem__", "data.py:5")).verdict.sentence
        assert "goes into" not in sentence

    @settings(max_examples=30)
    @given(st.lists(st.floats(0.0, 40.0), min_size=2, max_size=6), st.integers())
    def test_any_chain_gets_a_verdict(self, costs: list[float], seed: int) -> None:
        session = make(cut(climbing(raw=sum(costs)), costs), noise=0.05, seed=seed, inside=inside(*costs))
        assert judged(session).verdict.sentence


class TestContention:
    """Whose threads share the cores."""

    IN_THE_WAY: ClassVar[dict[str, Any]] = {"noise": 0.0, "evidence": waits(0.5)}
    SHARED: ClassVar = "8 workers with 1 thread each and the training process with 1 thread share 4 cores."

    def helps(self, **more: Any) -> str:
        session = make(climbing(raw=30.0), **more, **self.IN_THE_WAY)
        return judged(session, bottleneck="contention").verdict.sentence.partition("for the workers.")[2].strip()

    @pytest.mark.parametrize(
        ("workers", "own", "threads", "told"),
        [
            (8, 1, {"torch": 1, "opencv": 16}, "8 workers with 16 opencv threads each and the training process with 1 "
             "thread share 4 cores: cv2.setNumThreads(1) in a worker_init_fn limits each worker to one."),
            (8, 1, {"torch": 4, "opencv": 1}, "8 workers with 4 torch threads each and the training process with 1 "
             "thread share 4 cores: torch.set_num_threads(1) in a worker_init_fn limits each worker to one."),
            (2, 4, {"torch": 1}, "2 workers with 1 thread each and the training process with 4 threads share 4 cores: "
             "OMP_NUM_THREADS or torch.set_num_threads(2) limits the training process."),
            (8, 1, {"torch": 1}, SHARED),
            # Room for all.
            (3, 1, {"torch": 1}, ""),
            # A library that a later version knows.
            (8, 1, {"numexpr": 8}, "8 workers with 8 numexpr threads each and the training process with 1 thread share "
             "4 cores: limiting numexpr's threads to 1 in a worker_init_fn limits each worker to one."),
        ],
    )  # fmt: skip
    def test_threads(self, workers: int, own: int, threads: dict[str, int], told: str) -> None:
        found = inside(10.0, threads=threads, lines=[HotLine("data.py:7", "", 0.2, calls={"cv2.imread": 0.2})])
        environment = {"cores": 4, "threads": {"torch": own}}
        assert self.helps(workers=workers, inside=found, environment=environment) == told

    @pytest.mark.parametrize("environment", [{"cores": 16}, {"python": "3"}])
    def test_nothing_is_known_of_threads_or_of_cores(self, environment: dict[str, Any]) -> None:
        assert self.helps(workers=4, environment=environment) == ""

    def test_the_hand_offs_own_cost_is_not_the_workers_presence(self) -> None:
        """Batches are handed over even if no worker is late."""
        judged(make(climbing(worker=25.0), **self.IN_THE_WAY), bottleneck="ipc")

    def test_nobody_is_said_to_be_in_the_way_while_it_is_open(self) -> None:
        """The step without the workers' work varies as much as the contention that is to be found."""
        session = make(climbing(raw=30.0), noise=0.0, evidence=waits(8.0))
        for number, window in enumerate(session.windows_of("worker")):
            window.seconds *= (0.4, 1.6, 1.0, 0.5, 1.5)[number]
        diagnosis = judged(session, bottleneck="transform", co_bottlenecks=["contention"])
        costliest = max(diagnosis.waterfall[1:], key=lambda piece: piece.ms.value)
        assert costliest.stage == "contention"
        assert costliest.ms.low < GATE * 81


def test_a_hiccup_under_the_cache_leaves_a_starved_loop_starved() -> None:
    """In one of three windows a step from the cache took ten times as long: still a small part of the step."""
    session = make({"device": 0.25, "baseline": 18.0}, noise=0.0, rounds=3)
    session.windows_of("device")[2].seconds *= 10
    verdict = judged(session).verdict
    assert verdict.bottleneck not in ("inconclusive", "none")
    assert verdict.starved.low > SEVERE


def test_one_window_says_what_such_windows_differ_by() -> None:
    verdict = judged(make({"device": 1.0, "baseline": 18.0}, noise=0.0, rounds=1)).verdict
    assert SEVERE < verdict.starved.low < 1 - 1 / 18 < verdict.starved.high < 1


class TestObserved:
    """Verdicts from the loop's own steps, with nothing cached."""

    @pytest.mark.parametrize("device", ["cpu", "cuda"])
    @pytest.mark.parametrize("count", [1, 6, 40])
    def test_starved(self, count: int, device: str) -> None:
        session = make({}, observed=blocks(count, 100.0, 60.0, noise=0.05), device=device)
        # Nothing is known of what the workers do.
        verdict = judged(session, level="observed", band="severe", bottleneck="load").verdict
        assert 0.2 < verdict.starved.low < 0.6 < verdict.starved.high < 0.95
        assert verdict.starved.value == pytest.approx(0.6, abs=0.05)
        assert verdict.sentence.startswith("Data costs your training ")
        assert f"This was observed in {4 * count} steps" in verdict.sentence
        assert "if data were free" not in verdict.sentence, "that was not measured"

    def test_more_blocks_know_it_better(self) -> None:
        found = [judged(make({}, observed=blocks(n, 100.0, 60.0, noise=0.05))).verdict.starved for n in (1, 4, 40)]
        widths = [share.high - share.low for share in found if share is not None]
        assert len(widths) == 3 and widths == sorted(widths, reverse=True)

    @pytest.mark.parametrize("device", ["cpu", "cuda"])
    @pytest.mark.parametrize("count", [1, 20])
    def test_no_wait_is_not_starved(self, count: int, device: str) -> None:
        sentence = judged(
            make({}, observed=blocks(count, 100.0, 0.5), device=device),
            bottleneck="none", level="observed", band="none", next_ceiling=("compute", pytest.approx(10.0)),
        ).verdict.sentence  # fmt: skip
        assert sentence.startswith("Not starved: the loop waits for data 0 % of a 100 ms step (0 to ")

    def test_around_the_gate_it_is_open(self) -> None:
        session = make({}, observed=[*blocks(1, 100.0, 3.0), *blocks(1, 100.0, 12.0)])
        told = "It is not yet certain whether the loop starves"
        judged(session, told, bottleneck="inconclusive", level="observed")

    def test_by_what_the_workers_do(self) -> None:
        """The workers' time for a batch divides the wait; without a stage they take that much less."""
        session = make({}, observed=blocks(6, 100.0, 60.0, 400.0), inside=inside(1.0, 6.0, load=3.0))
        # The ceiling is the 40 ms that it did not wait.
        diagnosis = judged(
            session, bottleneck="transform", culprit=Place("B", "aug.py:20"), next_ceiling=ceiling("compute", 40.0)
        )
        assert {piece.links[0]: piece.ms.value for piece in diagnosis.waterfall if piece.links} == pytest.approx(
            {"A": 6.0, "B": 36.0}
        )

    def test_with_one_window_of_the_baseline_the_blocks_have_done_their_part(self) -> None:
        session = make({"baseline": 80.0}, rounds=1, noise=0.0, evidence=waits(20.0), observed=blocks(9, 100.0, 60.0))
        verdict = judged(session, level="observed").verdict
        assert verdict.starved is not None and verdict.starved.value == pytest.approx(0.25)

    def test_fed_from_a_cache_before_the_first_window_of_the_loop_as_it_is(self) -> None:
        session = make({"device": 40.0, "worker": 42.0}, noise=0.0, observed=blocks(9, 100.0, 56.0, noise=0.05))
        verdict = judged(session).verdict
        assert verdict.level in ("intervened", "proven")
        assert verdict.starved is not None and verdict.starved.value == pytest.approx(0.6, abs=0.02)


class TestLevels:
    def test_the_ladder_agrees(self) -> None:
        judged(make(climbing(raw=30.0)), level="proven")

    def test_only_the_two_ends(self) -> None:
        """Starvation is certain with few rungs, but its origin is not proven."""
        session = make({"device": 50.0, "baseline": 100.0}, rounds=2)
        verdict = judged(session, bottleneck="load", level="intervened", band="severe").verdict
        assert verdict.starved is not None and verdict.starved.low > SEVERE

    def test_not_starved_once_may_be_chance(self) -> None:
        once = judged(make(FLAT, rounds=1, noise=0.0), level="intervened").verdict
        assert once.bottleneck in ("none", "inconclusive")
        judged(make(FLAT, rounds=6, noise=0.0), bottleneck="none", level="proven")

    def test_a_stage_of_a_rung_that_was_not_measured_is_not_proven(self) -> None:
        session = make({"device": 50.0, "baseline": 100.0}, noise=0.0, evidence=waits(5.0))
        judged(session, bottleneck="ipc", level="intervened")


class TestDecided:
    """Whether the loop starves, by the interval of its share."""

    @pytest.mark.parametrize(
        "ends, answer",
        [
            ((0.06, 0.4, 0.9), True),
            ((0.0, 0.02, 0.04), False),
            ((-0.3, -0.1, 0.04), False),
            ((0.01, 0.2, 0.5), None),
            ((0.0, 0.03, 0.051), None),
        ],
    )
    def test_by_which_side_of_the_gate_it_lies_on(self, ends: tuple[float, float, float], answer: bool | None) -> None:
        low, value, high = ends
        assert decided(Interval(value, low, high)) is answer

    @pytest.mark.parametrize("value, answer", [(0.052, True), (0.049, False), (GATE, False)])
    def test_a_short_one_around_the_gate_by_its_value(self, value: float, answer: bool) -> None:
        assert decided(Interval(value, 0.03, 0.08)) is answer

    def test_such_a_loop_gets_a_verdict(self) -> None:
        session = make({"device": 95.0, "worker": 95.0, "raw": 96.0, "baseline": 101.0}, rounds=8, noise=0.012)
        share = starved_share(LadderView(session))
        assert share is not None and share.low < GATE < share.high
        assert judged(session).verdict.bottleneck in ("none", "load", "storage")


class TestOlderSessions:
    """A file of a version with other rungs."""

    def older(self) -> Session:
        session = make(climbing(raw=30.0))
        data = session.to_dict()
        for name in ("observed",):
            del data[name]
        for window in data["windows"]:
            window["blocks"] = [1000.0]
        for rung in ("device+load", "shuffled", "transform:x"):
            data["rungs"][rung] = {"name": rung, "available": True, "why_not": "", "exists": True}
            data["windows"] += [
                {"rung": rung, "round": n, "steps": 10, "seconds": 0.75, "optimizer_steps": 10, "attempt": 1}
                for n in range(3)
            ]
        return Session.from_dict(data)

    def test_they_get_the_same_verdict(self) -> None:
        assert judged(self.older()).verdict == judged(make(climbing(raw=30.0))).verdict

    def test_rungs_that_are_not_known_are_in_no_report(self) -> None:
        session = self.older()
        for windows in (session.windows, [w for w in session.windows if w.rung in RUNGS]):
            session.windows = windows
            diagnosis = judged(session)
            assert not diagnosis.partial
            assert not {"device+load", "shuffled"} & {rung["name"] for rung in diagnosis.to_dict()["rungs"]}
            for ending in (".txt", ".md"):
                text = RENDERERS[ending](diagnosis)
                assert "shuffled" not in text and "device+load" not in text

    def test_nor_in_a_comparison(self) -> None:
        found = compare(judged(self.older()), judged(make(climbing(raw=30.0))))
        assert [one.rung for one in found.rungs] == list(RUNGS)
        assert not found.loop.significant if found.loop else False

    def test_nothing_more_is_asked_of_them(self) -> None:
        assert not {"device+load", "shuffled"} & {*next_round(self.older())}


WAITS = "the loop waits 50 % of a step in next()"


@pytest.mark.parametrize(
    ("session", "told"),
    [
        # Nothing before the loop was seen to wait.
        (make({}), []),
        (make({"baseline": 100.0}, noise=0.0), []),
        # Twelve steps of 100 ms before any window, half of it waiting.
        (make({}, workers=4, observed=[Observed(4, 0.4, 0.2)] * 3), [WAITS]),
        (
            make({"baseline": 100.0}, noise=0.0, workers=8, evidence=waits(50.0, worker_ms=400.0)),
            [WAITS, "a step takes 100 ms, a batch from 8 workers 50 ms"],
        ),
        # There are no workers, or they have told nothing.
        (make({}, workers=0, observed=[Observed(4, 0.4, 0.2, worker_ms=120.0)] * 3), [WAITS]),
        (make({}, workers=4, observed=[Observed(4, 0.4, 0.2, worker_ms=0.0)] * 3), [WAITS]),
        (but(make({}, observed=[Observed(4, 0.4, 0.2, worker_ms=120.0)] * 3), loader=None), [WAITS]),
    ],
)
def test_so_far(session: Session, told: list[str]) -> None:
    assert so_far(session) == told


@pytest.mark.parametrize("workers, pace", [(4, "a batch from 4 workers 30 ms"), (1, "a batch from 1 worker 120 ms")])
def test_how_fast_the_workers_are(workers: int, pace: str) -> None:
    """At first the loop consumes batches queued during its slow first step, and hardly waits."""
    session = make({}, workers=workers, observed=[Observed(4, 0.4, 0.0, worker_ms=120.0)] * 3)
    assert so_far(session) == ["the loop waits 0 % of a step in next()", f"a step takes 100 ms, {pace}"]


def test_what_a_sample_is_comes_last() -> None:
    seen = waits(50.0, worker_ms=400.0)
    session = make({"baseline": 100.0}, noise=0.0, workers=8, evidence=seen, inside=inside(4.0, 1.0, load=5.0))
    assert so_far(session)[2:] == ["loading is 50 % of a sample"]


def test_fed_from_a_cache_it_is_the_figure_of_the_headline() -> None:
    session = make(climbing(raw=50.0), noise=0.0, evidence=waits(1.0))
    starved = diagnose_session(session).verdict.starved
    assert so_far(session) == [f"data costs {percent(starved.value)} of a step of 101 ms"]
