"""The screen against golden files, and its bounds for any content."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipediag.analysis import diagnose_session
from pipediag.analysis.summary import Action, Rate, StageCost, Summary, summarise
from pipediag.report import screen
from pipediag.report.screen import LINES

from ..golden import agrees
from .screens import SCREENS
from .test_reports import GOLDEN, SESSIONS
from .test_reports import SUBJECTS as OTHERS

SUBJECTS = {
    **{name: lambda made=made: diagnose_session(made()) for name, made in {**SESSIONS, **SCREENS}.items()},
    **{name: OTHERS[name] for name in ("comparison", "audit", "sweep")},
}


@pytest.mark.parametrize("name", SUBJECTS)
def test_golden(name: str) -> None:
    agrees(GOLDEN / f"{name}.screen", screen.write(summarise(SUBJECTS[name]())))


@pytest.mark.parametrize("name", SUBJECTS)
@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_no_line_is_wider_than_the_window(name: str, width: int) -> None:
    assert max(map(len, screen.write(summarise(SUBJECTS[name]()), width=width).splitlines())) <= width


@pytest.mark.parametrize("name", SUBJECTS)
def test_a_screen_at_80_columns(name: str) -> None:
    assert screen.write(summarise(SUBJECTS[name]())).count("\n") <= LINES


@pytest.mark.parametrize("name", SUBJECTS)
def test_colours_change_nothing_else(name: str) -> None:
    summary = summarise(SUBJECTS[name]())
    coloured = screen.write(summary, colour=True)
    assert "\x1b[" in coloured
    bare = [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", coloured).splitlines()]
    assert bare == screen.write(summary).splitlines()


def test_ascii_if_the_stream_has_no_blocks() -> None:
    shown = screen.write(summarise(SUBJECTS["report"]()), fancy=False)
    assert shown.isascii()
    assert "####" in shown


_word = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=70)
_text = st.lists(_word, min_size=1, max_size=8).map(" ".join)
_summary = st.builds(
    Summary,
    headline=_text,
    figures=_text,
    certainty=_text,
    rates=st.lists(st.builds(Rate, _word, st.floats(1e-6, 1e6), _word), max_size=2),
    causes=st.lists(st.builds(StageCost, _word, st.floats(0, 1e5), st.floats(0.05, 1), _word), max_size=4),
    rest=st.lists(st.builds(StageCost, _word, st.floats(0, 1e5), st.floats(0, 1)), max_size=3),
    actions=st.lists(st.builds(Action, _text, _word, st.lists(_text, max_size=2).map(tuple)), max_size=3),
    careful=st.lists(_text, max_size=5),
)


@given(_summary, st.sampled_from([40, 80]))
def test_whatever_the_names_are_none_is_cut_off(summary: Summary, width: int) -> None:
    """With room for everything, each character is there: names fold."""
    shown = screen.write(summary, width=width, max_lines=None)
    words = [word for action in summary.actions for line in action.lines for word in line.split()]
    assert max(map(len, shown.splitlines())) <= max(width, *(len(word) + 5 for word in words), 0)
    bare = re.sub(r"\s", "", shown)
    for cause in summary.causes:
        assert cause.name in bare
        assert cause.where in bare
    for other in summary.rest if summary.causes else ():
        assert other.name in bare
    for line in summary.careful:
        assert line.replace(" ", "") in bare


def test_what_is_left_out_first() -> None:
    """The lines below later actions, then notes, then actions, then causes; the answer and the best action stay."""
    actions = [Action(f"do {n}", "2x predicted", (f"how {n}", f"and {n}")) for n in range(3)]
    causes = [StageCost(f"stage {n}", 10.0, 0.2, f"{n}.py:1") for n in range(4)]
    summary = Summary(
        "Waits", rates=[Rate("now", 1.0)], causes=causes, actions=actions, careful=["one", "two", "three"]
    )
    shown = screen.write(summary, max_lines=18)
    assert "how 0" in shown and "how 1" not in shown and "three" in shown
    shown = screen.write(summary, max_lines=14)
    assert all(kept in shown for kept in ("how 0", "do 1", "one"))
    assert not any(gone in shown for gone in ("do 2", "two", "3.py:1"))
    assert "2 more notes" in shown and "the rest: stage 2 10 ms, stage 3 10 ms" in shown
    assert shown.count("\n") == 14


def test_a_sweep_of_many_runs_keeps_its_first_rows() -> None:
    summary = Summary("Runs", findings_title="runs", findings=[(f"run {n}", "fast") for n in range(60)])
    shown = screen.write(summary)
    assert shown.count("\n") <= LINES
    assert "run 0" in shown and "more notes" in shown


def test_a_command_can_be_copied() -> None:
    path = "/a/long/" + "path/" * 20 + "plan.json"
    shown = screen.write(Summary("Waits", actions=[Action("Run it", "", (f"pipediag run --plan {path} train.py",))]))
    assert f"pipediag run --plan \\\n     {path} \\\n     train.py\n" in shown


def test_no_rates_leave_no_empty_line() -> None:
    assert "\n\n\n" not in screen.write(Summary("Nothing", careful=["a"]))
    assert screen.write(replace(Summary("Nothing"), tone="bad")).startswith("NOTHING\n")
