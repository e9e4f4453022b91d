"""Reports against golden files, and what a stream can show.

After an intended change, update the golden files with ``UPDATE_GOLDENS=1 pytest -m "" tests/report/test_reports.py``
and read the difference.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from pipediag.analysis import Diagnosis, diagnose_session
from pipediag.analysis.audit import Audit, audit
from pipediag.analysis.compare import compare
from pipediag.analysis.sweep import Run, Sweep
from pipediag.errors import SessionFileError, UsageError
from pipediag.report import RENDERERS, Subject, check_output, ending_of, markdown, read, screen_for, write, written_by
from pipediag.report.document import Advice, Block, Code, Listing, Location, Paragraph, Section, Table, Title
from pipediag.session import BatchStep, Files, HotLine, Session, Slow, Startup, SyncCall, Syncs, Tail

from ..golden import agrees
from ..made import DOCUMENTS, FLAT, blocks, but, climbing, cut, inside, job, leaf, make, torchvisions, without
from .pages import COSTS, chain, full_session
from .test_terminal import Stream

render_terminal = RENDERERS[".txt"]
GOLDEN = Path(__file__).parent / "golden"
H200 = {"type": "cuda", "index": 0, "name": "NVIDIA H200"}
VERDICTS = {
    "none", "transfer", "ipc", "collate", "transform", "load", "storage", "startup", "contention", "inconclusive",
}  # fmt: skip


def fixed_session() -> Session:
    """A session with something in every part of a report."""
    costs = {"host": 2.0, "worker": 3.0, "sample": 1.5, "warm": 34.0, "baseline": 21.0}
    ladder = {**climbing(**costs), "supply": 108.0}
    session = make(
        without(ladder, "raw"),
        rounds=4,
        noise=0.01,
        seed=7,
        length=200,
        startups=[0.5, 0.6, 0.9],
        unavailable={"raw": "not separable: the result of transform is changed after the call"},
        evidence={
            "baseline": {"worker_ms": 412.0, "worker_cpu": 0.71, "worker_queued": 0.05, "worker_blocked": 0.24}
            | {"wait_ms": 55.1, "stalled_ms": 1.75, "process_cpu": 0.9, "cores_used": 4.1, "cores_busy": 4.6}
            | {"disk_read_mb": 3.25, "gpu_utilization": 0.44}
        },
        environment={"python": "3.11.7", "platform": "Linux", "cpus": 16, "cores": 16},
    )
    session.warn("writes-in-place", "the training loop changes its batches in place", "cached rungs hand out copies")
    caches = {"batch_bytes": 1 << 20, "held_bytes": 18 << 20, "device": 8, "host": 8, "shared": 2}
    but(session, script__argv=["train.py", "--epochs", "3"], script__wrote=["out/model.pt"], caches=caches)
    return but(session, device=H200, ended="settled")


def chain_session() -> Session:
    """A session with a chain of transforms that was cut, and all evidence beside the ladder."""
    ladder = climbing(host=2.0, worker=3.0, sample=1.5, raw=sum(COSTS), warm=9.0)
    seen = {"process_cpu": 0.9, "cores_used": 7.6, "cores_busy": 7.9}
    session = make(
        cut(ladder, COSTS, 2, 3),
        rounds=4,
        noise=0.004,
        seed=7,
        length=200,
        startups=[
            Startup(2.5, launch=0.25, ready=1.75),
            Startup(2.25, launch=0.25, ready=1.5),
            Startup(0.125, renewed=True),
        ],
        persistent=True,
        evidence={
            "sample": {**seen, "cores_busy": 7.5},
            "baseline": {"worker_ms": 380.0, "worker_cpu": 0.93, "worker_queued": 0.03, "worker_blocked": 0.04}
            | {"wait_ms": 42.0, "stalled_ms": 6.5, **seen},
        },
        environment={"python": "3.11.7", "platform": "Linux", "cpus": 8, "cores": 8, "threads": {"torch": 8}},
        inside=chain(),
    )
    but(session, inside__links__2__whole="it decides at random which of its parts run")
    but(session, inside__sizes=[[1024.0 * (60 + 20 * n), 8.0 + n] for n in range(9)])
    session.tail = Tail(2400, 11.0, 47.5, [Slow("4711", 212.0), Slow("17", 96.4)])
    session.batch_steps = [BatchStep(1 << 20, [ms, ms + 0.2]) for ms in (38.0, 50.0, 50.5, 61.0)]
    caches = {"held_bytes": 420 << 20, "device": 8, "host": 8, "shared": 2}
    return but(session, caches=caches, device=H200, ended="budget")


def advised_session() -> Session:
    """A session that has a lot to recommend: torchvision's transforms, and batches that could be smaller."""
    seen = {"worker_ms": 400.0, "worker_cpu": 0.97, "worker_queued": 0.02, "worker_blocked": 0.01, "process_cpu": 1.0}
    found = torchvisions(inside(2.0, 1.5, 0.5, load=4.0), "Resize", "RandomCrop", "ToDtype")
    found.links[1].bytes_in, found.links[1].bytes_out = 1.2e6, 3.0e5
    decoding = {"PIL.Image.Image.convert": 0.45, "PIL.ImageFile.ImageFile.load": 0.45}
    found.lines = [HotLine("data.py:9", "image = Image.open(path).convert('RGB')", 0.45, calls=decoding)]
    found.files = Files(1.0, 112_000.0, {".jpg": 32})
    ladder = {**climbing(host=12.0, sample=0.5), "raw": 100.0, "warm": 120.0, "baseline": 120.0, "supply": 118.0}
    session = make(
        ladder,
        rounds=4,
        noise=0.004,
        seed=7,
        length=500,
        startups=[Startup(6.0, launch=0.5, ready=4.5)] * 3,
        evidence={"baseline": seen},
        environment={"python": "3.11.7", "platform": "Linux", "cpus": 12, "cores": 12},
        inside=found,
        leaves=[
            leaf("['image']", nbytes=32 * 3 * 224 * 224 * 4, levels=256, bytes_over_255=True, low=0.0, high=1.0),
            leaf("['extra']", nbytes=1 << 21, non_blocking=False, read=False),
        ],
    )
    but(session, batch__copy_ms=11.5, batch__pinned_copy_ms=4.0, batch__device_copy_ms=0.05)
    return but(session, device={**H200, "name": "NVIDIA L4"}, ended="settled")


def observed_session() -> Session:
    """A session of a script that ended before anything could be cached: its own steps are all there is."""
    session = make(
        {},
        length=5000,
        startups=[Startup(3.5, launch=0.5, ready=2.75)],
        environment={"python": "3.11.7", "platform": "Linux", "cpus": 8, "cores": 8},
        inside=inside(2.5, 0.25, 1.25, load=2.5),
        observed=blocks(3, 112.0, 62.0, 248.0, noise=0.1, seed=3),
    )
    argv = ["train.py", "--steps", "12"]
    return but(session, rungs=make(FLAT).rungs, script__argv=argv, device=H200, ended="script")


SESSIONS = {
    "report": fixed_session,
    "chain": chain_session,
    "advice": advised_session,
    "observed": observed_session,
    "ranks": lambda: job(4),
    "many-ranks": lambda: job(24, None, hosts=3, cores=32),
}


def diagnosed(name: str) -> Diagnosis:
    return diagnose_session(SESSIONS[name]())


def audited() -> Audit:
    """A checklist with something to do that is no recommendation, a warning, and a name that ends a cell."""
    calls = [SyncCall("item()", "train.py:40", "", 1.0, 12.5, "Read it every N steps.")]
    session = but(SESSIONS["advice"](), syncs=Syncs(16, calls), batch__leaves__1__path="['a|b']")
    session.warn("writes-in-place", "the training loop changes its batches in place", "they are copied")
    return audit(diagnose_session(session))


def swept() -> Sweep:
    names = enumerate(("report", "chain", "observed"))
    runs = [Run((("--batch", str(16 << n)),), ["train.py"], diagnosed(name)) for n, name in names]
    return Sweep("train.py", 4, [*runs, Run((("--batch", "128"),), ["train.py"], None, 1, "out of memory")])


#: What reports are about, beside a diagnosis of each of the sessions.
SUBJECTS: dict[str, Callable[[], Subject]] = {
    "full": lambda: diagnose_session(full_session()),
    "comparison": lambda: compare(diagnosed("report"), diagnosed("chain")),
    "audit": lambda: audit(diagnosed("advice")),
    "checklist": audited,
    "sweep": swept,
}


@pytest.fixture
def diagnosis() -> Diagnosis:
    return diagnosed("report")


@pytest.mark.parametrize(
    "name, ending",
    [*itertools.product(SESSIONS, DOCUMENTS), *itertools.product(SUBJECTS, (".txt", ".md"))],
)
def test_golden(name: str, ending: str) -> None:
    rendered = RENDERERS[ending](SUBJECTS[name]() if name in SUBJECTS else diagnosed(name))
    assert isinstance(rendered, str)
    agrees(GOLDEN / f"{name}{ending}", rendered)


@pytest.mark.parametrize("name", list(SESSIONS))
def test_a_saved_report_is_read_back_to_the_same(name: str, tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    diagnosis = diagnose_session(SESSIONS[name]())
    write(diagnosis, str(file))
    again = read(str(file))
    assert again.session == diagnosis.session
    for ending in DOCUMENTS:
        assert RENDERERS[ending](again) == RENDERERS[ending](diagnosis)


class TestJson:
    """The contract with whoever reads the file."""

    @pytest.fixture
    def data(self, diagnosis: Diagnosis) -> dict[str, Any]:
        return json.loads(RENDERERS[".json"](diagnosis))  # type: ignore[no-any-return]

    def test_top(self, data: dict[str, Any]) -> None:
        assert data.keys() >= {
            "schema_version", "tool", "script", "environment", "device", "loader", "rungs", "waterfall", "verdict",
            "recommendations", "warnings", "partial",
        }  # fmt: skip
        assert isinstance(data["schema_version"], int)
        assert data["tool"].keys() >= {"version"}
        assert data["script"].keys() >= {"argv", "passes", "exit_code"}
        assert data["partial"] is False

    def test_loader(self, data: dict[str, Any]) -> None:
        assert data["loader"].keys() >= {
            "dataset", "batch_size", "num_workers", "prefetch_factor", "pin_memory", "persistent_workers", "where",
        }  # fmt: skip

    def test_rungs(self, data: dict[str, Any]) -> None:
        for rung in data["rungs"]:
            assert rung.keys() >= {
                "name", "available", "why_not", "steps_per_s", "ms_per_step", "windows", "evidence",
            }  # fmt: skip
        by_name = {rung["name"]: rung for rung in data["rungs"]}
        assert by_name["device"]["ms_per_step"].keys() == {"value", "low", "high"}
        assert by_name["device"]["steps_per_s"]["value"] == pytest.approx(20, rel=0.02)
        assert by_name["device"]["windows"] == 4
        assert by_name["raw"]["ms_per_step"] is None
        assert not by_name["raw"]["available"]
        assert by_name["raw"]["why_not"].startswith("not separable")

    def test_waterfall(self, data: dict[str, Any]) -> None:
        for piece in data["waterfall"]:
            assert piece.keys() >= {"stage", "culprit", "ms", "share"}
            assert piece["ms"].keys() == {"value", "low", "high"}
        (load,) = (piece for piece in data["waterfall"] if piece["stage"] == "load")
        assert load["culprit"].items() >= {"name": "Photos.__getitem__", "where": "data.py:5"}.items()
        base = next(rung for rung in data["rungs"] if rung["name"] == "baseline")["ms_per_step"]["value"]
        assert sum(piece["ms"]["value"] for piece in data["waterfall"]) == pytest.approx(base, abs=1e-4)
        assert all(piece["ms"]["value"] >= 0 for piece in data["waterfall"])
        without = {piece["stage"]: piece["without"] for piece in data["waterfall"]}
        assert without.pop("compute") is None
        assert all(one.keys() == {"steps_per_s", "measured"} for one in without.values())

    def test_verdict(self, data: dict[str, Any]) -> None:
        verdict = data["verdict"]
        assert verdict.keys() >= {
            "bottleneck", "culprit", "level", "starved", "waits", "band", "co_bottlenecks", "next_ceiling", "sentence",
        }  # fmt: skip
        assert verdict["bottleneck"] in VERDICTS
        assert verdict["level"] in ("observed", "intervened", "proven")
        assert verdict["starved"].keys() == {"value", "low", "high"}
        assert verdict["next_ceiling"].keys() == {"stage", "steps_per_s"}

    def test_links(self) -> None:
        """Which transforms each piece holds, and what they cost a worker."""
        data = json.loads(RENDERERS[".json"](diagnose_session(chain_session())))
        pieces = [(piece["rung"], piece["links"]) for piece in data["waterfall"] if piece["stage"] == "transform"]
        assert pieces == [
            ("", ["GaussianNoise"]),
            ("", ["ToDtype"]),
            ("", ["RandomApply"]),
            ("", ["RandomHorizontalFlip"]),
            ("", ["RandomResizedCrop"]),
        ]
        assert [rung["name"] for rung in data["rungs"]][3:7] == ["sample", "transform:3", "transform:2", "raw"]
        assert data["verdict"]["culprit"].items() >= {"name": "RandomApply", "where": "aug.py:30"}.items()
        link = data["evidence"]["worker"]["links"][2]
        assert link == {
            "name": "RandomApply",
            "where": "aug.py:30",
            "cost": {"wall_ms": 6.0, "cpu_ms": 6.0},
            "whole": "it decides at random which of its parts run",
            "origin": "",
            "given": "",
            "bytes_in": 0.0,
            "bytes_out": 0.0,
            "library": False,
            "parts": [],
        }
        assert data["evidence"]["tail"]["slowest"][0] == {"index": "4711", "ms": 212.0}
        assert data["evidence"]["batch_steps"][0] == {"nbytes": 1 << 20, "ms": [38.0, 38.2]}

    def test_recommendations(self) -> None:
        data = json.loads(RENDERERS[".json"](diagnose_session(advised_session())))
        assert data["nothing_to_gain"] is None
        assert len(data["recommendations"]) > 3
        assert data["evidence"]["batch"]["leaves"][1]["path"] == "['extra']"
        for one in data["recommendations"]:
            assert one.keys() == {
                "id", "title", "stage", "predicted_speedup", "at_most", "measured_speedup", "savings", "evidence",
                "how", "risk",
            }  # fmt: skip
            assert one["predicted_speedup"].keys() == {"value", "low", "high"}
            assert one["measured_speedup"] is None
            assert all(isinstance(text, str) for text in one["evidence"])

    def test_nothing_to_recommend(self) -> None:
        data = json.loads(RENDERERS[".json"](diagnose_session(make(FLAT))))
        assert data["nothing_to_gain"].startswith("Nothing to gain here, because")
        assert [one["stage"] for one in data["recommendations"]] == ["compute"]

    def test_warnings(self, data: dict[str, Any]) -> None:
        assert [w["code"] for w in data["warnings"]] == ["writes-in-place", "wrote-files"]
        assert all(w.keys() == {"code", "message", "help"} for w in data["warnings"])

    @pytest.mark.parametrize(
        "session, bottleneck, level",
        [
            (Session(), "inconclusive", None),
            (make({"baseline": 1.0}, rounds=1), "inconclusive", None),
            (make(climbing(raw=3.0), rounds=1), "inconclusive", "intervened"),
            (make(climbing(raw=30.0), rounds=1), "transform", "intervened"),
            (make({}, observed=blocks(1, 100.0, 40.0)), "load", "observed"),
        ],
        ids=["nothing", "nothing to compare", "too uncertain", "one window", "one block of steps"],
    )
    def test_is_json_also_when_little_was_measured(self, session: Session, bottleneck: str, level: str | None) -> None:
        data = json.loads(RENDERERS[".json"](diagnose_session(session)), parse_constant=pytest.fail)
        assert (data["verdict"]["bottleneck"], data["verdict"]["level"]) == (bottleneck, level)


class TestStream:
    def test_plain_in_a_pipe(self, diagnosis: Diagnosis) -> None:
        text = screen_for(diagnosis, Stream("utf-8"), 1)
        assert "\x1b" not in text
        assert "█" in text

    def test_colour_on_a_terminal(self, diagnosis: Diagnosis) -> None:
        text = screen_for(diagnosis, Stream("utf-8", tty=True), 1)
        assert text.startswith("\x1b[1;31mDATA COSTS YOUR TRAINING 55 % OF EVERY STEP\x1b[0m  (48 to 61 %, certain)\n")
        assert re.sub(r"\x1b\[[0-9;]*m", "", text) == screen_for(diagnosis, Stream("utf-8"), 1)

    @pytest.mark.parametrize("encoding", ["ascii", "latin-1", "no-such-encoding", None])
    def test_ascii_where_the_stream_knows_no_blocks(self, diagnosis: Diagnosis, encoding: str | None) -> None:
        text = screen_for(diagnosis, Stream(encoding), 1)
        assert text.isascii()
        assert text == render_terminal(diagnosis)
        assert "####" in text

    def test_ascii_although_names_are_not(self) -> None:
        """Names may hold any character; the stream must still be able to take the report."""
        session = fixed_session()
        session.script.argv = ["entraînement.py"]
        screen_for(diagnose_session(session), Stream("ascii"), 1).encode("ascii")

    def test_file_names_that_are_no_text(self, tmp_path: Path) -> None:
        """Bytes of a path that do not decode reach Python as lone surrogates, which UTF-8 does not take."""
        session = fixed_session()
        session.script.argv = [os.fsdecode(b"tr\xe9s.py")]
        diagnosis = diagnose_session(session)
        screen_for(diagnosis, Stream("utf-8"), 1).encode("utf-8")
        for ending in DOCUMENTS:
            write(diagnosis, str(tmp_path / f"x{ending}"))


class TestTerminal:
    @pytest.mark.parametrize("name, most", [("report", 61), ("chain", 93), ("advice", 75), ("observed", 50)])
    def test_one_screen(self, name: str, most: int) -> None:
        assert len(render_terminal(diagnose_session(SESSIONS[name]())).splitlines()) <= most

    @pytest.mark.parametrize(
        "name",
        [
            "report",
            "advice",
            "observed",
            pytest.param("chain", marks=pytest.mark.xfail(strict=True, reason="names of transforms are long")),
        ],
    )
    def test_no_wider_than_a_screen(self, name: str) -> None:
        assert max(map(len, render_terminal(diagnose_session(SESSIONS[name]())).splitlines())) <= 100

    def test_the_verdict_is_first_and_warnings_are_last(self, diagnosis: Diagnosis) -> None:
        text = render_terminal(diagnosis)
        assert text.startswith("DATA COSTS YOUR TRAINING 55 % OF EVERY STEP  (")
        assert text.index("warnings:") > text.index("what would help:") > text.index("other evidence:")
        assert text.index("other evidence:") > text.index("baseline")

    def test_three_recommendations_in_full_the_rest_by_a_line(self) -> None:
        diagnosis = diagnose_session(advised_session())
        part = render_terminal(diagnosis).partition("what would help:\n")[2].partition("\n\n")[0]
        assert part.count("     why: ") == part.count("     how: ") == 3
        for count, one in enumerate(diagnosis.recommendations, 1):
            assert f"  {count}. " in part
            assert one.title.split(",")[0] in " ".join(part.split())

    def test_nothing_to_gain(self) -> None:
        text = render_terminal(diagnose_session(make(FLAT)))
        assert "what would help:\n  - Nothing to gain here, because data costs" in text
        assert "  1. not predicted  Look at the model's own step next\n" in text

    def test_partial_is_said(self) -> None:
        session = make(climbing(raw=30.0))
        session.windows = [window for window in session.windows if window.rung != "raw"]
        text = render_terminal(diagnose_session(session))
        assert "PARTIAL: time ran out before these rungs were measured: raw" in text.partition("warnings:")[2]

    def test_not_starved(self) -> None:
        assert render_terminal(diagnose_session(make(FLAT))).startswith("YOUR TRAINING LOSES NO TIME TO DATA: ")

    @pytest.mark.parametrize("ending", [".txt", ".md"])
    @pytest.mark.parametrize("factor", [30.0, 0.01], ids=["steps of seconds", "thousands of steps a second"])
    def test_numbers_are_written_for_people(self, factor: float, ending: str) -> None:
        """A step of a second is not written as 1.12e+03 ms, nor a stage that costs nothing as 1.7e-05 ms."""
        ladder = {rung: factor * ms for rung, ms in climbing(raw=30.0).items()}
        for session in (make(ladder), make(ladder, startups=[20.0, 20.0], length=4)):
            text = RENDERERS[ending](diagnose_session(session))
            assert re.findall(r"\S*\de[+-]\d\S*", text) == []

    @pytest.mark.parametrize("ending", DOCUMENTS)
    def test_an_empty_session_has_a_report(self, ending: str) -> None:
        assert RENDERERS[ending](diagnose_session(Session()))


class TestFiles:
    @pytest.mark.parametrize("ending", DOCUMENTS)
    def test_a_check_leaves_nothing(self, tmp_path: Path, ending: str) -> None:
        check_output(str(tmp_path / f"x{ending}"))
        assert list(tmp_path.iterdir()) == []

    def test_a_check_leaves_what_is_there(self, tmp_path: Path) -> None:
        file = tmp_path / "x.json"
        file.write_text("old")
        check_output(str(file))
        assert file.read_text() == "old"

    @pytest.mark.parametrize("name", ["x", "x.pdf", "x.JSON", ".json"])
    def test_bad_ending(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(UsageError, match=r"\.json, \.md, \.txt"):
            check_output(str(tmp_path / name))

    def test_a_folder_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="cannot be written"):
            check_output(str(tmp_path / "no" / "x.json"))

    def test_a_folder_in_the_files_place(self, tmp_path: Path) -> None:
        (tmp_path / "x.json").mkdir()
        with pytest.raises(UsageError, match="cannot be written"):
            check_output(str(tmp_path / "x.json"))

    def test_writing_fails(self, diagnosis: Diagnosis, tmp_path: Path) -> None:
        with pytest.raises(SessionFileError, match="could not be written"):
            write(diagnosis, str(tmp_path / "no" / "x.json"))

    def test_reading_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(SessionFileError, match="cannot be read"):
            read(str(tmp_path / "x.json"))

    def test_reading_a_folder(self, tmp_path: Path) -> None:
        with pytest.raises(SessionFileError, match="cannot be read"):
            read(str(tmp_path))

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            *((text, "not JSON") for text in ("", "{", "no json")),
            *((text, "not a pipediag session; write one with") for text in ("[]", "{}", "3", '{"session": []}')),
        ],
    )
    def test_reading_another_file(self, tmp_path: Path, text: str, why: str) -> None:
        file = tmp_path / "x.json"
        file.write_text(text)
        with pytest.raises(SessionFileError, match=why):
            read(str(file))

    def test_reading_a_session_of_a_newer_pipediag(self, diagnosis: Diagnosis, tmp_path: Path) -> None:
        """Unknown fields are fine, but a schema of the future may have other meanings."""
        file = tmp_path / "x.json"
        file.write_text(json.dumps({**diagnosis.to_dict(), "schema_version": 999}))
        with pytest.raises(SessionFileError, match="newer"):
            read(str(file))


HOSTILE = st.lists(
    st.sampled_from(
        ["`", "``", "```", "\\", "[", "](http://x.y/z)", "![a]", "<img src=x>", "<", "&lt;", "|", "a", " "]
    ),
    min_size=1,
    max_size=8,
).map("".join)
_LIVE = {"link_open", "image", "html_inline", "html_block"}


def documents(text: str) -> list[list[Block]]:
    return [
        [Title(text, text, text)],
        [Paragraph(text)],
        [Location("slow", text, text)],
        [Listing([text])],
        [Listing([text], code=True)],
        [Table(["what", text], "ll", [[text, text]], code=True)],
        [Code("run", [text, text], "diff")],
        [Advice(1, text, text, text, text, [text], text, [text], text)],
    ]


def live(written: str) -> set[str]:
    tokens = MarkdownIt("commonmark").enable("table").parse(written)
    return {inner.type for token in tokens for inner in [token, *(token.children or [])]} & _LIVE


@given(HOSTILE)
def test_nothing_of_it_is_live(text: str) -> None:
    for document in documents(text):
        assert not live(markdown.write(document)), markdown.write(document)


@pytest.mark.parametrize("text", ["a`b", "`", "``", "x|y"])
def test_a_code_span_shows_all_of_it(text: str) -> None:
    written = markdown.write([Location("slow", text, "")])
    html = MarkdownIt("commonmark").render(written)
    assert re.search(f"<code>{re.escape(text)}</code>", html), html


def test_an_address_is_not_linked() -> None:
    """GitHub links an address that stands in plain text."""
    assert "://" not in markdown.write([Paragraph("see https://x.y and www.x.y")])
    assert "www." not in markdown.write([Paragraph("see www.x.y")])


def outline(blocks: Iterable[Block]) -> str:
    """Titles, and the number of rows of each table."""

    def lines(found: Iterable[Block]) -> Iterator[str]:
        for block in found:
            match block:
                case Title(headline):
                    yield headline
                case Section(title, inner):
                    yield from (title, *lines(inner))
                case Table(rows=rows):
                    yield f"table of {len(rows)} rows"

    return "\n".join(lines(blocks))


FAST, SLOW = (diagnose_session(make(climbing(raw=cost), inside=inside(cost))) for cost in (10.0, 30.0))
RUNS = [Run((("--size", size),), ["train.py"], one) for size, one in (("1", FAST), ("2", SLOW))]


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        (
            SLOW,
            ["DATA COSTS YOUR TRAINING 38 % OF EVERY STEP", "table of 7 rows", "inside a worker, ms per sample"],
        ),
        (audit(SLOW), ["THE AUDIT FAILED: 2 of 9 checks failed, 6 not measured, 1 passed", "what would help"]),
        (
            compare(SLOW, FAST),
            [
                "THE LOOP IS FASTER: 1.33x the steps a second",
                "steps a second",
                "table of 7 rows",
                "a worker's own ms for a sample",
            ],
        ),
        (
            Sweep("train.py", 2, RUNS),
            ["2 OF 2 RUNS MEASURED: --size=1 makes the most samples a second", "table of 2 rows"],
        ),
    ],
    ids=["diagnosis", "audit", "comparison", "sweep"],
)
def test_each_kind_of_report_in_a_new_format(
    subject: Subject, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RENDERERS, ".outline", written_by(outline))
    target = tmp_path / "x.outline"
    check_output(str(target))
    write(subject, str(target))
    assert target.read_text().splitlines()[: len(expected)] == expected


@pytest.mark.parametrize(
    ("name", "ending"),
    [("a.json", ".json"), ("a.json.gz", ".json.gz"), ("a.b.html", ".html"), ("a.gz", ""), (".json", ""), ("json", "")],
)
def test_the_longest_ending_wins(name: str, ending: str) -> None:
    assert ending_of(f"/some.md/{name}") == ending


@pytest.mark.parametrize(("ending", "module", "data"), [(".html", "page", "<p>"), (".json.gz", "trace", b"\x1f\x8b")])
def test_modules_are_imported_when_they_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, module: str, data: str | bytes
) -> None:
    given: list[Subject] = []
    fake = SimpleNamespace(write=lambda subject: given.append(subject) or data)
    monkeypatch.setitem(__import__("sys").modules, f"pipediag.report.{module}", fake)
    file = tmp_path / f"x{ending}"
    write(SLOW, str(file))
    assert given == [SLOW]
    assert file.read_bytes() == (data if isinstance(data, bytes) else data.encode())


def test_a_timeline_shows_a_diagnosis_only(tmp_path: Path) -> None:
    check_output(str(tmp_path / "x.json.gz"))
    with pytest.raises(UsageError, match="timeline of one run"):
        check_output(str(tmp_path / "x.json.gz"), of_a_diagnosis=False)
    check_output("-")
