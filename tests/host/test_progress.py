"""The progress display, with a fake clock."""

from __future__ import annotations

import io
from dataclasses import replace

from pipediag.host.passes import Request
from pipediag.host.progress import ProgressLine, opening
from pipediag.host.script import Target
from pipediag.session import REMEDIED, Knobs, LoaderSettings, Rung, Session, settings_rung
from pipediag.session.events import Applying, FirstBatch, Looking, Pass, Progress, Tick

from ..made import blocks, make


class Said(io.StringIO):
    def __init__(self, tty: bool = False) -> None:
        super().__init__()
        self._tty = tty

    def isatty(self) -> bool:
        return self._tty

    @property
    def lines(self) -> list[str]:
        return [line.removeprefix("pipediag: ") for line in self.getvalue().splitlines()]


def wait(progress: ProgressLine, clock: list[float], seconds: float, session: Session | None = None) -> None:
    """Let time pass as the parent does: a tick each 0.1 s."""
    for _ in range(round(10 * seconds)):
        clock[0] += 0.1
        progress(Tick(), session or Session())


def test_a_line_every_ten_seconds_also_while_nothing_is_measured(clock: list[float]) -> None:
    said, session = Said(), Session()
    progress = ProgressLine(said, 100.0)
    progress(Pass(1), session)
    wait(progress, clock, 21)
    assert said.lines == [
        "running the script",
        "the script is starting, 10 s so far",
        "the script is starting, 20 s so far",
    ]
    progress(FirstBatch(), session)
    wait(progress, clock, 10)
    assert said.lines[-1] == "9 % of the time used, 91 s left at most: waiting for the training loop's first steps"
    progress(Applying("settled", REMEDIED), session)
    wait(progress, clock, 10.5)
    told = "testing on samples which transforms can move to the device"
    assert said.lines[-2:] == [told, f"20 % of the time used, 80 s left at most: {told}"]
    progress(Looking("5 steps", 3.0), session)
    wait(progress, clock, 200)
    assert said.lines[-1] == "100 % of the time used, 0 s left at most: after the ladder: recording 5 steps"
    assert 24 <= len(said.lines) <= 28


def test_the_best_answer_so_far(clock: list[float]) -> None:
    said, session = Said(), make({}, observed=blocks(1, 100.0, 40.0))
    progress = ProgressLine(said, 100.0)
    progress(FirstBatch(), session)
    progress(Progress("baseline", 1), session)
    answer = "the loop waits for data 40 % of each step of 100 ms"
    assert said.lines[-1].startswith(answer)
    wait(progress, clock, 10.5, session)
    assert said.lines[-1].startswith(f"10 % of the time used, 90 s left at most: round 1, baseline; {answer}")


def test_why_a_pass_begins_again(clock: list[float]) -> None:
    said = Said()
    progress = ProgressLine(said)
    progress(Pass(2, "the script ended after 12 steps; running it again"), Session())
    wait(progress, clock, 10.5)
    assert said.lines == [
        "the script ended after 12 steps; running it again",
        "the script is starting (run 2), 10 s so far",
    ]


def test_a_line_on_a_terminal_changes_each_second(clock: list[float]) -> None:
    said = Said(tty=True)
    progress = ProgressLine(said, 100.0)
    progress(Pass(1), Session())
    wait(progress, clock, 5.05)
    assert said.getvalue().count("\r\x1b[K") in (4, 5)
    assert said.getvalue().endswith("s so far")
    progress.clear()
    progress.clear()
    assert said.getvalue().endswith("s so far\r\x1b[K")


def test_names_are_not_obeyed(clock: list[float]) -> None:
    for tty in (False, True):
        said = Said(tty)
        progress = ProgressLine(said, 100.0)
        progress(Pass(1, "x\x1b]0;title\x07\ny"), Session())
        wait(progress, clock, 11)
        assert "\x1b]" not in said.getvalue() and said.getvalue().startswith("pipediag: x\\x1b]0;title\\x07 y\n")


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
        "running the script: it really runs, several times if it is short, and writes its files; "
        "measuring takes 60 s at most, plus its own start-up"
    )
    later = opening(replace(request, workdir="aside", apply=90.0))
    assert "really runs in aside, " in later and "takes 2 min at most" in later


def test_settings_that_were_not_tried_are_named(clock: list[float]) -> None:
    said, session = Said(), make({"baseline": 100.0})
    session.knobs = Knobs([LoaderSettings(2, 4, False)])
    ProgressLine(said)(Rung(settings_rung(1), False, "there was no time for it"), session)
    assert said.lines == ["num_workers=2, prefetch_factor=4: there was no time for it"]
