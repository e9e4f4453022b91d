"""A diagnosis in a notebook and a program: in a line, on a screen, as a page, as a table, as a file."""

from __future__ import annotations

import sys
from html import unescape
from pathlib import Path

import pytest

from pipediag.analysis.summary import summarise
from pipediag.diagnosing import Diagnosis
from pipediag.errors import UsageError
from pipediag.report import screen
from pipediag.session import Session, Window

from .made import climbing, cut, inside, make


@pytest.fixture
def diagnosis() -> Diagnosis:
    """A proven transform, of two links."""
    ladder = cut(climbing(raw=0.2), [100.0, 30.0])
    return Diagnosis.of(make(ladder, inside=inside(100.0, 30.0)))


def test_in_a_line(diagnosis: Diagnosis) -> None:
    assert repr(diagnosis) == "<Diagnosis: transform (proven), 5.53 steps/s, 20 possible>"


def test_in_a_line_where_next_to_nothing_is_known() -> None:
    assert repr(Diagnosis.of(Session())).startswith("<Diagnosis: ")
    assert "\n" not in repr(Diagnosis.of(Session(windows=[Window("baseline", 0, 10, 1.0)])))


def test_printed_it_is_the_screen(diagnosis: Diagnosis, capsys: pytest.CaptureFixture[str]) -> None:
    print(diagnosis)
    assert capsys.readouterr().out == screen.write(summarise(diagnosis), more=screen.MORE_IN_CODE) + "\n"


def test_a_notebook_gets_the_answer_in_a_frame_of_its_own(diagnosis: Diagnosis) -> None:
    """Nothing of the page's style leaks into the notebook, and names cannot leave the frame."""
    assert diagnosis.session.loader is not None
    diagnosis.session.loader.dataset = '"><script>alert(1)</script>'
    html = diagnosis._repr_html_()
    assert html.startswith("<iframe ") and html.endswith("</iframe>")
    assert html.count("<") == 2, "the frame's content is escaped"
    content = unescape(html.partition('srcdoc="')[2].partition('"')[0])
    assert "Data costs your training" in content and "<script>alert" not in content
    assert len(html) < 100_000


def test_stages_are_the_waterfall(diagnosis: Diagnosis) -> None:
    stages = {stage.name: stage for stage in diagnosis.stages}
    assert stages["transform: A"].where == "aug.py:10"
    assert 90 < stages["transform: A"].ms < 110 and stages["compute"].ms == pytest.approx(50, rel=0.05)
    step = diagnosis.ladder.ms("baseline").value
    assert sum(stage.ms for stage in diagnosis.stages) == pytest.approx(step)
    assert sum(stage.share for stage in diagnosis.stages) == pytest.approx(1)
    assert all(stage.share == pytest.approx(stage.ms / step) for stage in diagnosis.stages)


def test_stages_as_a_table(diagnosis: Diagnosis) -> None:
    pytest.importorskip("pandas")
    table = diagnosis.to_pandas()
    assert list(table.columns) == ["name", "ms", "share", "where"]
    assert list(table["ms"]) == [stage.ms for stage in diagnosis.stages]
    assert list(Diagnosis.of(Session()).to_pandas().columns) == ["name", "ms", "share", "where"]


def test_a_table_needs_pandas(diagnosis: Diagnosis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match="pip install pandas"):
        diagnosis.to_pandas()


def test_as_a_file(diagnosis: Diagnosis, tmp_path: Path) -> None:
    diagnosis.report(tmp_path / "report.md")
    assert "transform" in (tmp_path / "report.md").read_text()
    with pytest.raises(UsageError, match="ending"):
        diagnosis.report(tmp_path / "report.docx")
    with pytest.raises(UsageError, match="cannot be written"):
        diagnosis.report(str(tmp_path / "nowhere" / "report.md"))


def test_the_whole_report_is_printed(diagnosis: Diagnosis, capsys: pytest.CaptureFixture[str]) -> None:
    diagnosis.report()
    out = capsys.readouterr().out
    assert "where a step goes" in out and "what would help" in out


def test_advice(diagnosis: Diagnosis) -> None:
    assert [one.title for one in diagnosis.advice] == [one.title for one in diagnosis.recommendations] != []


def test_a_loop_in_a_program_is_told_methods_and_no_options(diagnosis: Diagnosis) -> None:
    diagnosis.session.script.argv = []
    shown = str(Diagnosis.of(diagnosis.session))
    assert "diagnosis.report()" in shown
    assert not [word for word in shown.split() if word.startswith("--") or word == "-v"], shown
