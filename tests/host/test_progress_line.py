"""The progress display, with a fake clock."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest

from pipediag.host.passes import Request
from pipediag.host.progress_line import ProgressLine, opening
from pipediag.host.script import Target
from pipediag.report.progress import Activity
from pipediag.report.terminal import fresh_line
from pipediag.session import REMEDIED, Knobs, Loader, LoaderSettings, Rung, Session, settings_rung
from pipediag.session.events import Applying, FirstBatch, Looking, Pass, Progress, Tick, Trying

from ..made import blocks, climbing, inside, make, waits


class Said(io.StringIO):
    def __init__(self, tty: bool = False) -> None:
        super().__init__()
        self._tty = tty

    def isatty(self) -> bool:
        return self._tty

    @property
    def lines(self) -> list[str]:
        """What was said, each time in a line of its own."""
        text = self.getvalue().replace(fresh_line(self), "") if self._tty else self.getvalue()
        return [line.removeprefix("pipediag: ") for line in text.splitlines()]


def wait(progress: ProgressLine, clock: list[float], seconds: float, session: Session | None = None) -> None:
    """Let time pass as the parent does: a tick each 0.1 s."""
    for _ in range(round(10 * seconds)):
        clock[0] += 0.1
        progress(Tick(), session or Session())


def test_away_from_a_terminal_a_line_for_each_activity(clock: list[float]) -> None:
    """And one every half minute while nothing new begins."""
    said, session = Said(), Session()
    progress = ProgressLine(said, 100.0)
    progress(Pass(1), session)
    wait(progress, clock, 61)
    starting = "the script is starting"
    assert said.lines == ["running the script", f"{starting}, 30 s so far", f"{starting}, 60 s so far"]
    progress(FirstBatch(), session)
    progress(Loader("Photos", num_workers=4, where="train.py:10"), session)
    for round_ in range(5):
        for rung in ("device", "worker", "baseline", "transform:2"):
            progress(Progress(rung, round_), session)
            wait(progress, clock, 0.5)
    assert said.lines[3:] == ["training loader at train.py:10: Photos, 4 workers"]
    wait(progress, clock, 20.5)
    assert said.lines[4:] == ["70 s left at most: round 4, with the transforms from number 3 on"]
    progress(Applying("settled", REMEDIED), session)
    progress(Looking("5 steps", 3.0), session)
    wait(progress, clock, 200)
    assert said.lines[5:7] == ["testing on samples which transforms can move to the device", "recording 5 steps"]
    assert said.lines[-1] == "0 s left at most: recording 5 steps"
    assert len(said.lines) == 13


def test_later_runs_of_the_script_repeat_nothing(clock: list[float]) -> None:
    said, session = Said(), Session()
    progress = ProgressLine(said, 100.0)
    why = "the script ended after 50 steps; running it again to measure the other stages"
    for number in (1, 2, 3):
        progress(Pass(number, why if number > 1 else ""), session)
        progress(Loader("Photos", num_workers=4, where="train.py:10"), session)
        progress(Rung("raw", available=False, exists=True, why_not="no transform was found; mark the call"), session)
    first = ["training loader at train.py:10: Photos, 4 workers", "transforms: no transform was found"]
    assert said.lines[1:] == [*first, why, "running the script again (run 3)"]


def test_the_best_answer_so_far(clock: list[float]) -> None:
    said, session = Said(), make({}, observed=blocks(1, 100.0, 40.0))
    progress = ProgressLine(said, 100.0)
    progress(FirstBatch(), session)
    progress(Progress("baseline", 1), session)
    answer = "the loop waits 40 % of a step in next()"
    assert said.lines == [answer]
    progress(Progress("worker", 1), session)
    wait(progress, clock, 30.5, session)
    assert said.lines[1:] == [f"70 s left at most: round 1, with hand-off; {answer}"]
    session = make(climbing(raw=30.0), noise=0.0, evidence=waits(31.0))
    progress(Progress("baseline", 2), session)
    wait(progress, clock, 30, session)
    assert said.lines[2:] == ["40 s left at most: round 2, as it is; data costs 38 % of a step of 81 ms"]
    with_more_room = Activity(100.0)
    with_more_room.news(Progress("baseline", 2), session)
    assert with_more_room.line(60.0, 120).endswith("data costs 38 % of a step of 81 ms; now 12.3, possible 20 steps/s")


@pytest.mark.parametrize("tty", [False, True])
def test_no_line_is_too_long(clock: list[float], monkeypatch: pytest.MonkeyPatch, tty: bool) -> None:
    """A pipe gets at most 100 characters, a terminal as many as it has columns."""
    monkeypatch.setattr("pipediag.host.progress_line.columns", lambda stream: 60)
    where = f"/x/site-packages/{'a_folder/' * 20}loop.py:1"
    session = make(climbing(raw=30.0), evidence=waits(31.0), inside=inside(3.0))
    session.links[0].name = "A" * 150
    said = Said(tty)
    progress = ProgressLine(said, 100.0)
    progress(FirstBatch(), session)
    progress(Loader("D" * 120, num_workers=4, where=where), session)
    progress(Rung("raw", False, "not separable: " + "because of that " * 20), session)
    for round_ in range(8):
        progress(Progress("sample", round_), session)
        wait(progress, clock, 11, session)
    lines = said.getvalue().replace("\r\x1b[K", "\n").splitlines()
    drawn = [line for line in lines if "because" not in line]  # what stays on a terminal is wrapped by it
    assert max(map(len, drawn if tty else lines)) <= (59 if tty else 100)
    assert all(line.startswith("pipediag: ") for line in lines if line)


def test_why_a_pass_begins_again(clock: list[float]) -> None:
    for tty in (False, True):
        said = Said(tty)
        progress = ProgressLine(said)
        progress(Pass(2, "the script ended after 12 steps; running it again"), Session())
        wait(progress, clock, 30.5)
        assert said.lines[0] == "the script ended after 12 steps; running it again"
        assert said.lines[-1].endswith("the script is starting (run 2), 30 s so far")


def test_one_line_on_a_terminal_changes_each_second(clock: list[float]) -> None:
    said, session = Said(tty=True), Session()
    progress = ProgressLine(said, 100.0)
    progress(Pass(1), session)
    wait(progress, clock, 5.05)
    assert said.getvalue().count("\r\x1b[K") in (4, 5)
    assert said.getvalue().endswith("s so far")
    progress(Loader("Photos", where="train.py:10"), session)
    progress(Trying(3.0), session)
    progress(Progress("settings:1", 3), session)
    assert said.getvalue().count("\n") == 1, "only the first words stay"
    progress.clear()
    progress.clear()
    assert said.getvalue().endswith("s so far\r\x1b[K")


def test_names_are_not_obeyed(clock: list[float]) -> None:
    for tty in (False, True):
        said = Said(tty)
        progress = ProgressLine(said, 100.0)
        progress(Pass(1, "x\x1b]0;title\x07\ny"), Session())
        wait(progress, clock, 11)
        assert "\x1b]" not in said.getvalue() and said.lines[0].lstrip() == "x\\x1b]0;title\\x07 y"


def test_quiet(clock: list[float]) -> None:
    for tty in (False, True):
        said = Said(tty)
        progress = ProgressLine(said, 100.0, quiet=True)
        progress(Pass(1), Session())
        wait(progress, clock, 11)
        progress.clear()
        assert said.getvalue() == ""


def test_a_stream_that_is_closed_ends_nothing(clock: list[float]) -> None:
    said = Said()
    progress = ProgressLine(said, 100.0)
    said.close()
    progress(Pass(1), Session())
    wait(progress, clock, 11)


def test_it_says_before_all_what_will_happen() -> None:
    request = Request(Target("train.py"), 60.0)
    assert opening(request) == (
        "running the script: it really runs, several times if it is short, and writes its files; --workdir DIR "
        "puts them into DIR; measuring takes 60 s at most, plus its own start-up"
    )
    later = opening(replace(request, workdir="aside", apply=90.0))
    assert "really runs in aside, " in later and "--workdir" not in later and "takes 2 min at most" in later


def test_it_names_what_the_last_analysis_wrote_and_is_still_there(tmp_path: Path) -> None:
    for name in ("a.pt", "b.csv", "aside/c.pt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    written = [str(tmp_path / "a.pt"), str(tmp_path / "b.csv"), str(tmp_path / "gone.pt")]
    told = opening(Request(Target("train.py")), written)
    assert f"; it may write over {written[0]}, {written[1]}, as the last analysis wrote there; " in told
    apart = Request(Target("train.py"), workdir=str(tmp_path / "aside"))
    assert "it may write over c.pt, as" in opening(apart, ["b.csv", "c.pt"])
    assert "may write over" not in opening(apart, ["b.csv"])


def test_settings_that_were_not_tried_are_named(clock: list[float]) -> None:
    said, session = Said(), make({"baseline": 100.0})
    session.knobs = Knobs([LoaderSettings(2, 4, False)])
    ProgressLine(said)(Rung(settings_rung(1), False, "there was no time for it"), session)
    ProgressLine(said)(Rung("raw", False, "not separable"), session)
    assert said.lines == ["num_workers=2, prefetch_factor=4: there was no time for it", "transforms: not separable"]
