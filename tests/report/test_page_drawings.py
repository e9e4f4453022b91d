"""The drawings of a page, exactly: from numbers to SVG."""

from __future__ import annotations

import math

import pytest

from pipediag.analysis.numbers.intervals import Interval
from pipediag.report.page import over_time, svg
from pipediag.report.page.over_time import Pace, Span, from_stretches, from_windows, run_over_time
from pipediag.report.page.parts import Lane, Lanes, Part
from pipediag.report.page.svg import Drawn, coordinate, element, log_ticks, place, ticks, visible
from pipediag.report.page.worker import histogram, position, without_stragglers
from pipediag.session import Session, Stretch, Window


class TestElements:
    def test_text_and_attributes_are_escaped(self) -> None:
        drawn = element("text", "a < b", Drawn("<i>"), x=1.5, text_anchor="end", class_='"', y=None)
        assert drawn == '<text x="1.5" text-anchor="end" class="&quot;">a &lt; b<i></text>'

    def test_what_would_be_obeyed_is_shown(self) -> None:
        assert visible("a\tb\x1b[0m\u202e\ud800é") == "a\tb\\x1b[0m\\u202e\\ud800é"
        assert element("text", "\u200f") == "<text>\\u200f</text>"

    @pytest.mark.parametrize(
        ("share", "expected"),
        [(0.5, "50%"), (1 / 3, "33.33%"), (-1, "0%"), (2, "100%"), (math.nan, "0%"), (math.inf, "100%")],
    )
    def test_place(self, share: float, expected: str) -> None:
        assert place(share) == expected

    def test_coordinate(self) -> None:
        assert [coordinate(value) for value in (0, -0.001, 1.0, 2.345, 100.0)] == ["0", "0", "1", "2.35", "100"]

    def test_ticks(self) -> None:
        assert ticks(23.0) == [0, 5, 10, 15, 20]
        assert ticks(0.9) == [0, 0.2, 0.4, 0.6, 0.8]
        assert ticks(1000.0, 4) == [0, 500, 1000]
        assert log_ticks(9.0, 120.0) == [10, 30, 100]
        assert log_ticks(2.0, 60.0) == [2, 5, 10, 20, 50]
        assert log_ticks(0.01, 1e5) == [0.01, 0.1, 1, 10, 100, 1000, 10000, 100000]


class TestBars:
    def test_bar(self) -> None:
        assert svg.bar("half", 0.5, "soft", 0.25) == (
            '<svg role="img" aria-label="half" class="bar" width="100%" height="14">'
            '<rect class="track" width="100%" height="100%" rx="2"></rect>'
            '<rect class="fill soft" x="25%" width="50%" height="14" rx="2"></rect></svg>'
        )

    def test_nothing_has_no_bar(self) -> None:
        assert svg.bar("none", 0.0).count("<rect") == 1

    def test_bars_with_a_limit(self) -> None:
        assert svg.bars("two", [(0.2, "neutral"), (0.4, "accent")], 0.9) == (
            '<svg role="img" aria-label="two" class="bar" width="100%" height="22">'
            '<rect class="fill neutral" x="0%" width="20%" height="10" rx="2"></rect>'
            '<rect class="fill accent" x="0%" y="12" width="40%" height="10" rx="2"></rect>'
            '<line class="mark" x1="90%" x2="90%" y1="0" y2="22"></line></svg>'
        )

    def test_stack(self) -> None:
        """A small segment only has a tooltip, and a gap nothing; the last segment ends where the stack does."""
        parts = [
            svg.Segment("<a>", 0.5, "t1", "5 ms"),
            svg.Segment("gap", 0.25, ""),
            svg.Segment("b", 0.05, "t2"),
            svg.Segment("c", 0.9, "t3"),
        ]
        assert svg.stack("all", parts, 30) == (
            '<svg role="img" aria-label="all" class="stack" width="100%" height="30">'
            '<svg x="0%" width="50%" height="30"><title>&lt;a&gt;: 5 ms</title>'
            '<rect class="fill t1" width="100%" height="100%"></rect><text x="8" y="19.5">&lt;a&gt;</text></svg>'
            '<svg x="75%" width="5%" height="30"><title>b</title>'
            '<rect class="fill t2" width="100%" height="100%"></rect></svg>'
            '<svg x="80%" width="20%" height="30"><title>c</title>'
            '<rect class="fill t3" width="100%" height="100%"></rect><text x="8" y="19.5">c</text></svg></svg>'
        )

    def test_whisker(self) -> None:
        assert svg.whisker("5", Interval(5.0, 4.0, 7.0), 10.0, "accent") == (
            '<svg role="img" aria-label="5" class="bar" width="100%" height="18">'
            '<line class="rail" x1="0%" x2="100%" y1="9" y2="9"></line>'
            '<line class="whisker accent" x1="40%" x2="70%" y1="9" y2="9"></line>'
            '<line class="whisker accent" x1="40%" x2="40%" y1="5" y2="13"></line>'
            '<line class="whisker accent" x1="70%" x2="70%" y1="5" y2="13"></line>'
            '<circle class="fill accent" cx="50%" cy="9" r="4.5"></circle></svg>'
        )

    def test_open_ends_have_no_cap(self) -> None:
        drawn = svg.whisker("open", Interval(5.0, -math.inf, math.inf), 10.0, "accent")
        assert '<line class="whisker accent" x1="0%" x2="100%" y1="9" y2="9"></line><circle' in drawn


class TestHistogram:
    def test_bars_of_equal_width(self) -> None:
        drawn = histogram("times", [1.0, 2.0, 4.0], [10, 5], {"median": 1.5})
        assert "<title>1 to 2 ms: 10</title></rect>" in drawn
        assert 'x="0%" width="50%" y="30" height="130"' in drawn
        assert 'x="50%" width="50%" y="95" height="65"' in drawn
        assert '<line class="mark" x1="25%" x2="25%"' in drawn
        assert ">median 1.5 ms</text>" in drawn
        assert [label in drawn for label in (">1 ms<", ">2 ms<", ">4 ms<")] == [True] * 3

    @pytest.mark.parametrize(("value", "expected"), [(0.5, 0.0), (1.0, 0.0), (3.0, 0.75), (4.0, 1.0), (9.0, 1.0)])
    def test_position(self, value: float, expected: float) -> None:
        assert position([1.0, 2.0, 4.0], value) == expected

    def test_stragglers(self) -> None:
        edges = [float(n) for n in range(11)]
        apart = [2, 0, 0, 0, 0, 0, 30, 40, 5, 1]
        assert without_stragglers(edges, apart) == (edges[6:], apart[6:], 2)
        for whole in ([20, *apart[1:]], [2, 0, 0, 0, 0, 3, 30, 40, 5, 1], [30, 40, 5, 0, 0, 0, 0, 0, 0, 1]):
            assert without_stragglers(edges, whole) == (edges, whole, 0)


def rows(run: Part | None) -> list[Lane]:
    assert run is not None
    (lanes,) = run.blocks
    assert isinstance(lanes, Lanes)
    return [*lanes.rows]


class TestOverTime:
    STRETCHES = (
        Stretch("baseline", 0, 1, [0.0, 1.0, 2.0], [0.5, 1.5, 2.5], [0, 1, 2], ended=3.0),
        Stretch("device", 0, 1, [4.0, 4.5], [4.1, 4.6], [3, 3], ended=5.0),
    )

    def test_from_stretches(self) -> None:
        first, second = from_stretches(self.STRETCHES, {("device", 0, 1)})
        assert first == Span(
            "baseline", 0.0, 3.0, False, [Pace(0.0, 1.0, 1, 0.0), Pace(1.0, 2.0, 1, 1.0), Pace(2.0, 3.0, 1, 2.0)]
        )
        assert (second.rung, second.window, [pace.rate for pace in second.paces]) == ("device", True, [2.0, 2.0])

    def test_many_steps_are_taken_together(self) -> None:
        asked = [n / 100 for n in range(5000)]
        (span,) = from_stretches([Stretch("baseline", 0, 1, asked, asked, [], ended=50.0)], set())
        assert len(span.paces) == 500
        assert span.paces[0] == Pace(0.0, 0.1, 10)

    def test_from_windows(self) -> None:
        one, other = from_windows([Window("device", 0, 10, 0.5), Window("baseline", 0, 10, 2.0)])
        assert (one.begin, one.end, other.begin, other.end) == (0.0, 0.5, 0.5, 2.5)
        assert [one.paces[0].rate, other.paces[0].rate] == [20.0, 5.0]

    def test_stretches_that_say_nothing(self) -> None:
        assert from_stretches([Stretch("baseline"), Stretch("baseline", asked=[1.0], ended=0.0)], set()) == []
        assert run_over_time(Session()) is None

    def test_rows(self) -> None:
        session = Session(stretches=[*self.STRETCHES], windows=[Window("device", 0, 2, 1.0)])
        run = run_over_time(session)
        assert [row.name for row in rows(run)] == ["steps/s", "device", "baseline", "batches ready", ""]
        assert run is not None and run.lead == "Pale: steps outside a window."
        rates, device, baseline, ready, axis = (row.drawn for row in rows(run))
        # Two steps a second at the top of 200 pixels, one in the middle; the run takes 5 seconds of 1000 units.
        assert '<path class="line neutral" d="M800 8H900V8H1000"></path>' in rates
        assert '<path class="line accent" d="M0 100H200V100H400V100H600"></path>' in rates
        assert '<path class="fill neutral" d="M800 3H1000V13H800Z"></path>' in device
        assert '<path class="fill accent pale" d="M0 3H600V13H0Z"></path>' in baseline
        assert "at most 3" in ready
        assert [label in axis for label in (">0 s<", ">2 s<", ">4 s<")] == [True] * 3

    def test_wide_rates_have_a_logarithmic_scale(self) -> None:
        windows = [Window("device", 0, 100, 1.0), Window("baseline", 0, 1, 1.0)]
        run = run_over_time(Session(windows=windows))
        assert run is not None and run.lead.startswith("The scale of steps/s is logarithmic. ")
        assert 'd="M0 8H500"' in rows(run)[0].drawn
        assert 'd="M500 192H1000"' in rows(run)[0].drawn

    def test_neighbours_of_one_moment_are_one(self) -> None:
        windows = [Window(rung, n, 10, 0.1) for n in range(2000) for rung in ("device", "baseline")]
        assert all(len(row.drawn) < 20_000 for row in rows(run_over_time(Session(windows=windows))))

    def test_each_kind_of_rung_has_its_colour(self) -> None:
        rungs = ("device", "supply", "worker", "transform:2", "baseline", "remedied", "settings:1", "unheard of")
        assert [over_time.colour(rung) for rung in rungs] == [
            "neutral", "neutral", "soft", "soft", "accent", "good", "doubtful", "soft",
        ]  # fmt: skip
