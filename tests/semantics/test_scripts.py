"""Invented and kept scripts: under pipediag their loops see what they see without it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.semantics.results import read

pytest.importorskip("torchvision")

REPO = Path(__file__).resolve().parents[2]
KEPT = Path(__file__).with_name("kept")
NAMES = sorted(path.stem for path in KEPT.glob("*.py"))
#: One kept script for each way in which a training was changed; the others are slow tests.
QUICK = {
    "attribute_inside", "calls_counted", "helper_edited", "late_noise", "lifetimes", "method_of_the_users",
    "samples_seen", "transform_set", "view_written",
}  # fmt: skip
#: How many scripts are invented for the quick tests, and for the slow ones.
FEW, MANY = 16, 60
#: Seconds for one call of the suite, on a machine with other work.
PATIENCE = 900
Results = dict[str, dict[str, Any]]


def results_of(folder: Path, *arguments: str) -> Results:
    """Run the suite in a process of its own, from which scripts are forked."""
    command = [sys.executable, "-m", "benchmarks.semantics", "--processes", "3", "-o", str(folder)]
    ran = subprocess.run([*command, *arguments], cwd=REPO, timeout=PATIENCE, capture_output=True, text=True)
    found = {row["name"]: row for row in read(folder / "results.jsonl")}
    assert found, ran.stderr
    return found


def _invents(item: pytest.Item) -> bool:
    return getattr(item, "originalname", "") == "test_invented"


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Run what the chosen tests ask for in one call, so that no core waits for another one's last script."""
    chosen = [item for item in request.session.items if getattr(item, "originalname", "") == "test_kept"]
    names = [item.callspec.params["name"] for item in chosen]  # type: ignore[attr-defined]
    kept = ["--kept", str(KEPT), "--names", *names] if names else []
    counts = [item.callspec.params["count"] for item in request.session.items if _invents(item)]  # type: ignore[attr-defined]
    invented = ["--scripts", str(max(counts, default=0)), "--ways", "either", "--again", "0.1"]
    return results_of(tmp_path_factory.mktemp("semantics"), *kept, *invented)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
)
def test_kept(results: Results, name: str) -> None:
    assert results[name]["difference"] == ""


def test_quick_names_are_kept_ones() -> None:
    assert {*NAMES} >= QUICK


@pytest.mark.parametrize("name", NAMES)
def test_a_kept_script_says_what_it_guards(name: str) -> None:
    said = ast.get_docstring(ast.parse((KEPT / f"{name}.py").read_text()))
    assert said and said.endswith(".") and "\n" not in said


@pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
def test_invented(results: Results, count: int) -> None:
    """A tenth of them run plainly twice too, and print the same."""
    found = {name: one for name, one in results.items() if name.isdigit() and int(name) < count}
    assert len(found) == count
    assert {name: one["difference"] for name, one in found.items() if one["difference"]} == {}
    acted = [one["acted"] for one in found.values()]
    library = [one for one in acted if "library" in one]
    assert 2 * sum("moved" in one for one in library) >= len(library) and any("kept" in one for one in acted)


@pytest.mark.slow
def test_a_plan_comes_where_a_script_waits_for_its_data(tmp_path: Path) -> None:
    """``analyze --apply --plan`` writes one, and ``run --plan`` trains as the script does."""
    found = results_of(tmp_path, "--kept", str(KEPT), "--names", "pays", "--ways", "analyze")["pays"]
    assert found["difference"] == "" and {"planned", "kept"} <= {*found["acted"]}
