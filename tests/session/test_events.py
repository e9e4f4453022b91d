"""The table of events, and every event that our own code sends: its kind and its data are those of the table."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

import pipediag
from pipediag.session import REMEDIES, Rung, Session, Window
from pipediag.session.events import KINDS, LoaderUse, Story, read

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


EVENTS = [
    pytest.param(kind, data, id=f"{path.relative_to(PACKAGE)}:{line}")
    for path in sorted(PACKAGE.rglob("*.py"))
    for line, kind, data in sent(path)
]


@pytest.mark.parametrize(("kind", "data"), EVENTS)
def test_what_is_sent_fits_the_table(kind: str, data: ast.expr) -> None:
    assert kind in KINDS
    if not isinstance(data, ast.Dict) or KINDS[kind].data is dict:
        return
    fields = {field.name: field for field in dataclasses.fields(KINDS[kind].data)}
    names = {key.value for key in data.keys if isinstance(key, ast.Constant)}
    assert names <= {*fields}
    if None not in data.keys:  # none of it comes from another dict
        assert names >= {name for name, field in fields.items() if required(field)}


def required(field: dataclasses.Field[object]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def test_every_kind_is_sent() -> None:
    by_rung = {*REMEDIES.values()}  # a remedy is sent as the table of rungs says
    assert {parameter.values[0] for parameter in EVENTS} | by_rung == {*KINDS}


def test_data_of_its_class() -> None:
    assert read("window", {"rung": "raw", "round": 2, "steps": 4, "seconds": 1, "later": 1}) == Window("raw", 2, 4, 1.0)
    assert read("rung", {"name": "raw"}) == Rung("raw")
    assert read("device", {"type": "cpu"}) == {"type": "cpu"}
    loader = {"ordinal": 1, "where": "train.py:3", "draws": 5, "credits": 4}
    assert read("ended", {"loaders": [loader]}) == Story([LoaderUse(1, "train.py:3", 5, 4)])


def test_a_kind_of_another_version_is_ignored() -> None:
    assert read("invented-later", {"a": 1}) is None


@pytest.mark.parametrize("kind", [kind for kind, (_, enter) in KINDS.items() if enter is None])
def test_what_does_not_enter_a_session(kind: str) -> None:
    session = Session()
    session.apply(kind, {"a": 1})
    assert session == Session()


def test_data_of_another_class() -> None:
    with pytest.raises(TypeError):
        read("progress", {"rung": "raw", "round": "first"})
