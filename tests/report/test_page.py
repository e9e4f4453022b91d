"""The HTML page: its drawings, what it holds, how much, and that names from outside stay text."""

from __future__ import annotations

import json
import math
import re
import time
from html.parser import HTMLParser

import pytest

from pipediag.analysis import Diagnosis, diagnose_session
from pipediag.analysis.audit import audit
from pipediag.analysis.compare import compare
from pipediag.analysis.numbers.intervals import Interval
from pipediag.analysis.sweep import Run, Sweep
from pipediag.report.page import over_time, svg, write
from pipediag.report.page.flame import below, by_stage
from pipediag.report.page.over_time import (
    Pace,
    Span,
    both_over_time,
    from_stretches,
    from_windows,
    run_over_time,
    without_gaps,
)
from pipediag.report.page.parts import Lanes, Part
from pipediag.report.page.svg import Drawn, coordinate, element, log_ticks, place, ticks, visible
from pipediag.report.page.worker import histogram, position, without_stragglers
from pipediag.session import HotLine, Session, Stretch, Window

from ..made import FLAT, climbing, make
from .pages import HOSTILE, full_session, hostile_session, long_session
from .test_reports import SESSIONS


class Outline(HTMLParser):
    """Elements, attributes, titles of sections and the text of scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.titles: list[str] = []
        self.scripts: list[str] = []
        self.text = ""
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        self._inside = tag
        if tag in ("h1", "h2", "script"):
            (self.scripts if tag == "script" else self.titles).append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.text += data
            if self._inside in ("h1", "h2"):
                self.titles[-1] += data


FULL = diagnose_session(full_session())
CHAIN = diagnose_session(SESSIONS["chain"]())


def data_of(page: Outline) -> dict[str, object]:
    return json.loads(page.scripts[0])  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def page() -> Outline:
    return Outline(write(FULL))


class TestDiagnosis:
    def test_sections_in_their_order(self, page: Outline) -> None:
        headline, *sections = page.titles
        assert headline.startswith("Data costs your training 55")
        assert sections == [
            "Where", "What to do", "Careful", "Where a step goes", "The ladder", "Ranks", "Inside a worker",
            "The run over time", "Sample times", "Remedies", "Other loader settings", "What would help", "Warnings",
            "The model's side", "Other evidence", "Not measured", "Raw numbers", "Environment",
        ]  # fmt: skip

    def test_figures(self, page: Outline) -> None:
        for told in (
            "Step 98 ms = model 50 ms + data 48 ms",  # the step
            "cached samples after the first 3 transforms",  # the ladder
            "noise = rng.normal(0, self.sigma, image.shape)",  # a line of code
            "settings:2",  # a lane of the run
            "99 % below 47.5 ms",  # the histogram
            "4711",  # a slow sample
            "Rank 2 holds up the job",  # the answer
            "loading 86 %",  # a rank
            "+loader = pipediag.offload(loader)",  # the diff
            "Largest difference: 1.5 of 255 levels",  # a certified sample
            "num_workers=6, prefetch_factor=4, pin_memory=True",  # a setting
            "cached rungs hand out copies",  # the help of a warning
            "Windows (67)",
            "NVIDIA H200",
        ):
            assert told in page.text, told

    def test_samples_side_by_side(self, page: Outline) -> None:
        sources = [value for name, value in page.attributes if name == "src"]
        assert len(sources) == 12
        assert all(source.startswith("data:image/png;base64,iVBORw0KGgo") for source in sources)

    def test_the_session_is_in_it(self, page: Outline) -> None:
        data = data_of(page)
        session = Session.from_dict({**data["session"], "schema_version": data["schema_version"]})  # type: ignore[dict-item]
        assert session.remedy is not None
        assert session.remedy.proof is not None
        assert session.remedy.proof.pictured == []
        session.remedy.proof.pictured = FULL.session.remedy.proof.pictured
        assert session == FULL.session
        assert "The page holds the session as JSON." in page.text

    @pytest.mark.parametrize("session", [make({}), make(FLAT), SESSIONS["observed"](), Session()])
    def test_sections_without_data_are_left_out(self, session: Session) -> None:
        page = write(diagnose_session(session))
        titles = Outline(page).titles
        assert not {"Remedies", "Sample times", "Other loader settings"} & {*titles}
        assert ("The ladder" in titles) == bool(session.windows)
        assert not re.search(r"<h2[^>]*>[^<]*</h2>\s*</section>", page)

    def test_one_window_has_open_intervals(self) -> None:
        assert "The ladder" in Outline(write(diagnose_session(make(climbing(raw=20.0), rounds=1)))).titles


class TestOtherSubjects:
    def test_audit(self) -> None:
        page = Outline(write(audit(FULL)))
        assert page.titles[0].startswith("The audit failed: 4 of 9 checks failed")
        assert "Checklist" in page.titles
        assert "epochs begin without a long wait" in page.text
        assert data_of(page).keys() == {"schema_version", "session", "audit"}

    def test_comparison(self) -> None:
        page = Outline(write(compare(CHAIN, FULL)))
        assert page.titles[1:] == [
            "Careful",
            "The two verdicts",
            "Both runs over time",
            "Steps per second by rung",
            "A worker's own milliseconds for a sample",
            "The training process's own milliseconds",
            "Set otherwise",
            "Warnings",
        ]
        assert "not the same number of ranks: 1 before, 4 after" in page.text
        assert "not significant" in page.text
        assert "sentence" in data_of(page)

    def test_what_certainly_changed_stands_on_the_first_screen(self) -> None:
        before, after = (diagnose_session(make(climbing(device=ms), seed=seed)) for ms, seed in ((50.0, 1), (25.0, 2)))
        page = Outline(write(compare(before, after)))
        assert page.titles.index("Stages that certainly changed") < page.titles.index("The two verdicts")

    def test_sweep(self) -> None:
        runs = [
            Run((("--size", "1"),), ["train.py"], FULL),
            Run((("--size", "2"),), ["train.py"], CHAIN),
            Run((("--size", "3"),), ["train.py"], None, 1, "it ran out of memory"),
        ]
        page = Outline(write(Sweep("train.py", 4, runs)))
        assert page.titles[1:] == ["Steps per second by setting", "All runs", "Notes"]
        assert "--size=3: it ran out of memory" in page.text
        assert "1 of 4 runs were not made" in page.text

    def test_sweep_without_any_run(self) -> None:
        assert "0 of 2 runs" in Outline(write(Sweep("train.py", 2, []))).titles[0]


@pytest.fixture(scope="module")
def hostile() -> Diagnosis:
    return diagnose_session(hostile_session())


@pytest.fixture(scope="module")
def written(hostile: Diagnosis) -> list[str]:
    """The pages of every subject with hostile names."""
    runs = [Run(((HOSTILE, HOSTILE),), [HOSTILE], hostile, why_not=HOSTILE)] * 2
    return [write(one) for one in (hostile, audit(hostile), compare(FULL, hostile), Sweep(HOSTILE, 3, runs))]


class TestHostileNames:
    def test_they_stay_text(self, written: list[str]) -> None:
        for text in written:
            page = Outline(text)
            assert page.tags.count("script") == 2
            assert not [name for name, _ in page.attributes if name.startswith("on") or name == "style"]
            assert {*page.tags} <= KNOWN
            assert not [value for name, value in page.attributes if name == "src" and not value.startswith("data:")]
            assert "<script>alert(1)" in page.text
            assert "{{7*7}}" in page.text

    def test_what_a_page_would_obey_is_shown_as_escapes(self, written: list[str]) -> None:
        for text in written:
            assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", text)
            assert "\\x1b[31m\\u202egnp.exe\\u200f\\ud800" in Outline(text).text
            text.encode("utf-8")

    def test_the_data_is_as_it_was(self, written: list[str], hostile: Diagnosis) -> None:
        session = data_of(Outline(written[0]))["session"]
        assert session["script"]["argv"] == hostile.session.script.argv  # type: ignore[index]

    def test_what_is_no_picture_is_left_out(self, written: list[str]) -> None:
        assert "base64" not in written[0]


#: The elements of a page.
KNOWN = {
    *("html", "head", "meta", "title", "link", "style", "body", "script"),
    *("a", "div", "header", "nav", "main", "section", "article", "footer", "h1", "h2", "h3", "p", "span", "strong"),
    "wbr",
    *("ul", "ol", "li", "dl", "dt", "dd", "pre", "code", "figure", "figcaption", "details", "summary", "img"),
    *("table", "caption", "thead", "tbody", "tr", "th", "td"),
    *("svg", "rect", "line", "circle", "path", "text"),
}


class TestLimits:
    def test_ten_thousand_windows(self) -> None:
        diagnosis = diagnose_session(long_session())
        began = time.perf_counter()
        page = write(diagnosis)
        assert time.perf_counter() - began < 5
        assert len(page.encode()) <= 500_000
        outline = Outline(page)
        assert "Windows (250 of 10000, evenly spaced)" in outline.text
        assert "without single steps and with 500 of 10000 windows" in outline.text
        assert "The run over time" in outline.titles

    def test_data_that_is_too_large_is_left_out(self) -> None:
        session = full_session()
        session.script.wrote = ["x" * 500_000]
        page = write(diagnose_session(session))
        assert "The data of this page is too large to be embedded in it." in page
        assert "application/json" not in page

    def test_pictures_beyond_their_room_are_left_out(self) -> None:
        session = full_session()
        session.remedy.proof.pictured[2].cpu = "A" * 200_000
        page = Outline(write(diagnose_session(session)))
        assert page.tags.count("img") == 6
        assert "2 more samples are left out" in page.text

    @pytest.mark.parametrize("subject", [FULL, audit(FULL), compare(CHAIN, FULL)])
    def test_nothing_is_fetched(self, subject: Diagnosis) -> None:
        page = write(subject)
        assert not re.search(r"https?:", page)
        assert not re.search(r"@import|url\(", page)
        assert "default-src 'none'" in Outline(page).attributes[3][1]


class TestFlame:
    PARTS = (("loading", "data.py:5", 0.3), ("Speckle", "aug.py:10", 0.5), ("Blur in RandomApply", "aug.py:30", 0.2))

    def test_lines_of_older_sessions_belong_to_the_part_above_them(self) -> None:
        lines = [HotLine("aug.py:12", "a", 0.3), HotLine("aug.py:35", "b", 0.4), HotLine("aug.py:2", "c", 0.1)]
        found = by_stage(
            self.PARTS, [*lines, HotLine("", "a library", 0.1), HotLine("x.py:1", "d", 1.0, stage="collate")]
        )
        assert [[line.text for line in part] for part in found] == [[], ["a"], ["b"]]

    def test_lines_belong_to_the_transforms_that_ran_them(self) -> None:
        shared = {"Speckle": 0.3, "Blur": 0.1, "unknown": 0.1}
        line = HotLine("lib.py:9", "resize", 0.5, stage="transform", calls={"PIL.x": 0.4}, transforms=shared)
        loading, speckle, blur = by_stage(self.PARTS, [line, HotLine("lib.py:1", "open", 0.2, stage="load")])
        assert [one.text for one in loading] == ["open"]
        assert [(one.share, one.calls) for one in (*speckle, *blur)] == [
            (0.3, {"PIL.x": pytest.approx(0.24)}),
            (0.1, {"PIL.x": pytest.approx(0.08)}),
        ]

    def test_one_of_two_transforms_of_a_name_is_not_guessed(self) -> None:
        line = HotLine("lib.py:9", "resize", 0.5, stage="transform", transforms={"Speckle": 0.5})
        assert by_stage([*self.PARTS, ("Speckle", "aug.py:40", 0.1)], [line]) == [[], [], [], []]

    def test_functions_lines_and_calls_lie_below_each_other(self) -> None:
        calls = {"PIL.Image.Image.convert": 0.4, "PIL.ImageFile.ImageFile.load": 0.35, "PIL.Image.new": 0.05}
        lines = [
            HotLine("a.py:1", "quick", 0.2, function="make"),
            HotLine("a.py:2", "image.convert()", 0.6, function="make", calls=calls),
        ]
        (make_,) = below(lines, 0.4)  # timed as half of what was seen
        assert (make_.name, make_.share) == ("make", pytest.approx(0.4))
        slow, quick = make_.inside
        assert (slow.name, slow.share, quick.share) == ("image.convert()", pytest.approx(0.3), pytest.approx(0.1))
        (convert,) = slow.inside
        (load,) = convert.inside
        assert [(one.name, one.share) for one in (convert, load)] == [
            ("PIL.Image.convert", pytest.approx(0.2)),
            ("PIL.ImageFile.load", pytest.approx(0.175)),
        ]
        assert load.inside == ()

    def test_nothing_seen_leaves_a_gap(self) -> None:
        (line,) = below([HotLine("a.py:1", "f(x)", 0.1)], 0.5)
        assert line.share == 0.1


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
        assert svg.stack("all", parts) == (
            '<svg role="img" aria-label="all" class="stack" width="100%" height="40">'
            '<svg x="0%" width="50%" height="40"><title>&lt;a&gt;: 5 ms</title>'
            '<rect class="fill t1" width="100%" height="100%"></rect><text x="8" y="24.5">&lt;a&gt;</text></svg>'
            '<svg x="75%" width="5%" height="40"><title>b</title>'
            '<rect class="fill t2" width="100%" height="100%"></rect></svg>'
            '<svg x="80%" width="20%" height="40"><title>c</title>'
            '<rect class="fill t3" width="100%" height="100%"></rect><text x="8" y="24.5">c</text></svg></svg>'
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
        assert without_stragglers(edges, apart) == (edges[6:], apart[6:], 2, 0)
        assert without_stragglers(edges, [30, 40, 5, 0, 0, 0, 0, 0, 0, 1]) == (edges[:4], [30, 40, 5], 0, 1)
        for whole in ([20, *apart[1:]], [2, 0, 0, 0, 0, 3, 30, 40, 5, 1], [30, 40, 5, 0, 0, 0, 0, 0, 0, 4]):
            assert without_stragglers(edges, whole) == (edges, whole, 0, 0)


def rows(run: Part | None) -> list[tuple[str, Drawn]]:
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

    def test_an_axis_of_gaps_is_closed(self) -> None:
        spans = [Span("baseline", n, n + 1.0, paces=[Pace(n, n + 1.0, 2)]) for n in (0.0, 10.0, 30.0)]
        found = without_gaps(spans)
        assert [time for span in found for time in (span.begin, span.end)] == pytest.approx(
            [0, 1, 1.03, 2.03, 2.06, 3.06]
        )
        assert [span.paces[0].rate for span in found] == pytest.approx([2.0] * 3)
        near = [spans[0], Span("device", 1.5, 3.0)]
        assert without_gaps(near) == near

    def test_both_runs_lie_over_each_other(self) -> None:
        slow = Session(stretches=[Stretch("baseline", 0, 1, [5.0, 6.0], [5.5, 6.5], [], ended=7.0)])
        fast = Session(windows=[Window("device", 0, 9, 1.0), Window("baseline", 0, 4, 1.0)])
        both = both_over_time(slow, fast)
        assert both is not None and both.blocks[0].legend == [("neutral", "before"), ("accent", "after")]
        assert both.blocks[0].points == [
            ("0", "1", "0 s: before, 1 steps/s"),
            ("1", "2", "1 s: before, 1 steps/s"),
            ("0", "1", "0 s: after, 4 steps/s"),
        ]
        assert both_over_time(slow, Session()) is None

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
        assert [name for name, _ in rows(run)] == ["steps/s", "device", "baseline", "batches ready", ""]
        assert run is not None and run.lead == "Pale: steps outside a window."
        rates, device, baseline, ready, axis = (drawn for _, drawn in rows(run))
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
        assert 'd="M0 8H500"' in rows(run)[0][1]
        assert 'd="M500 192H1000"' in rows(run)[0][1]

    def test_neighbours_of_one_moment_are_one(self) -> None:
        windows = [Window(rung, n, 10, 0.1) for n in range(2000) for rung in ("device", "baseline")]
        assert all(len(drawn) < 20_000 for _, drawn in rows(run_over_time(Session(windows=windows))))

    def test_each_kind_of_rung_has_its_colour(self) -> None:
        rungs = ("device", "supply", "worker", "transform:2", "baseline", "remedied", "settings:1", "unheard of")
        assert [over_time.colour(rung) for rung in rungs] == [
            "neutral", "neutral", "soft", "soft", "accent", "good", "doubtful", "soft",
        ]  # fmt: skip


def test_now_is_one_bar_of_its_causes_and_possible_one_of_the_model() -> None:
    from pipediag.analysis.summary import summarise
    from pipediag.report.page import _rates

    summary = summarise(diagnose_session(SESSIONS["report"]()))
    (now, bar, _, _), (possible, model, _, _) = _rates(summary)
    assert (now, possible) == ("now", "possible")
    shares = [float(width) for width in re.findall(r'<svg x="[\d.]+%" width="([\d.]+)%"', bar)]
    named = [f"<title>{cause.name}: " in bar for cause in summary.causes]
    assert all(named) and 95 < sum(shares) <= 100.1
    (width,) = re.findall(r'<svg x="0%" width="([\d.]+)%"', model)
    rates = [rate.steps_per_s for rate in summary.rates]
    assert float(width) == pytest.approx(100 * rates[0] / rates[1], abs=0.1)
