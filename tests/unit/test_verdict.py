"""The verdict: every class reachable, with its band, companions, ceiling and numbers."""

from __future__ import annotations

import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipediag.analysis import Diagnosis, diagnose_session
from pipediag.analysis.thresholds import GATE, SEVERE
from pipediag.session import RUNGS, STAGE_OF_RUNG, Place, Session, Startup

from .made import FLAT, climbing, cut, inside, make, without

CLASSES = {
    "none", "transfer", "ipc", "collate", "transform", "load", "storage", "startup", "contention", "inconclusive",
}  # fmt: skip


def judged(session: Session) -> Diagnosis:
    diagnosis = diagnose_session(session)
    assert diagnosis.verdict.bottleneck in CLASSES
    json.dumps(diagnosis.to_dict(), allow_nan=False)
    return diagnosis


@pytest.mark.parametrize("rung", RUNGS[1:])
def test_the_stage_whose_inclusion_costs_the_time(rung: str) -> None:
    verdict = judged(make(climbing(**{rung: 30.0}))).verdict
    assert verdict.bottleneck == STAGE_OF_RUNG[rung]
    assert verdict.band == "severe"
    assert verdict.co_bottlenecks == []
    assert verdict.next_ceiling is not None
    following, ceiling = verdict.next_ceiling
    assert following == "compute"
    assert ceiling == pytest.approx(1000 / 51.0, rel=0.01)
    assert verdict.starved is not None
    assert verdict.starved.value == pytest.approx(1 - 50 / 81, abs=0.01)
    assert verdict.starved.low > SEVERE


@pytest.mark.parametrize(
    "rung, culprit",
    [
        ("host", Place("DataLoader", "train.py:10")),
        ("worker", Place("DataLoader", "train.py:10")),
        ("sample", Place("pad", "data.py:60")),
        ("raw", Place("Compose(Crop, Flip)", "data.py:40")),
        ("warm", Place("Photos.__getitem__", "data.py:5")),
        ("baseline", Place("Photos.__getitem__", "data.py:5")),
    ],
)
def test_culprit(rung: str, culprit: Place) -> None:
    assert judged(make(climbing(**{rung: 30.0}))).verdict.culprit == culprit


def test_none() -> None:
    verdict = judged(make(FLAT | {"baseline": 101.0}, noise=0.0)).verdict
    assert (verdict.bottleneck, verdict.band, verdict.culprit) == ("none", "none", None)
    assert verdict.next_ceiling == ("compute", pytest.approx(1000 / 101.0, rel=0.01))
    assert "Not starved" in verdict.sentence
    assert "101 ms" in verdict.sentence
    assert "100 ms" in verdict.sentence


@pytest.mark.parametrize(
    "cost, bottleneck, band", [(1.0, "none", "none"), (7.0, "transform", "mild"), (30.0, "transform", "severe")]
)
def test_bands(cost: float, bottleneck: str, band: str) -> None:
    verdict = judged(make(climbing(raw=cost), noise=0.0005)).verdict
    assert (verdict.bottleneck, verdict.band) == (bottleneck, band)


def test_thresholds_are_the_published_ones() -> None:
    assert (GATE, SEVERE) == (0.05, 0.20)


def test_startup() -> None:
    verdict = judged(make(FLAT, startups=[4.0, 5.0, 9.0], length=10)).verdict
    assert verdict.bottleneck == "startup"
    assert verdict.culprit == Place("DataLoader", "train.py:10")
    assert "500 ms" in verdict.sentence
    assert "persistent_workers=True" in verdict.sentence
    assert verdict.next_ceiling == ("compute", pytest.approx(10, rel=0.01))


def test_startup_beside_a_starved_loop() -> None:
    verdict = judged(make(climbing(raw=30.0), startups=[5.0], length=10)).verdict
    assert verdict.bottleneck == "startup"
    assert verdict.co_bottlenecks == ["transform"]
    assert verdict.next_ceiling is not None
    assert verdict.next_ceiling[0] == "transform"


@pytest.mark.parametrize(
    "session",
    [
        make(FLAT, startups=[5.0], length=10, persistent=True),
        make(FLAT, startups=[5.0], length=None),
        make(FLAT, startups=[5.0], length=10_000),
    ],
    ids=["persistent workers", "unknown length", "long epoch"],
)
def test_startup_that_does_not_matter(session: Session) -> None:
    assert judged(session).verdict.bottleneck == "none"


def test_startup_smaller_than_the_largest_stage() -> None:
    verdict = judged(make(climbing(raw=30.0), startups=[1.0], length=100)).verdict
    assert verdict.bottleneck == "transform"


def test_contention() -> None:
    verdict = judged(make({**climbing(raw=30.0), "device+load": 75.0}, noise=0.0)).verdict
    assert verdict.bottleneck == "contention"
    assert verdict.co_bottlenecks == ["transform"]
    assert verdict.next_ceiling == ("compute", pytest.approx(1000 / 56.0, rel=0.01))
    assert "24.8 ms longer while they run (of 81 ms)" in verdict.sentence


def test_workers_slow_the_loop_but_are_late_above_all() -> None:
    assert judged(make({**climbing(raw=30.0), "device+load": 60.0})).verdict.bottleneck == "transform"


def test_ceiling_without_contention_is_at_most_that_of_cached_batches() -> None:
    """The control may well be slower than the baseline; what is left of a step is then not below the device's."""
    verdict = judged(make({**climbing(raw=30.0), "device+load": 140.0})).verdict
    assert verdict.bottleneck == "contention"
    assert verdict.next_ceiling is not None
    assert 0 < verdict.next_ceiling[1] <= 1000 / 50 * 1.01


def test_inconclusive_without_a_ladder() -> None:
    verdict = judged(make({"baseline": 100.0})).verdict
    assert (verdict.bottleneck, verdict.starved, verdict.band) == ("inconclusive", None, "unknown")
    assert "baseline" in verdict.sentence


def test_inconclusive_without_a_baseline() -> None:
    diagnosis = judged(make(without(FLAT, "baseline")))
    assert diagnosis.verdict.bottleneck == "inconclusive"
    assert diagnosis.waterfall == []


def test_inconclusive_without_anything() -> None:
    assert judged(Session()).verdict.bottleneck == "inconclusive"


def test_inconclusive_from_one_window() -> None:
    verdict = judged(make(climbing(raw=30.0), rounds=1)).verdict
    assert verdict.bottleneck == "inconclusive"
    assert "one window only" in verdict.sentence


def test_inconclusive_in_noise() -> None:
    verdict = judged(make(climbing(raw=4.0), rounds=3, noise=0.1)).verdict
    assert verdict.bottleneck == "inconclusive"
    assert "--budget" in verdict.sentence


def test_starved_but_no_stage_is_certain() -> None:
    """Both ends of the ladder are sharp, and what lies between them swings from round to round."""
    session = make({"device": 50.0, "baseline": 100.0}, noise=0.001)
    draw = random.Random(2)
    between = make(dict.fromkeys(RUNGS[1:-1], 75.0), noise=0.0)
    for window in between.windows:
        window.seconds *= draw.choice([0.5, 1.5])
    session.windows += between.windows
    verdict = judged(session).verdict
    assert verdict.bottleneck == "inconclusive"
    assert "no single stage" in verdict.sentence
    assert "50 %" in verdict.sentence


def test_co_bottlenecks() -> None:
    """Of the largest's size, or at least half of it; not what is merely there."""
    verdict = judged(make(climbing(raw=40.0, warm=30.0, host=10.0))).verdict
    assert verdict.bottleneck == "transform"
    assert verdict.co_bottlenecks == ["load"]
    assert verdict.next_ceiling == ("load", pytest.approx(1000 / 90.6, rel=0.01))
    assert "Load costs a comparable part" in verdict.sentence
    assert "limited next by load" in verdict.sentence


def test_next_ceiling_names_a_smaller_stage_that_is_worth_it() -> None:
    verdict = judged(make(climbing(raw=40.0, host=10.0))).verdict
    assert verdict.co_bottlenecks == []
    assert verdict.next_ceiling is not None
    assert verdict.next_ceiling[0] == "transfer"


def test_sentence_has_the_numbers() -> None:
    verdict = judged(make(climbing(raw=30.0), noise=0.0)).verdict
    for number in ("38 %", "30 of 81 ms", "19.6 steps/s", "instead of 12.3"):
        assert number in verdict.sentence
    assert verdict.sentence.startswith("The CUDA device waits for data")


def test_sentence_on_a_cpu() -> None:
    session = make(without(climbing(raw=30.0), "host"), absent=["host"], device="cpu")
    assert judged(session).verdict.sentence.startswith("The training process waits for data")


def test_sentence_says_that_the_dataset_could_not_be_split() -> None:
    session = make(without(climbing(raw=30.0), "raw"), unavailable={"raw": "not separable"})
    assert "loading and transforms together" in judged(session).verdict.sentence


@given(st.dictionaries(st.sampled_from(RUNGS), st.floats(0.01, 5000), min_size=1), st.integers(1, 4), st.integers())
def test_any_ladder_gets_a_verdict(ladder: dict[str, float], rounds: int, seed: int) -> None:
    verdict = judged(make(ladder, rounds=rounds, noise=0.05, seed=seed)).verdict
    assert verdict.sentence
    if verdict.next_ceiling is not None:
        assert verdict.next_ceiling[1] > 0


def test_the_same_session_gets_the_same_diagnosis() -> None:
    assert judged(make(climbing(raw=9.0))).to_dict() == judged(make(climbing(raw=9.0))).to_dict()


def chained(*costs: float, cuts: tuple[int, ...] = (), **more: object) -> Session:
    """A chain cut at these places (everywhere, if none are given), whose links take the workers what they cost."""
    return make(cut(climbing(raw=sum(costs)), costs, *cuts), noise=0.0, inside=inside(*costs), **more)  # type: ignore[arg-type]


class TestLinks:
    """A costly chain: the stage is the transforms, and the culprit the link."""

    def test_the_costliest_link_is_the_culprit(self) -> None:
        verdict = judged(chained(2.0, 25.0, 5.0)).verdict
        assert verdict.bottleneck == "transform"
        assert verdict.culprit == Place("B", "aug.py:20")
        assert "running the transforms on every sample costs 32 of 83 ms" in verdict.sentence
        assert verdict.sentence.endswith(
            "Of the transforms, B (aug.py:20) costs 25 ms and takes 74 % of a worker's time."
        )

    def test_the_ceiling_is_without_all_of_them(self) -> None:
        verdict = judged(chained(2.0, 25.0, 5.0)).verdict
        assert verdict.next_ceiling == ("compute", pytest.approx(1000 / 51.0, rel=0.001))
        assert verdict.co_bottlenecks == []

    def test_links_of_like_cost_are_named_together(self) -> None:
        sentence = judged(chained(20.0, 2.0, 12.0)).verdict.sentence
        assert sentence.endswith(
            "Of the transforms, A (aug.py:10) costs 20 ms and takes 56 % of a worker's time; "
            "C (aug.py:30) costs 12 ms and takes 33 % of a worker's time."
        )

    def test_three_at_most(self) -> None:
        sentence = judged(chained(10.0, 10.0, 10.0, 10.0, 10.0)).verdict.sentence
        assert sentence.count(" costs 10 ms") == 3

    def test_a_range_that_was_not_cut_further(self) -> None:
        verdict = judged(chained(8.0, 8.0, 8.0, cuts=(2,))).verdict
        assert verdict.culprit == Place("A, B", "aug.py:10")
        assert "Of the transforms, A, B (aug.py:10) costs 16 ms" in verdict.sentence

    def test_a_link_without_a_place(self) -> None:
        session = chained(2.0, 25.0)
        session.links[1].where = ""
        assert "Of the transforms, B costs 25 ms" in judged(session).verdict.sentence

    def test_a_chain_that_was_not_cut(self) -> None:
        verdict = judged(make(climbing(raw=30.0), inside=inside(10.0, 20.0, unsplit="because"))).verdict
        assert verdict.culprit == Place("Compose(Crop, Flip)", "data.py:40")
        assert "Of the transforms" not in verdict.sentence

    def test_another_stage_is_to_blame(self) -> None:
        session = make(cut(climbing(raw=9.0, warm=40.0), (6.0, 3.0)), noise=0.0, inside=inside(6.0, 3.0))
        verdict = judged(session).verdict
        assert verdict.bottleneck == "load"
        assert verdict.culprit == Place("Photos.__getitem__", "data.py:5")
        assert "Of the transforms" not in verdict.sentence

    def test_transforms_together_beat_a_stage_that_is_larger_than_each(self) -> None:
        session = make(cut(climbing(raw=30.0, warm=15.0), (10.0,) * 3), noise=0.0, inside=inside(10.0, 10.0, 10.0))
        assert judged(session).verdict.bottleneck == "transform"

    def test_transforms_that_cannot_be_told_from_loading(self) -> None:
        """The ladder sees one stage; the workers' own time says what is in it."""
        ladder = without(climbing(raw=30.0), "raw")
        session = make(ladder, noise=0.0, unavailable={"raw": "not separable"}, inside=inside(1.0, 15.0, load=4.0))
        verdict = judged(session).verdict
        assert verdict.bottleneck == "load"
        assert verdict.culprit == Place("B", "aug.py:20")
        assert verdict.sentence.endswith("75 % of the time a worker spends on a sample goes into B (aug.py:20).")

    def test_loading_that_takes_the_time_itself(self) -> None:
        ladder = without(climbing(raw=30.0), "raw")
        session = make(ladder, noise=0.0, unavailable={"raw": "not separable"}, inside=inside(1.0, 5.0, load=14.0))
        verdict = judged(session).verdict
        assert verdict.culprit == Place("Photos.__getitem__", "data.py:5")
        assert "goes into" not in verdict.sentence

    @settings(max_examples=30)
    @given(st.lists(st.floats(0.0, 40.0), min_size=2, max_size=6), st.integers())
    def test_any_chain_gets_a_verdict(self, costs: list[float], seed: int) -> None:
        session = make(cut(climbing(raw=sum(costs)), costs), noise=0.05, seed=seed, inside=inside(*costs))
        assert judged(session).verdict.sentence


class TestContention:
    """Whose threads share the cores."""

    def sentence(self, workers: int = 8, cores: int = 4, own: int = 1, **threads: int) -> str:
        session = make({**climbing(raw=30.0), "device+load": 75.0}, noise=0.0, workers=workers, inside=inside(10.0))
        assert session.inside is not None
        session.inside.threads = threads
        session.environment = {"cores": cores, "threads": {"torch": own}}
        verdict = judged(session).verdict
        assert verdict.bottleneck == "contention"
        return verdict.sentence.partition("should help.")[2].strip()

    def test_threads_of_opencv(self) -> None:
        assert self.sentence(torch=1, opencv=16) == (
            "8 workers of 16 threads and 1 of the training process share 4 cores: cv2.setNumThreads(1) in a "
            "worker_init_fn leaves one to each worker."
        )

    def test_threads_of_torch(self) -> None:
        assert "torch.set_num_threads(1) in a worker_init_fn" in self.sentence(torch=4, opencv=1)

    def test_threads_of_the_training_process(self) -> None:
        assert self.sentence(workers=2, own=4, torch=1) == (
            "2 workers of 1 thread and 4 of the training process share 4 cores: OMP_NUM_THREADS or "
            "torch.set_num_threads(2) limits the latter."
        )

    def test_workers_alone_are_too_many(self) -> None:
        assert self.sentence(workers=8, torch=1) == (
            "8 workers of 1 thread and 1 of the training process share 4 cores."
        )

    def test_room_for_all(self) -> None:
        assert self.sentence(workers=3, cores=4, own=1, torch=1) == ""

    def test_nothing_is_known_of_threads(self) -> None:
        session = make({**climbing(raw=30.0), "device+load": 75.0}, noise=0.0, workers=4, environment={"cores": 16})
        assert judged(session).verdict.sentence.endswith("should help.")

    def test_nothing_is_known_of_cores(self) -> None:
        session = make({**climbing(raw=30.0), "device+load": 75.0}, noise=0.0, environment={"python": "3"})
        assert judged(session).verdict.sentence.endswith("should help.")

    def test_a_library_that_a_later_version_knows(self) -> None:
        assert self.sentence(numexpr=8)

    def test_the_hand_offs_own_cost_is_not_the_workers_presence(self) -> None:
        """Batches are taken off the workers' hands also while the loop is fed from the device."""
        ladder = {**climbing(worker=25.0, raw=20.0), "device+load": 75.0}
        assert judged(make(ladder, noise=0.0)).verdict.bottleneck == "ipc"

    def test_while_it_is_open_no_stage_is_blamed(self) -> None:
        session = make({**climbing(raw=30.0), "device+load": 75.0}, noise=0.0)
        for number, window in enumerate(session.windows_of("device+load")):
            window.seconds *= (0.6, 1.4, 1.0, 0.7, 1.3)[number]
        verdict = judged(session).verdict
        assert verdict.bottleneck == "inconclusive"
        assert "or the workers slow the training process" in verdict.sentence


class TestStartup:
    """What the beginning of an epoch consists of."""

    def sentence(self, *startups: float | Startup, persistent: bool = False) -> str:
        verdict = judged(make(FLAT, startups=startups, length=10, persistent=persistent)).verdict
        assert verdict.bottleneck == "startup"
        return verdict.sentence

    def test_ending_the_workers_before_is_part_of_it(self) -> None:
        without = self.sentence(Startup(5.0, launch=1.0, ready=4.0))
        with_it = self.sentence(Startup(5.0, launch=1.0, ready=4.0, shutdown=1.0))
        assert "500 ms a step" in without and "600 ms a step" in with_it

    def test_its_parts(self) -> None:
        sentence = self.sentence(Startup(5.0, launch=1.0, ready=4.0))
        assert "500 ms a step when spread over the epoch's 10 batches" in sentence
        assert sentence.endswith(
            "Of 5 s, launching the workers takes 1 s, their imports and init function 3 s, the first batch 1 s. "
            "persistent_workers=True pays it once."
        )

    def test_the_one_in_the_middle_stands_for_all(self) -> None:
        startups = [Startup(s, launch=s / 10, ready=s / 2) for s in (9.0, 4.0, 5.0)]
        assert "Of 5 s, launching the workers takes 0.5 s, their imports and init function 2 s" in self.sentence(
            *startups
        )

    def test_parts_that_are_not_known(self) -> None:
        assert "launching" not in self.sentence(5.0)

    def test_the_workers_are_kept_already(self) -> None:
        sentence = self.sentence(Startup(60.0, launch=1.0, ready=2.0), Startup(4.0, renewed=True), persistent=True)
        assert "400 ms a step" in sentence, "starting them is paid once"
        assert sentence.endswith("The workers are kept already; longer epochs, or a cheaper first batch, would help.")

    def test_kept_workers_begin_quickly(self) -> None:
        startups = [Startup(60.0, launch=1.0, ready=2.0), Startup(0.01, renewed=True)]
        session = make(FLAT, startups=startups, length=10, persistent=True)
        assert judged(session).verdict.bottleneck == "none"

    def test_clocks_that_disagree_a_little(self) -> None:
        assert "the first batch 0 s" in self.sentence(Startup(5.0, launch=1.0, ready=5.001))


def test_a_hiccup_under_the_cache_leaves_a_starved_loop_starved() -> None:
    """In one of three windows a step from the cache took ten times as long: still a small part of the step."""
    session = make({"device": 0.25, "baseline": 18.0}, noise=0.0, rounds=3)
    third = [window for window in session.windows if window.rung == "device"][2]
    third.seconds *= 10
    verdict = judged(session).verdict
    assert verdict.bottleneck not in ("inconclusive", "none")
    assert verdict.starved is not None
    assert verdict.starved.low > SEVERE


def test_one_window_says_nothing_of_the_share() -> None:
    verdict = judged(make({"device": 1.0, "baseline": 18.0}, noise=0.0, rounds=1)).verdict
    assert verdict.starved is not None
    assert (verdict.starved.low, verdict.starved.high) == (-math.inf, 1.0)
