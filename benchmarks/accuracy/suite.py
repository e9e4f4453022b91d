"""Run cases: write the script, analyse it through the command line, measure its truth, and record the result."""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from . import scripts, truth
from .cases import Case
from .score import score

#: Maximum seconds of an analysis beyond its budget: to start, to import, to end its workers.
PATIENCE = 90.0
SCRIPT = "train.py"
#: The parts of a report that are kept.
OF_VERDICT = ("bottleneck", "level", "culprit", "starved", "band", "co_bottlenecks", "sentence")
OF_PIECE = ("stage", "culprit", "covers", "ms", "share")


@dataclass(frozen=True)
class Options:
    budget: float
    repeats: int
    keep: Path | None
    environment: Mapping[str, str]


def environment(base: Mapping[str, str]) -> dict[str, str]:
    """Limit each process to one thread unless the script sets more: a slot has two cores."""
    return {**base, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def run(cases: Sequence[Case], options: Options, slots: int, done: Callable[[dict[str, Any]], None]) -> None:
    """Run the cases, ``slots`` at once with two cores each; call ``done`` with every finished record."""
    pairs: queue.SimpleQueue[set[int]] = queue.SimpleQueue()
    for pair in core_pairs(slots):
        pairs.put(pair)
    with ThreadPoolExecutor(slots, initializer=lambda: _pin(pairs.get())) as pool:
        try:
            for future in as_completed([pool.submit(run_case, case, options) for case in cases]):
                done(future.result())
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def core_pairs(slots: int) -> list[set[int]]:
    """Return two cores for each slot; a single slot takes whatever cores there are.

    Raises:
        ValueError: there are too few cores.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    cores = sorted(affinity(0)) if affinity else list(range(os.cpu_count() or 1))
    if slots > 1 and len(cores) < 2 * slots:
        raise ValueError(f"{slots} slots need {2 * slots} cores; there are {len(cores)}")
    return [set(cores[2 * slot : 2 * slot + 2]) for slot in range(slots)]


def _pin(cores: set[int]) -> None:
    """Bind this thread, and every process that it starts, to these cores."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def run_case(case: Case, options: Options) -> dict[str, Any]:
    """Run one case and return its record, with its score."""
    with _folder(case, options.keep) as folder:
        source = scripts.write(case)
        (folder / SCRIPT).write_text(source)
        began = time.monotonic()
        report, error = analyse(folder, options.budget, options.environment) if options.budget else (None, "")
        analysed = time.monotonic() - began
        measured = None
        if options.repeats:
            try:
                measured = truth.measure(case, folder, options.environment, options.repeats).to_dict()
            except (RuntimeError, subprocess.TimeoutExpired) as trouble:
                error = f"{error} native: {trouble}".strip()
        record: dict[str, Any] = {
            **begin_record(case, source),
            "truth": _rounded(measured),
            "report": report,
            "error": error,
            "seconds_analysis": round(analysed, 1),
            "seconds_native": round(time.monotonic() - began - analysed, 1),
        }
    record["score"] = _rounded(score(record).to_dict())
    return record


def begin_record(case: Case, source: str) -> dict[str, Any]:
    """Return what is known before a case runs: its label, its plants, and their lines in the script."""
    plants = []
    for plant in case.planted:
        site = scripts.site(case, plant, source)
        plants.append(
            {
                **dataclasses.asdict(plant),
                "key": plant.key,
                "names": list(site.names) if site else [],
                "lines": sorted(site.lines) if site else [],
                "library": plant.kind == "blur",
            }
        )
    return {"name": case.name, "label": case.label, "accepts": list(case.accepts), "plants": plants}


def analyse(folder: Path, budget: float, environment: Mapping[str, str]) -> tuple[dict[str, Any] | None, str]:
    """Return the relevant parts of pipediag's report on the script in ``folder``, and the error, if any."""
    out = folder / "report.json"
    command = [sys.executable, "-m", "pipediag", "analyze", "--budget", str(budget), "-o", out.name, SCRIPT]
    try:
        done = subprocess.run(
            command, cwd=folder, env=dict(environment), capture_output=True, text=True, timeout=budget + PATIENCE
        )
    except subprocess.TimeoutExpired:
        return None, f"the analysis took longer than {budget + PATIENCE:.0f} s"
    if not out.exists():
        return None, f"exit code {done.returncode}: {done.stderr[-600:]}"
    return shorten(json.loads(out.read_text())), "" if done.returncode == 0 else f"exit code {done.returncode}"


def shorten(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a report that are scored, and those that explain a wrong score."""
    rungs = {r["name"]: r["ms_per_step"] or r["why_not"] for r in report["rungs"]}
    return {
        "tool_version": report["tool"]["version"],
        "verdict": {key: report["verdict"].get(key) for key in OF_VERDICT},
        "waterfall": [{key: piece.get(key) for key in OF_PIECE} for piece in report["waterfall"]],
        "rungs": rungs,
        "warnings": [w["code"] for w in report["warnings"]],
        "partial": report["partial"],
    }


@contextmanager
def _folder(case: Case, keep: Path | None) -> Iterator[Path]:
    if keep is None:
        with TemporaryDirectory(prefix="accuracy-") as made:
            yield Path(made)
    else:
        folder = keep / case.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "report.json").unlink(missing_ok=True)
        yield folder


def _rounded(value: Any) -> Any:
    """Return plain data with fewer digits: the rest is noise."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return value
