"""The session's JSON form: nothing is lost, unknown parts are ignored, and other files are refused clearly."""

from __future__ import annotations

import ast
import copy
import dataclasses
import json
import re
import shutil
import subprocess
import sys
import types
import typing
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipediag
from pipediag.errors import SessionFileError
from pipediag.session import (
    CONTROLS,
    REMEDIES,
    RUNG_MEANING,
    RUNGS,
    STAGE_OF_RUNG,
    BatchFacts,
    BatchStep,
    Cost,
    Inside,
    Knobs,
    Leaf,
    Link,
    Loader,
    Observed,
    Place,
    Prefix,
    Profile,
    Remedy,
    Rung,
    Script,
    Session,
    Slow,
    Startup,
    Stretch,
    Syncs,
    Tail,
    Warning_,
    Window,
    cut_of,
    cut_rung,
    ordered,
)
from pipediag.session.codec import build
from pipediag.session.events import KINDS, LoaderUse, Story, read

from ..made import FLAT, climbing, cut, inside, make
from .hostile import full_session

PLAIN = {int: st.integers(1, 10_000), float: st.floats(1e-6, 1e6), bool: st.booleans(), str: st.text(max_size=8)}
FACTS = (BatchFacts, Inside, Knobs, Loader, Observed, Prefix, Profile, Remedy, Rung, Script, Stretch, Syncs, Tail)


def some(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of an annotated type; of a dataclass, with something in every field."""
    arguments, origin = typing.get_args(kind), typing.get_origin(kind) or kind
    if kind is Any:
        return st.one_of(st.none(), *PLAIN.values())
    if origin in (types.UnionType, typing.Union):
        return st.none() | some(arguments[0])
    if origin is list:
        return st.lists(some(arguments[0]), max_size=2)
    if origin is dict:
        return st.dictionaries(PLAIN[str], some(arguments[1]), max_size=2)
    if dataclasses.is_dataclass(origin):
        hints = typing.get_type_hints(origin)
        return st.builds(origin, **{one.name: some(hints[one.name]) for one in dataclasses.fields(origin)})
    return PLAIN[kind]


@pytest.mark.parametrize("kind", FACTS)
def test_facts_survive_json(kind: type) -> None:
    @settings(max_examples=30)
    @given(some(kind))
    def check(fact: Any) -> None:
        assert build(kind, json.loads(json.dumps(dataclasses.asdict(fact), allow_nan=False))) == fact

    check()


def test_the_whole_session_survives_json() -> None:
    session = full_session()
    assert Session.from_dict(json.loads(json.dumps(session.to_dict(), allow_nan=False))) == session


def test_to_dict_shares_nothing_with_the_session() -> None:
    session = make(FLAT)
    session.to_dict()["environment"]["cores"] = 99
    session.to_dict()["windows"][0]["evidence"]["worker_ms"] = 1.0
    assert session == make(FLAT)


def test_unknown_keys_are_left_out() -> None:
    """A later pipediag may have added fields: anywhere, at any depth."""
    data = make(FLAT, inside=inside(1.0)).to_dict()
    richer = copy.deepcopy(data)
    links = richer["inside"]["links"][0]
    parts = (richer, richer["script"], richer["loader"], richer["windows"][0], richer["rungs"]["raw"], richer["inside"])
    for part in (*parts, links, links["cost"]):
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
        (("inside",), []),
        (("inside", "links"), {}),
        (("inside", "links", 0), {"where": "x"}),
        (("inside", "links", 0, "cost"), 5.0),
        (("inside", "whole", "wall_ms"), "much"),
        (("inside", "sizes"), [5.0]),
        (("inside", "sizes"), [["big", 1.0]]),
        (("inside", "threads"), {"torch": "all"}),
        (("inside", "lines"), [{"where": "x", "text": "y"}]),
        (("tail",), 5.0),
        (("tail", "slowest"), [{"index": 5, "ms": 1.0}]),
        (("batch_steps",), None),
        (("batch_steps",), [{"nbytes": 1.5, "ms": []}]),
        (("batch_steps",), [{"nbytes": 1}]),
        (("batch",), []),
        (("batch",), {"leaves": [{}]}),
        (("batch",), {"leaves": [{"path": "[0]", "read": "often"}]}),
        (("batch",), {"copy_ms": "quick"}),
        (("prefix",), {"modules": ["encoder"]}),
        (("knobs",), {"tried": [{"num_workers": "four"}]}),
        (("knobs",), {"tried": {"num_workers": 4}}),
        (("profile",), {"operators": [{"name": "mm"}]}),
    ],
    ids=lambda part: ".".join(map(str, part)) if isinstance(part, tuple) else repr(part),
)
def test_corrupt_session_is_refused(tmp_path: Any, path: tuple[Any, ...], value: Any) -> None:
    """Whatever is wrong in the file, reading it ends in the one error that the command line reports in a line."""
    from pipediag.report import read

    session = make(FLAT, startups=[1.0], inside=inside(1.0))
    session.tail = Tail()
    data: Any = {"session": session.to_dict()}
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


class TestCutRungs:
    """``transform:k``: samples with k transforms behind them."""

    @given(st.integers(0, 10_000))
    def test_there_and_back(self, links: int) -> None:
        assert cut_of(cut_rung(links)) == links

    @pytest.mark.parametrize(
        "name",
        [
            *RUNGS,
            *CONTROLS,
            "",
            "transform",
            "transform:",
            "transform:x",
            "transform:-1",
            "transform:1.5",
            "x:3",
            "transform:\N{SUPERSCRIPT TWO}",
        ],
    )
    def test_others_are_none(self, name: str) -> None:
        assert cut_of(name) is None

    def test_the_more_transforms_are_behind_the_faster(self) -> None:
        names = ["raw", "transform:2", "supply", "sample", "transform:10", "warm", "transform:1", "worker"]
        assert ordered(names) == [
            "worker", "sample", "transform:10", "transform:2", "transform:1", "raw", "warm", "supply",
        ]  # fmt: skip

    @given(st.permutations([*RUNGS, *CONTROLS, *map(cut_rung, range(1, 6))]))
    def test_any_order(self, names: list[str]) -> None:
        found = ordered(names)
        assert [name for name in found if cut_of(name) is None] == [*RUNGS, *CONTROLS]
        assert found.index("transform:5") == found.index("sample") + 1
        assert found.index("transform:1") == found.index("raw") - 1

    def test_measured(self) -> None:
        session = make(cut(climbing(raw=30.0), (10.0, 10.0, 10.0)))
        assert session.measured()[3:6] == ["sample", "transform:2", "transform:1"]


def test_links_are_those_found_inside() -> None:
    assert Session().links == []
    assert [link.name for link in Session(inside=inside(1.0, 2.0)).links] == ["A", "B"]


def test_measured_is_in_ladder_order_without_controls() -> None:
    session = make({"supply": 1.0, "baseline": 3.0, "device": 1.0})
    assert session.measured() == ["device", "baseline"]
    assert [w.rung for w in session.windows_of("device")] == ["device"] * 5


LINKS = [{"name": "A", "cost": {"wall_ms": 2}}]


@pytest.mark.parametrize(
    ("kind", "events", "expected"),
    [
        (
            "window",
            [{"rung": "raw", "round": 2, "steps": 4, "seconds": 0.5, "later": 1}],
            {"windows": [Window("raw", 2, 4, 0.5)]},
        ),
        (
            "rung",
            [{"name": "raw"}, {"name": "raw", "available": False, "why_not": "because"}],
            {"rungs": {"raw": Rung("raw", False, "because")}},
        ),
        (
            "startup",
            [{"seconds": 1.5, "attempt": 2}, {"seconds": 1.5, "launch": 0.5, "ready": 1, "renewed": True}],
            {"startups": [Startup(1.5, 2), Startup(1.5, 1, 0.5, 1.0, True)]},
        ),
        # The latest of these counts.
        (
            "inside",
            [{"samples": samples, "links": LINKS} for samples in (3, 5)],
            {"inside": Inside(samples=5, links=[Link("A", cost=Cost(2.0))])},
        ),
        (
            "tail",
            [{"samples": samples, "slowest": [{"index": "7", "ms": 3.5}]} for samples in (3, 5)],
            {"tail": Tail(samples=5, slowest=[Slow("7", 3.5)])},
        ),
        (
            "batch",
            [{"leaves": [{"path": "[0]", "levels": levels}], "copy_ms": 2} for levels in (None, 256)],
            {"batch": BatchFacts([Leaf("[0]", levels=256)], copy_ms=2.0)},
        ),
        (
            "batch-step",
            [{"nbytes": nbytes, "ms": [1, 2.5]} for nbytes in (10, 20)],
            {"batch_steps": [BatchStep(10, [1.0, 2.5]), BatchStep(20, [1.0, 2.5])]},
        ),
        (
            "prefix",
            [{"modules": ["encoder"], "ms": 3, "rest_ms": 4, "where": "train.py:8"}],
            {"prefix": Prefix(["encoder"], 3.0, 4.0, "train.py:8")},
        ),
        (
            "loader",
            [{"dataset": "D", "transform": {"name": "T", "where": "a.py:1"}}],
            {"loader": Loader(dataset="D", transform=Place("T", "a.py:1"))},
        ),
        # Each of these is kept once.
        (
            "warning",
            [{"code": "c", "message": message} for message in ("m", "m", "other")],
            {"warnings": [Warning_("c", "m"), Warning_("c", "other")]},
        ),
        ("wrote", [{"path": path} for path in ("a", "b", "a")], {"script": Script(wrote=["a", "b"])}),
        # Facts are merged.
        *(
            (kind, [{"a": 1, "b": 1}, {"b": 2}], {kind: {"a": 1, "b": 2}})
            for kind in ("environment", "device", "caches")
        ),
        ("invented-later", [{"reason": "settled"}], {}),
    ],
)
def test_every_kind_of_event_ends_up_in_its_place(
    kind: str, events: list[dict[str, Any]], expected: dict[str, Any]
) -> None:
    session = Session()
    for event in events:
        session.apply(kind, event)
    assert session == Session(**expected)


def test_a_prefix_of_an_earlier_version() -> None:
    """What was tried then is left out."""
    tried = {"least": 1.0, "most": 1.5, "measured": 1.2, "how": "split = ..."}
    kept = {"modules": ["encoder"], "ms": 3.0, "rest_ms": 4.0, "why_not": "it was tried"}
    read = Session.from_dict({**Session().to_dict(), "prefix": {**kept, **tried}})
    assert read.prefix == Prefix(["encoder"], 3.0, 4.0, why_not="it was tried")


TESTS = Path(__file__).parents[1]
PROGRAM = """
import json, sys
from pipediag.analysis import diagnose_session
from pipediag.analysis.audit import audit
from pipediag.analysis.compare import compare
from pipediag.report import RENDERERS
from pipediag.session import RUNGS
diagnosis = diagnose_session(make(climbing(new=30.0), noise=0.0))
assert audit(diagnosis).count("failed")
print(json.dumps({
    "order": RUNGS,
    "reports": [RENDERERS[ending](diagnosis) for ending in (".txt", ".md")],
    "data": diagnosis.to_dict(),
    "compared": [one.rung for one in compare(diagnosis, diagnosis).rungs],
    "stages": [one.stage for one in compare(diagnosis, diagnosis).stages],
}))
"""


def with_rung(folder: Path, before: str) -> Any:
    """What ``PROGRAM`` prints in a package that has the rung ``new`` directly before the rung ``before``."""
    package = folder / "pipediag"
    shutil.copytree(Path(pipediag.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    table = package / "session" / "rungs.py"
    entry, text = 'RungKind("new", "added", "doing what is new", "something new"),\n', table.read_text()
    place = text.index("RungKind(", text.rindex("\n", 0, text.index(f'"{before}"')) - len("    RungKind("))
    table.write_text(text[:place] + entry + text[place:])
    begin = f"import sys; sys.path[:0] = [{str(folder)!r}, {str(TESTS.parent)!r}]\n"
    begin += f"from {TESTS.name}.made import climbing, make\n"
    run = subprocess.run(
        [sys.executable, "-c", begin + PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.parametrize("before", ["worker", *(pytest.param(one, marks=pytest.mark.slow) for one in ("raw", "warm"))])
def test_a_new_rung_is_one_entry(before: str, tmp_path: Path) -> None:
    found = with_rung(tmp_path, before)
    assert found["order"].index("new") == found["order"].index(before) - 1
    data = found["data"]
    stages = [piece["stage"] for piece in data["waterfall"]]
    following = {"worker": "ipc", "raw": "transform", "warm": "load"}[before]
    assert stages.index("added") == stages.index(following) - 1
    (piece,) = (piece for piece in data["waterfall"] if piece["stage"] == "added")
    assert piece["ms"]["value"] == pytest.approx(30.0)
    assert piece["without"]["steps_per_s"] > 19
    assert data["verdict"]["bottleneck"] == "added"
    assert "doing what is new costs 30 of 81.2 ms" in data["verdict"]["sentence"]
    assert "new" in found["compared"]
    assert ("added" in found["stages"]) == (before == "worker"), "a stage of the training process is compared by itself"
    for text in found["reports"]:
        assert "bottleneck: added (" in text
        assert "new 12." in text
        assert [line for line in text.splitlines() if line.startswith(("added ", "| added |"))]


PACKAGE = Path(pipediag.__file__).parent


def sent(path: Path) -> Iterator[tuple[int, str, ast.expr]]:
    """Line, kind and data of every event that a module sends, or yields for another module to send."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and len(node.args) == 2:
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            pair = node.args if name in ("send", "_send", "apply") else []
        elif isinstance(node, ast.Yield) and isinstance(node.value, ast.Tuple):
            pair = node.value.elts
        else:
            continue
        if len(pair) == 2 and isinstance(pair[0], ast.Constant) and isinstance(pair[0].value, str):
            yield pair[0].lineno, pair[0].value, pair[1]


@cache
def events() -> list[tuple[str, str, ast.expr]]:
    """Place, kind and data of all that pipediag sends. Found when a test asks, as every process collects the tests."""
    return [
        (f"{path.relative_to(PACKAGE)}:{line}", kind, data)
        for path in sorted(PACKAGE.rglob("*.py"))
        for line, kind, data in sent(path)
    ]


def test_what_is_sent_fits_the_table() -> None:
    for place, kind, data in events():
        assert kind in KINDS, place
        if not isinstance(data, ast.Dict) or KINDS[kind].data is dict:
            continue
        fields = {field.name: field for field in dataclasses.fields(KINDS[kind].data)}
        names = {key.value for key in data.keys if isinstance(key, ast.Constant)}
        assert names <= {*fields}, place
        if None not in data.keys:  # none of it comes from another dict
            assert names >= {name for name, field in fields.items() if required(field)}, place


def required(field: dataclasses.Field[object]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def test_every_kind_is_sent() -> None:
    by_rung = {*REMEDIES.values()}  # a remedy is sent as the table of rungs says
    assert {kind for _, kind, _ in events()} | by_rung == {*KINDS}


def test_data_of_its_class() -> None:
    assert read("window", {"rung": "raw", "round": 2, "steps": 4, "seconds": 1, "later": 1}) == Window("raw", 2, 4, 1.0)
    assert read("rung", {"name": "raw"}) == Rung("raw")
    assert read("device", {"type": "cpu"}) == {"type": "cpu"}
    loader = {"ordinal": 1, "where": "train.py:3", "draws": 5, "credits": 4}
    assert read("ended", {"loaders": [loader]}) == Story([LoaderUse(1, "train.py:3", 5, 4)])
    assert read("invented-later", {"a": 1}) is None
    with pytest.raises(TypeError):
        read("progress", {"rung": "raw", "round": "first"})


@pytest.mark.parametrize("kind", [kind for kind, (_, enter) in KINDS.items() if enter is None])
def test_what_does_not_enter_a_session(kind: str) -> None:
    session = Session()
    session.apply(kind, {"a": 1})
    assert session == Session()
