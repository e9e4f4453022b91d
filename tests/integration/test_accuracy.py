"""The planted suite's fast cases: the verdict and the culprit, through the command line, on generated scripts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest

from .sandbox import REPO, Analysis, Sandbox

sys.path.insert(0, str(REPO))  # the benchmarks are no installed package

from benchmarks.accuracy import scripts, suite
from benchmarks.accuracy.cases import CPU, Case
from benchmarks.accuracy.score import RIGHT, UNASKED, score

FAST = {case.name: case for case in CPU if case.fast}
STARVED = [name for name, case in FAST.items() if case.label != "none"]
#: Their margins are percents of a step: nothing else may run beside them.
ALONE = [name for name, case in FAST.items() if case.label == "none"]


def write(case: Case, folder: Path) -> str:
    """Put the case's script into ``folder`` and return it."""
    source = scripts.write(case)
    (folder / suite.SCRIPT).write_text(source)
    return source


def check(case: Case, source: str, done: Analysis) -> None:
    """The verdict is right, and so are the culprit's name and line."""
    record = {**suite.begin_record(case, source), "truth": None, "report": suite.shorten(done.json)}
    scored = score(record)
    assert scored.verdict_right, f"{scored.verdict}, not {scored.expected}\n{done.stdout}"
    asked = any(plant["names"] for plant in record["plants"]) and case.label != "none"
    assert scored.culprit == (RIGHT if asked else UNASKED), f"{done.json['verdict']['culprit']}\n{done.stdout}"


@pytest.fixture(scope="module")
def results(
    side_by_side: Callable[..., Future[Analysis]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[str, Future[Analysis]]]:
    begun = {}
    for name in STARVED:
        folder = tmp_path_factory.mktemp(name)
        source = write(FAST[name], folder)
        begun[name] = source, side_by_side(suite.SCRIPT, budget=12, cwd=folder)
    return begun


@pytest.mark.slow
@pytest.mark.parametrize("name", STARVED)
def test_the_plant_is_found(results: dict[str, tuple[str, Future[Analysis]]], name: str) -> None:
    source, future = results[name]
    check(FAST[name], source, future.result())


@pytest.mark.slow
@pytest.mark.parametrize("name", ALONE)
def test_nothing_is_found_where_nothing_starves(sandbox: Sandbox, name: str) -> None:
    source = write(FAST[name], sandbox.cwd)
    check(FAST[name], source, sandbox.analyze(suite.SCRIPT, budget=18, cwd=sandbox.cwd))


def test_the_suite_covers_every_verdict() -> None:
    assert len(CPU) >= 64 and len(FAST) >= 12
    assert len({case.name for case in CPU}) == len(CPU)
    assert {case.label for case in CPU} >= {"none", "ipc", "collate", "transform", "load", "storage"}
    assert {case.label for case in CPU} >= {"startup", "contention"}


@pytest.mark.parametrize("case", CPU, ids=lambda case: case.name)
def test_the_script_knows_nothing_of_pipediag(case: Case) -> None:
    source = scripts.write(case)
    assert "pipediag" not in source
    compile(source, case.name, "exec")
    for plant in case.planted:
        site = scripts.site(case, plant, source)
        assert site is None or site.lines, "the planted code stands in the script"
