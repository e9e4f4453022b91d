"""After a pass over the script, the parent starts another one for what is left to measure, or ends."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from pipediag.host.endings import files_written, nothing_measured, nth, trouble
from pipediag.host.folders import Folders
from pipediag.host.passes import MAX_BARREN, PROLOGUE_AGAIN, _acquit, _give_up, _next, _patience, _worth_it
from pipediag.host.supervision import PROLOGUE, Outcome, Watch
from pipediag.measure.schedule import Plan
from pipediag.session import REMEDIED, Rung, Script, Session, Window
from pipediag.session.events import LoaderUse, Story, read

LOADER = LoaderUse(1, "train.py:3", draws=50, credits=40)
STORY = Story([LOADER], optimizer_steps=40, target=1, rung="baseline")


def ended(**values: Any) -> Outcome:
    return Outcome(**{"story": STORY, "seconds": 10.0, "batches": True, **values})


def both(seconds: float) -> dict[str, float]:
    return {"budget": seconds, "apply": seconds}


class TestNext:
    @pytest.mark.parametrize(
        ("plan", "outcome", "following"),
        [
            # The ladder goes on in another pass, unless the child itself has ended it.
            (Plan(budget=30.0, apply=20.0), ended(), {"budget": 20.0, "apply": 20.0, "attempt": 2, "climbed": False}),
            (Plan(apply=20.0), ended(reason="settled"), None),
            (Plan(apply=20.0), ended(reason="budget"), None),
            # So does the remedy.
            (Plan(budget=30.0, apply=20.0), ended(climbed=True, applied=5.0), {"climbed": True, **both(15.0)}),
            (Plan(climbed=True, **both(15.0)), ended(climbed=True, applied=14.5), None),
            # And a trial of settings, which has no more than the budget leaves.
            (
                Plan(budget=30.0, knobs=10.0),
                ended(climbed=True, seconds=22.0, tried=4.0),
                {"climbed": True, "knobs": 6.0, "budget": 8.0, "apply": 0.0},
            ),
            (Plan(climbed=True, knobs=6.0, budget=8.0), ended(climbed=True, seconds=7.5, tried=2.0), None),
            (
                Plan(budget=30.0, knobs=10.0, apply=20.0),
                ended(climbed=True, seconds=27.0),
                {"knobs": 3.0, **both(20.0)},
            ),
            (
                Plan(budget=30.0, knobs=10.0, apply=20.0),
                ended(seconds=29.5),
                {"climbed": True, "knobs": 0.0, "budget": 20.0},
            ),
            # A spent budget leaves the remedy's.
            (Plan(budget=10.5, apply=20.0), ended(), {"climbed": True, **both(20.0)}),
            (Plan(budget=10.5), ended(), None),
        ],
    )
    def test_what_is_left(self, plan: Plan, outcome: Outcome, following: dict[str, Any] | None) -> None:
        found = _next(plan, outcome, Session())
        assert (found is None) == (following is None)
        assert found is None or {name: getattr(found, name) for name in following or {}} == following

    def test_settings_are_left_alone_once_a_remedy_pays(self, monkeypatch: pytest.MonkeyPatch) -> None:
        plan, outcome = Plan(budget=30.0, knobs=10.0, apply=20.0), ended(climbed=True, applied=5.0)
        monkeypatch.setattr("pipediag.host.passes.left_to_try", lambda session, approximate: None)
        for kept, knobs in ((False, 10.0), (True, 0.0)):
            monkeypatch.setattr("pipediag.host.passes.any_kept", lambda session, kept=kept: kept)
            found = _next(plan, outcome, Session())
            assert (found.knobs if found is not None else 0.0) == knobs
            assert found is None or found.apply == 0.0, "no remedy is left to try"

    def test_why_the_script_runs_again(self) -> None:
        """The progress display shows it."""
        plan = _next(Plan(budget=30.0), ended(), Session())
        assert plan is not None
        assert plan.why == "the script ended after 40 steps; running it again to measure the other stages"
        untrained = replace(STORY, target=None, optimizer_steps=0, loaders=[replace(LOADER, draws=1)])
        plan = _next(Plan(budget=30.0, apply=9.0), ended(climbed=True, story=replace(untrained, target=1)), Session())
        assert plan is not None and plan.why.startswith("the script ended after 1 batch; ")
        assert plan.why.endswith("the changes that could help")
        plan = _next(Plan(budget=30.0), ended(story=untrained), Session())
        assert plan is not None and plan.why.startswith("no optimizer stepped; ")
        failed = ended(exit_code=1, story=replace(STORY, rung="device", error="TypeError: no"))
        plan = _next(Plan(budget=30.0), failed, Session())
        why = "the script failed on batches cached on the training device (TypeError: no); "
        assert plan is not None and plan.why.startswith(why)

    def test_a_rung_that_the_script_failed_under_is_left_out(self) -> None:
        failed = ended(exit_code=1, story=replace(STORY, rung="device", error="TypeError: no"))
        plan = _next(Plan(budget=30.0), failed, Session())
        assert plan is not None and "TypeError: no" in plan.excluded["device"]

    def test_a_loader_of_a_parent_is_not_measured_where_its_children_train(self) -> None:
        story = replace(STORY, target=None, optimizer_steps=0)
        plan = _next(Plan(budget=30.0), ended(story=story), Session())
        assert plan is not None and plan.inference and plan.loader == 1
        assert _next(Plan(budget=30.0), ended(story=story, trainers=["train, train.py:3"]), Session()) is None

    def test_a_failure_of_the_scripts_own_is_the_end(self) -> None:
        failed = ended(exit_code=1, story=replace(STORY, error="TypeError: no"))
        assert not failed.failed_under and _next(Plan(budget=30.0), failed, Session()) is None


@pytest.mark.parametrize(("rung", "blamed"), [("device", ""), ("raw", "raw"), (REMEDIED, REMEDIED)])
def test_an_error_from_making_a_plain_batch_is_the_scripts_own(rung: str, blamed: str) -> None:
    """Under ``device``, workers make the batches that they always make."""
    assert ended(exit_code=1, story=replace(STORY, rung=rung, error="E", making=True)).failed_under == blamed
    assert ended(exit_code=1, story=replace(STORY, rung=rung, error="E")).failed_under == rung


def test_a_rung_is_not_blamed_for_an_error_that_comes_without_it() -> None:
    session = Session(rungs={name: Rung(name, False, "failed on these batches") for name in ("raw", "warm")})
    story = replace(STORY, error="LookupError: 7")
    under = [replace(story, rung=rung) for rung in ("raw", "baseline")]
    other = replace(STORY, rung="warm", error="TypeError: no")
    _acquit(session, [ended(exit_code=1, story=one) for one in (*under, other)])
    assert session.rungs["raw"].why_not == (
        "the script failed in its 1st run, and not only on these batches: LookupError: 7"
    )
    assert session.rungs["warm"].why_not == "failed on these batches"


def test_a_script_that_fails_under_the_remedy_has_not_failed() -> None:
    outcome = ended(exit_code=1, climbed=True, story=replace(STORY, rung=REMEDIED, error="TypeError: no"))
    session = Session(rungs={REMEDIED: Rung(REMEDIED)})
    assert outcome.failed_under == REMEDIED
    _give_up(outcome, session)
    assert outcome.exit_code == 0 and not session.rungs[REMEDIED].available
    assert session.rungs[REMEDIED].why_not.endswith("on these batches: TypeError: no")
    assert _next(Plan(apply=20.0), outcome, session) is None


def test_a_script_that_fails_under_other_settings_has_not_failed() -> None:
    """The other settings and the remedy are still tried."""
    story = replace(STORY, rung="settings:2", error="TypeError: no")
    outcome = ended(exit_code=1, climbed=True, seconds=22.0, tried=4.0, story=story)
    session = Session()
    _give_up(outcome, session)
    assert outcome.exit_code == 0
    assert session.rungs["settings:2"].why_not == "the script failed on these batches: TypeError: no"
    plan = _next(Plan(budget=30.0, knobs=10.0), outcome, session)
    assert plan is not None and plan.climbed and plan.knobs == 6.0


class TestWatch:
    def play(self, watch: Watch, clock: list[float], events: list[tuple[str, dict[str, Any], float]]) -> None:
        """Let the watch note each event at its time, and close it."""
        for kind, data, at in events:
            clock[0] = at
            assert not watch.overdue(), kind
            watch.note(read(kind, data))
        watch.close()

    def test_each_part_has_its_time(self, clock: list[float]) -> None:
        watch = Watch(Plan(budget=30.0, apply=20.0), Session())
        outcome = watch.outcome
        events: list[tuple[str, dict[str, Any], float]] = [
            ("first-batch", {}, 5.0),
            ("applying", {"ended": "settled"}, 40.0),
            ("applying", {"budget": 20.0}, 200.0),
            ("applying", {"ended": "settled"}, 210.0),
            ("applying", {"budget": 10.0}, 400.0),
            ("finished", {"reason": "settled"}, 420.0),
        ]
        self.play(watch, clock, events)
        assert outcome.climbed and (outcome.seconds, outcome.applied) == (35.0, 380.0), "preparing it counts"
        clock[0] = 500.0
        assert watch.overdue() and outcome.reason == "settled"

    def test_trying_settings_is_a_part_of_the_budget(self, clock: list[float]) -> None:
        """Remedies have time of their own, before it."""
        watch = Watch(Plan(budget=30.0, knobs=10.0, apply=20.0), Session())
        outcome = watch.outcome
        events: list[tuple[str, dict[str, Any], float]] = [
            ("first-batch", {}, 5.0),
            ("applying", {"ended": "settled"}, 40.0),
            ("applying", {"budget": 20.0}, 60.0),
            ("trying", {"budget": 10.0}, 80.0),
            ("finished", {"reason": "settled"}, 100.0),
        ]
        self.play(watch, clock, events)
        assert outcome.climbed and (outcome.seconds, outcome.tried, outcome.applied) == (55.0, 20.0, 40.0)

    def test_a_later_pass_takes_from_the_budget_from_its_start(self, clock: list[float]) -> None:
        watch = Watch(Plan(budget=30.0, knobs=10.0, attempt=2, climbed=True), Session())
        outcome = watch.outcome
        events: list[tuple[str, dict[str, Any], float]] = [
            ("first-batch", {}, 5.0),
            ("trying", {"budget": 10.0}, 8.0),
            ("finished", {"reason": "settled"}, 15.0),
        ]
        self.play(watch, clock, events)
        assert (outcome.seconds, outcome.tried) == (15.0, 7.0)

    @pytest.mark.parametrize(
        ("kind", "data", "late"), [("first-batch", {}, 46.0), ("applying", {"budget": 20.0}, 36.0)]
    )
    def test_what_takes_longer_hangs(self, clock: list[float], kind: str, data: dict[str, Any], late: float) -> None:
        session = Session()
        watch = Watch(Plan(budget=30.0, apply=20.0), session)
        outcome = watch.outcome
        watch.note(read(kind, data))
        clock[0] = late - 2.0
        assert not watch.overdue()
        clock[0] = late
        assert watch.overdue() and outcome.reason == "budget"
        assert [warning.code for warning in session.warnings] == ["hung"]

    def test_a_script_that_waits_for_a_lock_in_a_later_pass_is_ended_sooner(self, clock: list[float]) -> None:
        patience = _patience([ended(prologue=20.0)])
        assert (_patience([]), _patience([ended(prologue=2.0)]), patience) == (PROLOGUE, PROLOGUE_AGAIN, 80.0)
        watch = Watch(Plan(budget=30.0, attempt=2), Session(), patience)
        outcome = watch.outcome
        clock[0] = 79.0
        assert not watch.overdue()
        clock[0] = 81.0
        assert watch.overdue() and outcome.hung == 81.0 and outcome.reason == "budget"
        assert trouble([ended(), outcome]) == "asked for no batch in its 2nd run and was ended after 81 s"


class TestWhetherAnotherPassIsWorthIt:
    """A pass without a window is repeated only for another task, or if earlier passes gave windows."""

    @pytest.mark.parametrize(
        ("following", "windows", "barren", "worth"),
        [
            (Plan(budget=20.0, attempt=2), False, 0, True),
            (Plan(budget=20.0, attempt=2), False, 1, False),
            (Plan(budget=20.0, attempt=2), True, 1, True),
            (Plan(budget=20.0, attempt=2), True, MAX_BARREN + 1, False),
            (Plan(budget=20.0, attempt=2, horizon=5), False, 1, True),
            (Plan(budget=20.0, attempt=2, inference=True, loader=1), False, 1, True),
            (Plan(budget=20.0, attempt=2, excluded={"device": "no"}), False, 1, True),
            (Plan(budget=20.0, attempt=2, horizon=5), False, MAX_BARREN + 1, False),
        ],
    )
    def test_it(self, following: Plan, windows: bool, barren: int, worth: bool) -> None:
        session = Session(windows=[Window("baseline", 0, 10, 1.0)] if windows else [])
        assert _worth_it(Plan(budget=30.0), following, session, barren) is worth


class TestTrouble:
    """A run that fails after one that did not."""

    FAILED: ClassVar[dict[str, Any]] = {"exit_code": 1, "story": replace(STORY, error="TypeError: no")}

    def test_the_first_run_is_no_trouble_but_a_failure(self) -> None:
        assert trouble([ended(**self.FAILED)]) == ""

    def test_it_is_told_in_the_scripts_words(self) -> None:
        assert trouble([ended(), ended(**self.FAILED)]) == "failed in its 2nd run: TypeError: no"
        assert trouble([ended(), ended(), ended(exit_code=3)]).endswith("in its 3rd run: it ended with exit code 3")
        assert trouble([ended(), ended(exit_code=137, killed=9)]).endswith(
            "it was killed by SIGKILL, as the kernel does if memory runs out"
        )

    @pytest.mark.parametrize(
        ("error", "words"),
        [
            (
                "DataLoader worker (pid 7) is killed by signal: Killed. ",
                "worker was killed by SIGKILL, as the kernel does",
            ),
            ("DataLoader worker (pid 7) is killed by signal: Bus error. It", "SIGBUS, as if shared memory (/dev/shm)"),
            ("DataLoader worker (pid(s) 7, 8) exited unexpectedly", "a DataLoader worker was killed, or ended by its"),
        ],
    )
    def test_a_worker_that_was_killed(self, error: str, words: str) -> None:
        story = replace(STORY, error=f"RuntimeError: {error}", making=True)
        assert words in trouble([ended(), ended(exit_code=1, story=story)])
        story = replace(story, error=f"rank 1: RuntimeError: {error}")
        told = trouble([ended(), ended(exit_code=1, story=story)])
        assert words in told and told.count("rank 1: ") == 1

    def test_a_script_that_always_fails_once_it_trains_has_failed(self) -> None:
        assert trouble([ended(**self.FAILED), ended(**self.FAILED)]) == ""

    def test_a_run_that_came_to_no_batch_after_one_that_failed_under_a_rung(self) -> None:
        assert trouble([ended(**self.FAILED), ended(exit_code=1, batches=False)])

    def test_what_was_stopped_is_none(self) -> None:
        assert trouble([ended(), ended(reason="settled")]) == ""
        assert trouble([ended(), ended(exit_code=130, interrupted=2, batches=False)]) == ""

    def test_a_refusal_is_not_put_down_to_the_rung_under_way(self) -> None:
        story = replace(STORY, rung="device", error="FileExistsError: there", refused=True)
        assert not ended(exit_code=1, story=story).failed_under


@pytest.mark.parametrize(
    ("wrote", "overwrote", "words"),
    [
        ([], [], ""),
        (["a.log"], [], "; it wrote a.log"),
        (["m.pt"], ["m.pt"], "; it overwrote m.pt, which had been there before"),
        (list("abcdefm"), ["m"], "; it wrote a, b, c, d and 2 more; it overwrote m, which had been there before"),
    ],
)
def test_files_written(wrote: list[str], overwrote: list[str], words: str) -> None:
    assert files_written(Script(wrote=wrote, overwrote=overwrote)) == words


@pytest.mark.parametrize(("number", "written"), [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th")])
def test_ordinals(number: int, written: str) -> None:
    assert nth(number) == written


class TestFolders:
    def test_a_fresh_one_holds_what_was_there_before(self, tmp_path: Path) -> None:
        (tmp_path / "data").mkdir()
        (tmp_path / "model.pt").write_text("trained for long")
        folders = Folders(str(tmp_path))
        (tmp_path / "log").touch()
        (tmp_path / "runs").mkdir()
        assert folders.renew(3) and folders.apart and folders.now is not None
        assert os.path.basename(folders.now).startswith("pass-3-") and sorted(os.listdir(folders.now)) == [
            "data",
            "model.pt",
        ]
        (Path(folders.now) / "model.pt").write_text("overwritten")
        assert (tmp_path / "model.pt").read_text() == "trained for long"
        assert folders.hold("log") and not folders.hold("runs") and not folders.hold("none")
        third = folders.now
        assert folders.renew(4) and folders.now != third

    def test_there_is_none_without_a_workdir(self) -> None:
        folders = Folders(None)
        assert not folders.renew(3) and not folders.apart and folders.now is None


OTHER = LoaderUse(2, "train.py:9", draws=5, credits=0)
SPENT = ["the budget of 7 s", "a longer --budget"]


def untrained(steps: int, *loaders: LoaderUse) -> Story:
    """Return the story of a script of which no loader proved to train, although its optimizer stepped so often."""
    return replace(STORY, target=None, optimizer_steps=steps, loaders=[*loaders] or [LOADER])


class TestNothing:
    """Each way to end without a measurement has its own sentence, which says what to do."""

    @pytest.mark.parametrize(
        ("outcome", "loader", "words"),
        [
            (ended(), None, ["ended by itself", "train for more batches"]),
            (ended(stopped=True, reason="budget"), None, SPENT),
            (ended(stopped=True, story=untrained(0)), None, SPENT),
            (ended(stopped=True, story=untrained(1, replace(LOADER, credits=1))), None, SPENT),
            # Both optimizers have stepped for its first batch.
            (ended(stopped=True, story=untrained(2, replace(LOADER, draws=2, credits=1), OTHER)), None, SPENT),
            (ended(hung=61.0, batches=False, reason="budget"), None, ["no batch in 61 s"]),
            (ended(hung=61.0, reason="budget"), None, ["stopped asking for batches", "a longer --budget"]),
            (ended(batches=False, story=Story()), None, ["no torch DataLoader", "nor did a process that it starts"]),
            (
                ended(batches=False, story=Story([replace(LOADER, draws=0)])),
                None,
                ["train.py:3 gave no batch", "empty"],
            ),
            (
                ended(batches=False, story=Story(), trainers=["train, hog.py:3"]),
                None,
                ["(train, hog.py:3)", "no loader"],
            ),
            (
                ended(batches=False, hung=300.0, story=Story(), trainers=["by os.fork()"]),
                None,
                ["trains in processes that it starts itself (by os.fork())", "multiprocessing.Process"],
            ),
            (
                ended(story=untrained(0), trainers=["train, hog.py:3"]),
                None,
                ["starts itself (train, hog.py:3)", "only the loader at train.py:3, which does not train"],
            ),
            (ended(story=Story()), None, ["ended by itself", "train for more batches"]),  # by os._exit(0)
            (ended(story=untrained(40)), 7, ["--loader 7", "1 loader(s): 1 at train.py:3"]),
            (
                ended(story=untrained(40, LOADER, OTHER)),
                2,
                ["--loader 2", "at train.py:9", "--loader 1, at train.py:3"],
            ),
            (
                ended(story=untrained(1, replace(LOADER, credits=1))),
                None,
                ["1 optimizer step(s)", "train for more batches"],
            ),
            (ended(story=untrained(40, replace(LOADER, credits=1))), None, ["stepped 40 times", "kept in memory"]),
        ],
    )
    def test_it_says_why(self, outcome: Outcome, loader: int | None, words: list[str]) -> None:
        said = nothing_measured([outcome], 7.0, loader)
        assert all(part in said for part in words), said

    def test_a_later_run_that_found_no_loop(self) -> None:
        first, story = ended(batches=False, story=Story(optimizer_steps=300)), Story()
        said = nothing_measured([first, ended(batches=False, story=story, hung=60.0)], 7.0, None)
        assert "trained for 300 steps and iterated no torch DataLoader" in said

    def test_a_refused_run_after_one_that_was_too_short(self) -> None:
        failed = ended(exit_code=1, batches=False, story=Story(error="FileExistsError: there"))
        said = nothing_measured([ended(), failed], 7.0, None)
        assert "failed in its 2nd run: FileExistsError: there" in said and "1st run was too short" in said
