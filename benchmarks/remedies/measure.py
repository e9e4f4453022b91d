"""Measure one case: analyse it, then train with and without the remedy, with its raw loader for comparison."""

from __future__ import annotations

import ast
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..common import ENVIRONMENT
from .cases import Case
from .clock import PAGEABLE, PINNED, RAW
from .patching import DoesNotApply, applied
from .rows import RAW_FORMS, Row, of_analysis, of_bounds, of_training
from .turns import Form, Taken, take

PIPEDIAG = (sys.executable, "-m", "pipediag")
#: The import that is inserted into the copy of a script; without the benchmark's pipe it does nothing.
CLOCK = "import benchmarks.remedies.clock\n"
#: Maximum seconds of an analysis beyond its budgets: an example may write its data first.
_PATIENCE = 150.0
#: Remaining seconds below which no part of a case begins.
_LEAST = 15.0
#: Lines of standard error kept from a failed analysis.
_LAST_LINES = 3
#: Rounds without a plan: the plain script is the answer, and the other form only shows the alternative.
FEWER = 3


@dataclass(frozen=True)
class Settings:
    """The settings of all measurements.

    Attributes:
        rounds: windows of each form; at most :data:`FEWER` in a case without a plan.
        budget, apply_budget: seconds instead of the cases' own; None for those.
        until: end of the measurements, on the monotonic clock.
        environment: variables in addition to the process's own.
        memories: kinds of memory to try for the raw loader's batches.
        training: True to train as well, False for the analysis alone.
    """

    rounds: int
    budget: float | None
    apply_budget: float | None
    until: float
    environment: Mapping[str, str] = field(default_factory=dict)
    memories: Sequence[str] = (PAGEABLE, PINNED)
    training: bool = True

    def expected_s(self, case: Case) -> float:
        """Return about how long a case takes; it begins only if more time is left."""
        analysis = (self.budget or case.budget) + (self.apply_budget or case.apply_budget) + 15
        if not self.training:
            return analysis
        forms = 3 + (len(self.memories) if case.part == "examples" else 0)
        return analysis + 15 + forms * self.rounds * 1.5 * case.seconds


@dataclass(frozen=True)
class Analysis:
    """The results of ``pipediag analyze --apply``: its report, the plan's file if there is one, and the error."""

    report: dict[str, Any] | None
    plan: Path | None
    error: str
    seconds: float


def measure(case: Case, folder: Path, settings: Settings) -> Row:
    """Return the row of a case; ``folder`` is empty."""
    began = time.monotonic()
    copy = with_clock(case.script, folder)
    analysis = analyse(case, copy, folder, settings)
    row: Row = {"case": case.name, "script": case.script.name, "arguments": " ".join(case.arguments)}
    row["analysis_s"], row["error"] = round(analysis.seconds, 1), analysis.error
    row |= of_analysis(analysis.report)
    forms, row["why_no_patch"] = forms_of(case, copy, analysis, folder, settings.environment)
    if case.part == "examples" and row.get("moved"):
        forms += raw_forms(case, copy, settings)
    taken = Taken()
    if settings.training and time.monotonic() + _LEAST < settings.until:
        rounds = settings.rounds if analysis.plan else min(FEWER, settings.rounds)
        taken = take(forms, folder, case.workers, case.seconds, rounds, settings.until)
    row |= of_training(taken, planned=analysis.plan is not None)
    row |= of_bounds(row)
    row["took_s"] = round(time.monotonic() - began, 1)
    return row


def with_clock(script: Path, folder: Path) -> Path:
    """Return a copy of a script that imports the clock after its ``__future__`` imports."""
    source = script.read_text()
    place = 0
    for number, node in enumerate(ast.parse(source).body):
        docstring = number == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not docstring and not (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
            break
        place = node.end_lineno or node.lineno
    lines = source.splitlines(keepends=True)
    copy = folder / script.name
    copy.write_text("".join([*lines[:place], CLOCK, *lines[place:]]))
    return copy


def analyse(case: Case, copy: Path, folder: Path, settings: Settings) -> Analysis:
    """Run ``pipediag analyze --apply --plan`` on the copy."""
    report, plan = folder / "report.json", folder / "plan.json"
    budget, apply_budget = settings.budget or case.budget, settings.apply_budget or case.apply_budget
    options = ["--budget", str(budget), "--no-knobs", "--apply", "--apply-budget", str(apply_budget)]
    options += ["--plan", str(plan), "-o", str(report)]
    command = [*PIPEDIAG, "analyze", *options, copy.name, *case.arguments]
    began = time.monotonic()
    patience = min(budget + apply_budget + _PATIENCE, max(1.0, settings.until - began))
    code, errors = _run(command, folder, patience, settings.environment)
    error = "" if code == 0 else f"analyze: {'timed out' if code is None else f'exit code {code}'}: {errors}"
    found = json.loads(report.read_text()) if report.exists() else None
    return Analysis(found, plan if plan.exists() else None, error, time.monotonic() - began)


def _run(
    command: Sequence[str], folder: Path, patience: float, environment: Mapping[str, str]
) -> tuple[int | None, str]:
    """Run a command and end all its processes; return the exit code (None on a timeout) and standard error."""
    log = folder / "analyze.err"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command,
            env={**ENVIRONMENT, **environment},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
        code: int | None = None
        try:
            code = process.wait(patience)
        except subprocess.TimeoutExpired:
            pass
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
    said = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    return code, " | ".join(line for line in said[-_LAST_LINES:] if line)


def forms_of(
    case: Case, copy: Path, analysis: Analysis, folder: Path, environment: Mapping[str, str]
) -> tuple[list[Form], str]:
    """Return the forms of the training, and why the printed change is not among them.

    ``plain`` runs twice, the second time only for its losses: differences there are not due to pipediag. ``run`` uses
    the plan. If there is no plan, the plan's answer is the plain script, and ``run`` is ``pipediag run`` without a
    plan.
    """
    script = [str(copy), *case.arguments]
    planned = ["--plan", str(analysis.plan)] if analysis.plan else []
    forms = [
        Form("plain", [sys.executable, *script], environment=environment),
        Form("again", [sys.executable, *script], timed=False, environment=environment),
        Form("run", [*PIPEDIAG, "run", *planned, *script], environment=environment),
    ]
    remedy = (analysis.report or {}).get("remedy") or {}
    if not remedy.get("applied"):
        return forms, "the remedy was not applied"
    diff = remedy["how"]["diff"]
    if not diff:
        return forms, str(remedy["how"]["why_no_diff"])
    try:
        changed = applied(diff, copy.read_text())
    except DoesNotApply as why:
        return forms, f"the diff does not apply: {why}"
    patched = folder / "patched"
    patched.mkdir()
    (patched / copy.name).write_text(changed)
    command = [sys.executable, str(patched / copy.name), *case.arguments]
    forms.append(Form("patched", command, environment=environment))
    return forms, ""


def raw_forms(case: Case, copy: Path, settings: Settings) -> list[Form]:
    """Return the script's loader without the moved transforms, timed alone in turn with the training it limits."""
    script = (sys.executable, str(copy), *case.arguments)
    return [
        Form(RAW_FORMS[memory], script, environment={**settings.environment, RAW: memory})
        for memory in settings.memories
    ]


def scratch(folder: Path) -> None:
    """Empty a folder, or make it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
