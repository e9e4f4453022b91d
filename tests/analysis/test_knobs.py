"""Other loader settings: which are tried and why, which fit into memory, their race, and which are recommended."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from pipediag.analysis import diagnose_session
from pipediag.analysis.numbers.ladder import LadderView
from pipediag.analysis.recommend.tried import IDS
from pipediag.analysis.trials import making_way
from pipediag.analysis.trials.halving import FIRST_LOOK, arms, best, next_settings, rate, to_dict
from pipediag.analysis.trials.settings import MOST, Memory, candidates, current, left_out
from pipediag.analysis.whatif import what_if
from pipediag.host.passes import Request
from pipediag.host.progress_line import ProgressLine
from pipediag.measure import machine
from pipediag.measure.schedule import Schedule
from pipediag.measure.window import Stopwatch, window_steps
from pipediag.report import RENDERERS
from pipediag.session import (
    BatchFacts,
    Knobs,
    Loader,
    LoaderSettings,
    Rung,
    Session,
    Tail,
    Window,
    fed_apart,
    ordered,
    settings_of,
    settings_rung,
)
from pipediag.session.events import Progress, Trying

from ..conftest import Main
from ..golden import advised, agrees
from ..made import FLAT, but, climbing, inside, lacking, make, without

#: 50 ms of compute; the workers give a batch every 120 ms and take 400 ms to make one.
STARVED = {**climbing(host=0.5, worker=0.5, sample=0.5), "raw": 120.0, "warm": 120.0, "baseline": 120.0}
BUSY = {"worker_ms": 400.0, "worker_cpu": 1.0, "worker_queued": 0.0, "worker_blocked": 0.0, "process_cpu": 1.0}
GIB = 2**30


def starved(workers: int = 4, ladder: Any = STARVED, seen: Any = BUSY, **more: Any) -> Session:
    session = make(ladder, noise=0.0, evidence={"baseline": dict(seen)}, inside=inside(4.0), workers=workers, **more)
    session.loader.prefetch_factor = 2 if workers else None
    return session


def small(made: float = 0.87, **more: Any) -> Session:
    """Batches are handed over in 7.6 ms and made in ``made`` ms; the device needs 2 ms for one."""
    ladder = {"device": 2.0, "host": 2.2, "worker": 9.8, "sample": 9.9, "raw": 9.9, "warm": 10.0, "baseline": 10.0}
    return starved(4, ladder, {**BUSY, "worker_ms": made, "wait_ms": 7.7}, **more)


def proposed(session: Session) -> list[tuple[int, int | None, bool]]:
    return [(one.num_workers, one.prefetch_factor, one.pin_memory) for one in candidates(session).settings]


class TestCandidates:
    @pytest.mark.parametrize(
        ("session", "workers"),
        [
            # The number that the loop needs, a number between that and the present one, and one worker per core.
            (starved(), [10, 6, 16]),
            # No more than there are cores for.
            (starved(environment={"cores": 8}), [7, 5, 8]),
            # The last core is tried though the model keeps it for the loop.
            (starved(environment={"cores": 5}), [5]),
            # A loader without workers.
            (starved(0, without(STARVED, "worker"), {**BUSY, "worker_ms": 69.0}, absent=["worker"]), [2, 1, 16]),
            # Fewer where they are in the way.
            (
                starved(8, {**climbing(raw=30.0), "supply": 12.5}, {**BUSY, "worker_ms": 100.0, "wait_ms": 5.8}),
                [2, 4],
            ),
        ],
    )
    def test_workers(self, session: Session, workers: list[int]) -> None:
        assert proposed(session) == [(count, 2, False) for count in workers]

    def test_with_the_steps_that_the_model_expects(self) -> None:
        found = candidates(starved())
        assert found.base == pytest.approx(120.0)
        assert found.steps == pytest.approx((51.2, 80.0, 51.2), abs=0.5)

    def test_none_where_all_cores_are_used(self) -> None:
        found = candidates(starved(environment={"cores": 4}))
        assert found.settings == () and found.why_not == "no measurement suggests other settings"

    def test_deeper_queues_where_batches_come_irregularly(self) -> None:
        ladder = {**climbing(), "baseline": 70.0, "supply": 30.0}
        session = starved(4, ladder, {**BUSY, "worker_ms": 120.0, "stalled_ms": 15.0})
        session.tail = Tail(400, 3.0, 60.0)
        assert proposed(session) == [(4, 4, False), (4, 8, False)]

    def test_none_where_a_batch_is_sooner_made_than_handed_over(self) -> None:
        """7.8 ms to take a batch from a worker, 0.87 ms to make one: no other number of workers is as good."""
        session = small()
        numbers = what_if(LadderView(session))
        assert (numbers.handoff.value, numbers.work.run) == (pytest.approx(7.8), pytest.approx(0.87))
        assert proposed(session) == [(0, None, False)]
        found = candidates(session)
        assert (found.base, found.steps) == (pytest.approx(10.0), (pytest.approx(10.0 - 7.8 + 0.87),))
        assert making_way.for_settings(session)

    @pytest.mark.parametrize(("made", "none"), [(7.2, True), (7.4, False), (7.6, False), (8.0, False), (40.0, False)])
    def test_some_where_making_it_takes_longer_or_hardly_less(self, made: float, none: bool) -> None:
        """7.4 ms are sooner by less than 5 % of a step."""
        found = proposed(small(made))
        assert found == [(0, None, False)] if none else not [one for one in found if one[0] == 0]

    @pytest.mark.parametrize("missing", ["worker", "worker_ms"])
    def test_some_where_one_of_the_two_is_not_known(self, missing: str) -> None:
        session = lacking(small(), missing)
        for window in session.windows:
            window.evidence.pop(missing, None)
        session.inside = None
        assert not [one for one in proposed(session) if one[0] == 0]

    def test_pinned_memory_where_copies_matter(self) -> None:
        ladder = {**climbing(host=20.0), "supply": 30.0}
        assert proposed(starved(4, ladder)) == [(4, 2, True)]
        assert proposed(starved(4, ladder, device="cpu")) == []

    def test_several_at_once(self) -> None:
        ladder = {rung: ms + (8.0 if rung != "device" else 0.0) for rung, ms in STARVED.items()}
        found = proposed(starved(4, ladder))
        assert len(found) == MOST and len(set(found)) == MOST
        assert found[:2] == [(9, 2, True), (9, 2, False)]

    @pytest.mark.parametrize(
        "session",
        [Session(), starved(4, FLAT), make({**STARVED, "baseline": 52.0, "warm": 52.0, "raw": 52.0}, noise=0.0)],
        ids=["nothing measured", "not starved", "hardly starved"],
    )
    def test_none_where_the_loop_does_not_starve(self, session: Session) -> None:
        found = candidates(session)
        assert found.settings == () and found.why_not == ""

    def test_none_for_a_stream(self) -> None:
        session = starved()
        session.loader.iterable = True
        assert candidates(session).settings == () and "iterable" in candidates(session).why_not

    def test_a_dataset_that_starts_workers(self) -> None:
        session = but(starved(), loader__nests=True)
        assert candidates(session).settings == () and "another loader's workers" in candidates(session).why_not

    def test_the_loader_as_it_is(self) -> None:
        assert current(Loader(num_workers=3, prefetch_factor=4, pin_memory=True)) == LoaderSettings(3, 4, True)


class TestMakingWay:
    """The ladder leaves the rest of its time to trials once the verdict is known."""

    WAYS = pytest.mark.parametrize("makes_way", [making_way.for_settings, making_way.for_remedies])

    @WAYS
    def test_what_is_left_open_are_small_stages(self, makes_way: Callable[[Session], bool]) -> None:
        assert makes_way(starved())

    @WAYS
    def test_not_before_every_rung_has_its_window(self, makes_way: Callable[[Session], bool]) -> None:
        assert not makes_way(lacking(starved(), "raw"))

    @WAYS
    def test_not_while_the_verdict_is_open(self, makes_way: Callable[[Session], bool]) -> None:
        session = make(climbing(raw=1.6), rounds=3, noise=0.03, evidence={"baseline": BUSY}, inside=inside(4.0))
        assert diagnose_session(session).verdict.bottleneck == "inconclusive" and not makes_way(session)

    @WAYS
    def test_not_where_data_costs_nothing(self, makes_way: Callable[[Session], bool]) -> None:
        assert not makes_way(make(FLAT))

    def test_settings_need_one_to_try(self) -> None:
        session = starved(environment={"cores": 4})
        assert (making_way.for_settings(session), making_way.for_remedies(session)) == (False, True)

    def test_remedies_need_a_certain_verdict(self) -> None:
        session = make(STARVED, rounds=1, noise=0.0, evidence={"baseline": dict(BUSY)}, inside=inside(4.0), workers=4)
        verdict = diagnose_session(session).verdict
        assert verdict.bottleneck != "inconclusive" and not verdict.certain
        assert not making_way.for_remedies(session)


class TestMemory:
    def settings(self, *workers: int, pin: bool = False) -> list[LoaderSettings]:
        return [LoaderSettings(count, 2, pin) for count in workers]

    def test_all_fit(self) -> None:
        assert left_out(self.settings(4, 8), Memory(GIB, 2**20, 100 * GIB, 4 * GIB)) == {}

    def test_all_workers_together_have_half_of_what_is_free(self) -> None:
        found = left_out(self.settings(4, 8, 2), Memory(GIB, 0, 16 * GIB, None))
        assert found == {1: "its workers may take 8.0 GiB, and 16.0 GiB of memory are free"}

    def test_batches_that_lie_ready_count(self) -> None:
        assert left_out(self.settings(8), Memory(0, GIB, 40 * GIB, None)) == {}
        assert 0 in left_out(self.settings(8, pin=True), Memory(0, GIB, 40 * GIB, None))

    def test_shared_memory_is_small_in_containers(self) -> None:
        found = left_out(self.settings(2, 4), Memory(0, 10 * 2**20, 16 * GIB, 64 * 2**20))
        assert found == {
            0: "40 MiB of batches would be queued, and 64 MiB of shared memory are free",
            1: "80 MiB of batches would be queued, and 64 MiB of shared memory are free",
        }

    def test_limit_of_the_control_group(self, tmp_path: Path) -> None:
        (tmp_path / "memory.max").write_text("1000\n")
        (tmp_path / "memory.current").write_text("900\n")
        (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 300\n")
        assert machine.free_bytes(tmp_path) == 400
        (tmp_path / "memory.max").write_text("max\n")
        assert machine.free_bytes(tmp_path) > 2**20

    def test_limit_of_an_older_control_group(self, tmp_path: Path) -> None:
        folder = tmp_path / "memory"
        folder.mkdir()
        (folder / "memory.limit_in_bytes").write_text("1000\n")
        (folder / "memory.usage_in_bytes").write_text("1200\n")
        (folder / "memory.stat").write_text("total_inactive_file 100\n")
        assert machine.free_bytes(tmp_path) == 0

    def test_what_cannot_be_asked(self, tmp_path: Path) -> None:
        assert machine.free_bytes(tmp_path) > 2**20
        assert machine.shared_bytes(tmp_path / "none") is None and (machine.shared_bytes(tmp_path) or 0) > 0
        assert machine.own_bytes([2**22 + 1]) == 0


def tried(
    settings: Sequence[LoaderSettings],
    gains: Sequence[float],
    rounds: int = 8,
    session: Session | None = None,
    **more: Any,
) -> Session:
    """A starved loop after a trial of these settings, with these speedups over the unmodified loader."""
    session = session or starved(**more)
    session.knobs = Knobs(list(settings))
    for round_ in range(20, 20 + rounds):
        jitter = 1 + 0.002 * (round_ % 3)
        session.windows.append(Window("baseline", round_, 10, 1.2 * jitter))
        for number, gain in enumerate(gains, 1):
            session.windows.append(Window(settings_rung(number), round_, 10, 1.2 / gain))
    return session


TEN, SIX, NONE = LoaderSettings(10, 2), LoaderSettings(6, 2), LoaderSettings(0)
#: Workers that are in the way: half of them suffice.
IN_THE_WAY = {"ladder": {**climbing(raw=30.0), "supply": 12.5}, "seen": {**BUSY, "worker_ms": 100.0, "wait_ms": 5.8}}


def contradicting() -> Session:
    """Enough rounds that contradict each other say more than the model."""
    session = tried([TEN], [1.2], rounds=FIRST_LOOK)
    for window, seconds in zip(session.windows_of("settings:1"), (0.6, 1.9, 1.1), strict=True):
        window.seconds = seconds
    return session


def failed() -> Session:
    return but(tried([TEN], []), rungs=starved().rungs | {"settings:1": Rung("settings:1", False, "E: no fork")})


def pinned() -> Session:
    """Then asynchronous copies are recommended, as a prediction."""
    session = tried([LoaderSettings(4, 2, True)], [1.0], ladder={**climbing(host=20.0), "supply": 30.0})
    return but(session, batch=BatchFacts(copy_ms=20.0, pinned_copy_ms=5.0))


#: What is recommended of the loader's settings, by name; golden/knobs.txt holds all that is said.
ADVISED: dict[str, tuple[Session, list[str]]] = {
    "as measured": (tried([TEN, SIX], [2.2, 1.4]), ["num-workers"]),
    "several settings at once: the model does not know of both together": (
        tried([LoaderSettings(10, 2, True), TEN], [2.4, 2.1]), ["num-workers"],
    ),
    "a deeper queue": (tried([LoaderSettings(4, 8)], [1.3]), ["num-workers", "prefetch-factor"]),
    "pinned memory": (tried([LoaderSettings(4, 2, True)], [1.3]), ["num-workers", "pin-memory"]),
    "fewer workers": (tried([LoaderSettings(2, 2)], [1.3]), ["num-workers", "fewer-workers"]),
    "no workers": (tried([NONE], [3.0], session=small()), ["no-workers"]),
    "no workers, without an option that torch refuses": (
        tried([LoaderSettings(0, startup=3.0)], [3.0], session=small(length=100)), ["no-workers"],
    ),
    "no workers, with that option so far": (
        tried([LoaderSettings(0, startup=3.0)], [3.0], session=small(length=100, persistent=True)), ["no-workers"],
    ),
    "no workers that do not pay vanish": (tried([NONE], [0.8], session=small()), []),
    "no workers say nothing of more": (tried([NONE], [0.8]), ["num-workers"]),
    "fewer workers, as predicted": (starved(8, **IN_THE_WAY), ["fewer-workers", "prefetch-factor"]),
    "no workers are slower, which says nothing of fewer": (
        tried([NONE], [0.5], session=starved(8, **IN_THE_WAY)), ["fewer-workers", "prefetch-factor"],
    ),
    "no workers are faster, and have no queue": (
        tried([NONE], [2.0], session=starved(8, **IN_THE_WAY)), ["no-workers"],
    ),
    "as predicted": (starved(), ["num-workers"]),
    "what does not pay vanishes": (tried([TEN, SIX], [1.0, 0.9]), []),
    "what is open stays a prediction and says so": (tried([TEN], [1.5], rounds=FIRST_LOOK - 1), ["num-workers"]),
    "what a trial left open is not predicted": (contradicting(), []),
    "nor what was slower in the few rounds that there were": (tried([TEN], [0.8], rounds=1), []),
    "many cores are in use": (starved(seen={**BUSY, "cores_busy": 10.0, "cores_used": 5.0}), ["num-workers"]),
    "all cores are in use": (starved(seen={**BUSY, "cores_busy": 15.5, "cores_used": 5.0}), []),
    "all cores are in use by others, but workers sleep": (
        starved(seen={**BUSY, "worker_cpu": 0.1, "worker_blocked": 0.9, "cores_busy": 15.5, "cores_used": 1.5}),
        ["num-workers"],
    ),
    "what failed stays a prediction and says why": (failed(), ["num-workers"]),
    "what was not tried says why": (
        but(starved(), knobs=Knobs(why_not="the ladder left no time for it")), ["num-workers"],
    ),
    "pinning alone may not pay": (pinned(), ["pin-memory"]),
    "the measured gain takes its place in the order, even if more was predicted": (
        tried([TEN], [1.1]), ["num-workers"],
    ),
    # Windows contain no end of an epoch, so the cost of starting workers there is computed beside it.
    "a start in every epoch": (
        tried([LoaderSettings(10, 2, startup=3.0)], [2.0], length=100), ["num-workers"],
    ),
    "a start in every long epoch": (
        tried([LoaderSettings(10, 2, startup=3.0)], [2.0], length=10_000), ["num-workers"],
    ),
    "a start of workers that persist": (
        tried([LoaderSettings(10, 2, startup=3.0)], [2.0], length=100, persistent=True), ["num-workers"],
    ),
}  # fmt: skip


def test_what_is_recommended() -> None:
    lines = []
    for name, (session, expected) in ADVISED.items():
        found = diagnose_session(session).recommendations
        assert len({one.id for one in found}) == len(found)
        gains = [one.gain.value for one in found if one.gain is not None and not one.at_most]
        assert gains == sorted(gains, reverse=True)
        about = [one for one in found if one.id in IDS]
        assert {one.id for one in about} == {*expected}, name
        lines += [name, *(line for one in about for line in advised(one)), ""]
    agrees(Path(__file__).parent / "golden" / "knobs.txt", "\n".join(lines))


class TestReports:
    def session(self) -> Session:
        return tried([LoaderSettings(10, 2, startup=0.4), SIX], [2.2, 1.4])

    @pytest.mark.parametrize(("ending", "title"), [(".txt", "other loader settings"), (".md", "Other loader settings")])
    def test_why_none_was_tried(self, ending: str, title: str) -> None:
        text = " ".join(RENDERERS[ending](diagnose_session(ADVISED["what was not tried says why"][0])).split())
        assert "- none: the ladder left no time for it; their gains are predicted" in text
        for session in (starved(), make(FLAT)):  # nothing was to be tried
            assert title not in RENDERERS[ending](diagnose_session(session))

    def test_a_saved_session_tells_the_same(self) -> None:
        session = self.session()
        again = Session.from_dict(session.to_dict())
        assert again.knobs == session.knobs
        assert diagnose_session(again).to_dict() == diagnose_session(session).to_dict()

    def test_published_apart_from_the_ladder(self) -> None:
        told = diagnose_session(self.session()).to_dict()
        assert told["loader_settings"]["best"] == "settings:1"
        assert not [rung for rung in told["rungs"] if rung["name"].startswith("settings:")]
        assert diagnose_session(starved()).to_dict()["loader_settings"] is None


class TestRungs:
    def test_there_and_back(self) -> None:
        assert [settings_of(settings_rung(number)) for number in (1, 12)] == [1, 12]
        assert [settings_of(name) for name in ("baseline", "settings:", "settings:x", "transform:2")] == [None] * 4

    def test_stand_beside_the_ladder(self) -> None:
        names = ["settings:10", "settings:2", "remedied", "baseline", "supply", "transform:1"]
        assert [name for name in names if fed_apart(name)] == ["settings:10", "settings:2", "remedied"]
        assert ordered(names[:2]) == ["settings:2", "settings:10"]
        assert ordered(names)[:3] == ["transform:1", "baseline", "supply"]

    def test_the_ladder_knows_nothing_of_them(self) -> None:
        """The machine may have become faster or slower meanwhile."""
        session = tried([TEN], [2.0])
        for window in session.windows:
            window.seconds *= 3 if window.round >= 20 else 1
        session.rungs["settings:1"] = Rung("settings:1")
        ladder = LadderView(session)
        assert ladder.ms("baseline").value == pytest.approx(120.0) and not ladder.has("settings:1")
        assert "settings:1" not in session.measured()
        plain, after = diagnose_session(starved()), diagnose_session(session)
        assert (plain.verdict, plain.waterfall, plain.partial) == (after.verdict, after.waterfall, after.partial)

    def test_as_an_event(self) -> None:
        session = Session()
        session.apply("knobs", asdict(Knobs([LoaderSettings(3, 2, True, 0.5)], "no time")))
        assert session.knobs == Knobs([LoaderSettings(3, 2, True, 0.5)], "no time")


class TestAskedFor:
    """``analyze`` and ``demo`` try other settings unless told not to."""

    @pytest.mark.parametrize(
        ("command", "tried"),
        [(("analyze", "train.py"), True), (("analyze", "--no-knobs", "train.py"), False), (("demo",), True)],
    )
    def test_commands(
        self, main: Main, analyzed: Callable[[Session], list[Request]], command: tuple[str, ...], tried: bool
    ) -> None:
        requests = analyzed(make(FLAT))
        assert main(*command)[0] == 0
        assert [request.knobs for request in requests] == [tried]


def test_progress_names_what_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    said = io.StringIO()
    progress, session = ProgressLine(said), Session(knobs=Knobs([SIX]))
    monkeypatch.setattr("pipediag.host.progress_line._EVERY", 0.0)
    progress(Trying(20.0), session)
    progress(Progress("settings:1", 4), session)
    assert "trying other loader settings" in said.getvalue()
    assert "round 4, num_workers=6, prefetch_factor=2, " in said.getvalue()


#: Milliseconds of a step on the loader as it is.
BASE = 100.0


def entered(workers: Sequence[int]) -> Session:
    """A session in which loaders with these numbers of workers are to be tried."""
    return Session(knobs=Knobs([LoaderSettings(count, 2) for count in workers]))


def raced(gains: Sequence[float], rounds: int, noise: float = 0.0, seed: int = 3, drift: float = 0.0) -> Session:
    """Add ``rounds`` in which settings with 2, 3, ... workers reach these speedups, and all stay to the end."""
    session, draw = entered(range(2, 2 + len(gains))), random.Random(seed)
    for round_ in range(7, 7 + rounds):
        machine = 1.0 + drift * (round_ - 7)
        for rung, gain in (("baseline", 1.0), *((settings_rung(k), gain) for k, gain in enumerate(gains, 1))):
            ms = BASE / gain * machine * (1 + draw.gauss(0, noise))
            session.windows.append(Window(rung, round_, 10, ms / 100))
    return session


def run(gains: Sequence[float], noise: float, seed: int, most: int = 20) -> Session:
    """Run a whole race, round by round as it asks for them."""
    session, draw = entered(range(2, 2 + len(gains))), random.Random(seed)
    for round_ in range(1, most):
        for rung in next_settings(session):
            number = settings_of(rung)
            ms = BASE / (1.0 if number is None else gains[number - 1]) * (1 + draw.gauss(0, noise))
            session.windows.append(Window(rung, round_, 10, ms / 100))
    return session


def names(*numbers: int) -> list[str]:
    return ["baseline", *map(settings_rung, numbers)]


class TestWhoStays:
    @pytest.mark.parametrize("rounds", range(FIRST_LOOK))
    def test_all_until_the_first_look(self, rounds: int) -> None:
        assert next_settings(raced([2.0, 1.0, 1.5], rounds)) == names(1, 2, 3)

    def test_the_better_half(self) -> None:
        assert next_settings(raced([1.2, 1.5, 1.3, 1.6], FIRST_LOOK, noise=0.1)) == names(2, 4)

    def test_who_has_left_does_not_come_back(self) -> None:
        session = raced([1.2, 1.5, 1.3, 1.6], FIRST_LOOK, noise=0.1)
        for round_ in range(20, 20 + FIRST_LOOK - 1):
            for rung, ms in (("baseline", 100.0), ("settings:2", 60.0), ("settings:4", 61.0)):
                session.windows.append(Window(rung, round_, 10, ms / 100))
                assert next_settings(session) == names(2, 4)
        session.windows += [Window(rung, 30, 10, 1.0 if rung == "baseline" else 0.6) for rung in names(2, 4)]
        assert next_settings(session) == [], "one is left, and it pays"

    def test_not_who_is_certainly_slower_than_the_first(self) -> None:
        session = raced([1.2, 2.0, 1.3, 1.0, 1.0, 1.0], FIRST_LOOK, noise=0.001)
        assert next_settings(session) == [], "half of six are three, but two of them cannot win any more"

    def test_not_who_certainly_gains_too_little(self) -> None:
        assert next_settings(raced([1.0, 1.02], FIRST_LOOK, noise=0.001)) == []

    def test_not_who_cannot_be_measured(self) -> None:
        session = raced([2.0, 1.5], 2)
        session.rungs["settings:1"] = Rung("settings:1", False, "no memory")
        assert next_settings(session) == names(2)
        session.rungs["settings:2"] = Rung("settings:2", False, "no memory")
        assert next_settings(session) == []

    def test_one_goes_on_until_it_is_decided(self) -> None:
        open_ = raced([1.1], FIRST_LOOK, noise=0.1)
        assert next_settings(open_) == names(1)
        assert next_settings(raced([1.1], FIRST_LOOK, noise=0.001)) == []

    def test_nothing_to_try(self) -> None:
        assert next_settings(Session()) == [] == arms(Session())
        assert best(Session()) is None and to_dict(Session()) is None


class TestWhoWins:
    def test_the_fastest(self) -> None:
        found = best(raced([1.5, 2.0, 1.2], FIRST_LOOK, noise=0.005))
        assert found is not None and found.rung == "settings:2"
        assert found.speedup is not None and found.speedup.low < 2.0 < found.speedup.high

    def test_the_cheaper_of_those_that_are_about_as_fast(self) -> None:
        """The gain of three more workers is not worth a change."""
        session = raced([1.98, 2.0, 2.02], FIRST_LOOK, noise=0.001)
        found = best(session)
        assert found is not None and found.settings.num_workers == 2

    @pytest.mark.parametrize(("gain", "verdict"), [(1.5, "pays"), (1.02, "pays"), (1.004, "no gain"), (0.8, "slower")])
    def test_only_what_clears_the_instruments_resolution(self, gain: float, verdict: str) -> None:
        session = raced([gain], FIRST_LOOK, noise=0.0005)
        assert arms(session)[0].verdict == verdict
        assert (best(session) is not None) is (verdict == "pays")

    def test_few_rounds_prove_nothing(self) -> None:
        session = raced([3.0], FIRST_LOOK - 1)
        assert best(session) is None and arms(session)[0].verdict == "open"

    def test_rounds_without_the_loader_as_it_is_do_not_count(self) -> None:
        session = raced([3.0], FIRST_LOOK)
        session.windows.remove(session.windows_of("baseline")[0])
        assert arms(session)[0].rounds == FIRST_LOOK - 1 and best(session) is None

    def beside_others(self, foreign: Sequence[float], gains: Sequence[float]) -> Session:
        """A race on two cores, in which other processes use ``foreign`` cores during the loader's own windows."""
        session = raced([1.0], len(gains))
        session.environment["cores"] = 2
        for window in session.windows:
            busy = foreign[window.round - 7] if window.rung == "baseline" else 0.0
            window.evidence = {"cores_busy": 1.0 + busy, "cores_used": 1.0}
            if window.rung != "baseline":
                window.seconds /= gains[window.round - 7]
        return session

    def test_rounds_under_unlike_load_do_not_count(self) -> None:
        """Two rounds say that it is slower; in three, another program slowed the loader, but not its rival."""
        session = self.beside_others([0.0, 0.0, 1.0, 1.0, 1.0], [0.8, 0.8, 2.0, 2.0, 2.0])
        (arm,) = arms(session)
        assert arm.rounds == 2 and arm.speedup is not None
        assert arm.speedup.value == pytest.approx(0.8)
        assert best(session) is None and next_settings(session) == names(1)

    def test_rounds_under_like_load_do(self) -> None:
        assert arms(self.beside_others([0.2] * 3, [1.5] * 3))[0].rounds == 3

    def test_windows_of_different_passes_are_no_round(self) -> None:
        session = raced([1.5], FIRST_LOOK)
        session.windows_of("settings:1")[0].attempt = 2
        assert arms(session)[0].rounds == FIRST_LOOK - 1

    def test_the_best_of_many_needs_a_clearer_lead(self) -> None:
        """The same windows of one setting, alone and among six."""
        alone = raced([1.15], FIRST_LOOK, noise=0.035, seed=9)
        assert arms(alone)[0].pays
        among = Session(windows=list(alone.windows), knobs=Knobs([LoaderSettings(2 + k, 2) for k in range(6)]))
        among.windows += [Window(settings_rung(k), 7, 10, 1.0) for k in range(2, 7)]
        assert not arms(among)[0].pays and arms(among)[0].speedup == arms(alone)[0].speedup

    def test_seldom_by_chance(self) -> None:
        fooled = [seed for seed in range(20) if best(run([1.0, 1.0, 1.0], 0.03, seed, most=10)) is not None]
        assert len(fooled) <= 1

    @pytest.mark.parametrize("seed", range(5))
    def test_in_spite_of_noise(self, seed: int) -> None:
        found = best(run([1.1, 1.6, 1.3], 0.03, seed))
        assert found is not None and found.rung == "settings:2"


class Machine:
    """Runs a race on a simulated clock and slows down all the time."""

    def __init__(self, session: Session, gains: Sequence[float], slowing: float) -> None:
        self.seconds = 0.0
        self.order: list[str] = []
        self._session, self._gains, self._slowing = session, gains, slowing

    def now(self) -> float:
        return self.seconds

    def step(self, rung: str) -> None:
        number = settings_of(rung)
        gain = 1.0 if number is None else self._gains[number - 1]
        self.seconds += BASE / 1000 / gain * (1 + self._slowing * self.seconds)

    def race(self) -> None:
        schedule = Schedule(names(*range(1, 1 + len(self._gains))), self._session, next_settings)
        schedule.round = 1
        while (rung := schedule.next_rung()) is not None:
            self.order.append(rung)
            watch = Stopwatch(self, lambda: None)
            watch.start()
            for _ in range(window_steps(BASE / 1000, 0.5, 2)):
                self.step(rung)
                watch.count()
            watch.stop()
            self._session.windows.append(Window(rung, schedule.round, watch.steps, watch.seconds))


@pytest.mark.parametrize("slowing", [0.0, 0.03])
def test_drift_does_not_decide(slowing: float) -> None:
    """The machine slows down by more than any setting gains."""
    session = entered([2, 4, 8])
    machine = Machine(session, [1.0, 1.3, 1.1], slowing)
    machine.race()
    found = best(session)
    assert found is not None and found.rung == "settings:2"
    assert found.speedup is not None and found.speedup.value == pytest.approx(1.3, rel=0.05)
    firsts = [window.ms_per_step for window in session.windows_of("baseline")]
    assert (firsts[-1] > 1.1 * firsts[0]) is bool(slowing)
    by_round: dict[int, list[str]] = {}
    for window in session.windows:
        by_round.setdefault(window.round, []).append(window.rung)
    assert all("baseline" in rungs for rungs in by_round.values())
    assert len({tuple(rungs) for rungs in by_round.values()}) > 1, "the order varies"


def test_as_published() -> None:
    session = raced([2.0, 1.0], FIRST_LOOK)
    session.knobs.tried.append(LoaderSettings(16, 2, True, startup=0.5))
    session.rungs["settings:3"] = Rung("settings:3", False, "no memory")
    told = to_dict(session)
    assert told is not None and json.loads(json.dumps(told)) == told
    assert told["best"] == "settings:1" and told["why_not"] is None
    assert [one["verdict"] for one in told["tried"]] == ["pays", "no gain", "failed"]
    assert told["tried"][0]["measured_speedup"]["value"] == pytest.approx(2.0)
    assert told["tried"][0]["steps_per_s"]["value"] == pytest.approx(20.0)
    assert told["tried"][2] == {
        "rung": "settings:3",
        "num_workers": 16,
        "prefetch_factor": 2,
        "pin_memory": True,
        "startup_s": 0.5,
        "steps_per_s": None,
        "measured_speedup": None,
        "rounds": 0,
        "verdict": "failed",
        "why_not": "no memory",
    }


def test_rates_are_those_of_the_race() -> None:
    session = raced([2.0], FIRST_LOOK)
    session.windows.append(Window("baseline", 0, 10, 5.0))
    steps = rate(session, "baseline")
    assert steps is not None and steps.value == pytest.approx(10.0)
