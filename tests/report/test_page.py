"""The HTML page: what it holds, that it holds no more than it may, and that names from outside stay text."""

from __future__ import annotations

import json
import re
import time
from html.parser import HTMLParser

import pytest

from pipediag.analysis import Diagnosis, diagnose_session
from pipediag.analysis.audit import audit
from pipediag.analysis.compare import compare
from pipediag.analysis.sweep import Run, Sweep
from pipediag.report.page import write
from pipediag.report.page.worker import under
from pipediag.session import HotLine, Session

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
        assert headline.startswith("Data costs your training 54")
        assert sections == [
            "Where",
            "What to do",
            "Careful",
            "Where a step goes",
            "The ladder",
            "Ranks",
            "Inside a worker",
            "The run over time",
            "Sample times",
            "Remedies",
            "Other loader settings",
            "What would help",
            "Warnings",
            "Other evidence",
            "Not measured",
            "Raw numbers",
            "Environment",
        ]

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
        assert FULL.session.remedy is not None
        assert FULL.session.remedy.proof is not None
        session.remedy.proof.pictured = FULL.session.remedy.proof.pictured
        assert session == FULL.session
        assert "The page holds the session as JSON." in page.text

    @pytest.mark.parametrize("session", [make({}), make(FLAT), SESSIONS["observed"](), Session()])
    def test_sections_without_data_are_left_out(self, session: Session) -> None:
        page = write(diagnose_session(session))
        titles = Outline(page).titles
        assert "Remedies" not in titles
        assert "Sample times" not in titles
        assert "Other loader settings" not in titles
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
            "Steps per second by rung",
            "A worker's own milliseconds for a sample",
            "The training process's own milliseconds",
            "Set otherwise",
            "Warnings",
        ]
        assert "not the same number of ranks: 1 before, 4 after" in page.text
        assert "not significant" in page.text
        assert "sentence" in data_of(page)

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
        assert session.remedy is not None
        assert session.remedy.proof is not None
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


def test_lines_below_the_part_they_belong_to() -> None:
    parts = [("data.py:5", 0.3), ("aug.py:10", 0.5), ("aug.py:30", 0.2)]
    lines = [
        HotLine("aug.py:12", "a", 0.3),
        HotLine("aug.py:35", "b", 0.4),
        HotLine("aug.py:2", "before all", 0.1),
        HotLine("", "a library", 0.1),
    ]
    found = [(part.name, round(part.share, 6), bool(part.colour)) for part in under(parts, lines)]
    assert found == [("", 0.3, False), ("a", 0.3, True), ("", 0.2, False), ("b", 0.2, True), ("", 0.0, False)]
