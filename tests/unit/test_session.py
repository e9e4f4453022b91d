"""The session's JSON form: nothing lost, read tolerantly, and refused clearly when it is none."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipediag.errors import SessionFileError
from pipediag.session import (
    CONTROLS,
    RUNG_MEANING,
    RUNGS,
    STAGE_OF_RUNG,
    Loader,
    Place,
    Rung,
    Script,
    Session,
    Startup,
    Warning_,
    Window,
    ordered,
)

from .made import FLAT, make

NAMES = st.sampled_from(RUNGS + CONTROLS)
TEXT = st.text(max_size=8)
COUNT = st.integers(0, 10_000)
SECONDS = st.floats(1e-6, 1e6)
JSON = st.none() | st.booleans() | st.integers() | SECONDS | TEXT
FACTS = st.dictionaries(TEXT, JSON, max_size=3)
PLACES = st.builds(Place, name=TEXT, where=TEXT)
SESSIONS = st.builds(
    Session,
    tool_version=TEXT,
    script=st.builds(
        Script,
        argv=st.lists(TEXT, max_size=3),
        passes=COUNT,
        exit_code=st.none() | COUNT,
        wrote=st.lists(TEXT, max_size=2),
    ),
    environment=FACTS,
    device=FACTS,
    loader=st.none()
    | st.builds(
        Loader,
        dataset=TEXT,
        batch_size=st.none() | COUNT,
        num_workers=COUNT,
        length=st.none() | COUNT,
        dataset_code=st.none() | PLACES,
        transform=st.none() | PLACES,
        collate=st.none() | PLACES,
    ),
    rungs=st.lists(st.builds(Rung, name=NAMES, available=st.booleans(), why_not=TEXT, exists=st.booleans())).map(
        lambda rungs: {r.name: r for r in rungs}
    ),
    windows=st.lists(
        st.builds(
            Window,
            rung=NAMES,
            round=COUNT,
            steps=st.integers(1, 10_000),
            seconds=SECONDS,
            optimizer_steps=COUNT,
            attempt=COUNT,
            evidence=st.dictionaries(TEXT, SECONDS, max_size=3),
        ),
        max_size=5,
    ),
    startups=st.lists(st.builds(Startup, seconds=SECONDS, attempt=COUNT), max_size=3),
    warnings=st.lists(st.builds(Warning_, code=TEXT, message=TEXT, help=TEXT), max_size=3),
    caches=FACTS,
    ended=TEXT,
)


@given(SESSIONS)
def test_round_trip(session: Session) -> None:
    through = json.loads(json.dumps(session.to_dict(), allow_nan=False))
    assert Session.from_dict(through) == session


def test_to_dict_shares_nothing_with_the_session() -> None:
    session = make(FLAT)
    session.to_dict()["environment"]["cores"] = 99
    session.to_dict()["windows"][0]["evidence"]["worker_ms"] = 1.0
    assert session == make(FLAT)


def test_unknown_keys_are_left_out() -> None:
    """A later pipediag may have added fields: anywhere, at any depth."""
    data = make(FLAT).to_dict()
    richer = copy.deepcopy(data)
    for part in (richer, richer["script"], richer["loader"], richer["windows"][0], richer["rungs"]["raw"]):
        part["invented_later"] = {"x": 1}
    richer["loader"]["collate"]["invented_later"] = 1
    assert Session.from_dict(richer) == Session.from_dict(data)


def test_fields_with_defaults_may_be_missing() -> None:
    data = {
        "script": {},
        "rungs": {"raw": {"name": "raw"}},
        "windows": [{"rung": "raw", "round": 0, "steps": 2, "seconds": 0.5}],
        "startups": [{"seconds": 1.0}],
        "warnings": [{"code": "c", "message": "m"}],
    }
    session = Session.from_dict(data)
    assert session.windows == [Window("raw", 0, 2, 0.5)]
    assert session.rungs == {"raw": Rung("raw")}
    assert session.loader is None


@pytest.mark.parametrize(
    "path, value",
    [
        ((), []),
        ((), "text"),
        ((), None),
        (("script",), None),
        (("script", "argv"), None),
        (("script", "argv"), 5),
        (("loader",), "text"),
        (("loader", "num_workers"), "four"),
        (("environment",), "text"),
        (("device",), []),
        (("rungs",), []),
        (("rungs", "raw"), {"available": True}),
        (("windows",), {"a": 1}),
        (("windows",), None),
        (("windows", 0), 3),
        (("windows", 0), {"rung": "raw"}),
        (("windows", 0, "rung"), ["raw"]),
        (("windows", 0, "round"), [1]),
        (("windows", 0, "steps"), 0),
        (("windows", 0, "steps"), "ten"),
        (("windows", 0, "seconds"), -1.0),
        (("windows", 0, "seconds"), None),
        (("windows", 0, "seconds"), float("nan")),
        (("windows", 0, "seconds"), float("inf")),
        (("windows", 0, "evidence"), 7),
        (("windows", 0, "evidence"), {"copy_ms": "much"}),
        (("startups",), [{"seconds": "slow"}]),
        (("startups",), [{}]),
        (("warnings",), [{}]),
    ],
    ids=lambda part: ".".join(map(str, part)) if isinstance(part, tuple) else repr(part),
)
def test_corrupt_session_is_refused(tmp_path: Any, path: tuple[Any, ...], value: Any) -> None:
    """Whatever is wrong in the file, reading it ends in the one error that the command line reports in a line."""
    from pipediag.report import read

    data: Any = {"session": make(FLAT, startups=[1.0]).to_dict()}
    *way, last = ("session", *path)
    inner = data
    for step in way:
        inner = inner[step]
    inner[last] = value
    file = tmp_path / "x.json"
    file.write_text(json.dumps(data))
    with pytest.raises(SessionFileError, match=re.escape(str(file))):
        read(str(file))


def test_refusal_says_how_to_get_a_session() -> None:
    with pytest.raises(SessionFileError, match=r"pipediag analyze -o session\.json"):
        Session.from_dict({})


def test_ms_per_step() -> None:
    assert Window("raw", 0, steps=4, seconds=0.5).ms_per_step == 125.0


def test_names_are_complete() -> None:
    assert set(RUNG_MEANING) == {*RUNGS, *CONTROLS}
    assert set(STAGE_OF_RUNG) == set(RUNGS)


def test_ordered() -> None:
    assert ordered(["supply", "baseline", "raw", "device"]) == ["device", "raw", "baseline", "supply"]


def test_measured_is_in_ladder_order_without_controls() -> None:
    session = make({"supply": 1.0, "baseline": 3.0, "device": 1.0})
    assert session.measured() == ["device", "baseline"]
    assert [w.rung for w in session.windows_of("device")] == ["device"] * 5


class TestApply:
    """Every kind of event ends up in its place."""

    def test_window(self) -> None:
        session = Session()
        session.apply("window", {"rung": "raw", "round": 2, "steps": 4, "seconds": 0.5, "later": 1})
        assert session.windows == [Window("raw", 2, 4, 0.5)]

    def test_rung(self) -> None:
        session = Session()
        session.apply("rung", {"name": "raw"})
        session.apply("rung", {"name": "raw", "available": False, "why_not": "because"})
        assert session.rungs == {"raw": Rung("raw", False, "because")}

    def test_startup(self) -> None:
        session = Session()
        session.apply("startup", {"seconds": 1.5, "attempt": 2})
        assert session.startups == [Startup(1.5, 2)]

    def test_loader(self) -> None:
        session = Session()
        session.apply("loader", {"dataset": "D", "transform": {"name": "T", "where": "a.py:1"}})
        assert session.loader == Loader(dataset="D", transform=Place("T", "a.py:1"))

    def test_warning_is_kept_once(self) -> None:
        session = Session()
        for message in ("m", "m", "other"):
            session.apply("warning", {"code": "c", "message": message})
        assert session.warnings == [Warning_("c", "m"), Warning_("c", "other")]

    def test_wrote_is_kept_once(self) -> None:
        session = Session()
        for path in ("a", "b", "a"):
            session.apply("wrote", {"path": path})
        assert session.script.wrote == ["a", "b"]

    @pytest.mark.parametrize("kind", ["environment", "device", "caches"])
    def test_facts_are_merged(self, kind: str) -> None:
        session = Session()
        session.apply(kind, {"a": 1, "b": 1})
        session.apply(kind, {"b": 2})
        assert getattr(session, kind) == {"a": 1, "b": 2}

    @pytest.mark.parametrize("kind", ["progress", "finished", "ended", "first-batch", "invented-later"])
    def test_others_leave_the_session_alone(self, kind: str) -> None:
        session = Session()
        session.apply(kind, {"reason": "settled"})
        assert session == Session()
