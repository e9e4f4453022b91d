"""Give the planted cases to every tool, mark the answers, and write them as JSON and Markdown tables."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pipediag
from benchmarks.accuracy import cases, scripts
from benchmarks.accuracy.cases import Case
from benchmarks.common import RESULTS, load, save

from . import edits, environment, table
from .reading import mark
from .tools import TOOLS, Settings, diagnose


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rivals", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="CASE", help="run these cases instead of the fast ones")
    parser.add_argument("--tools", nargs="+", choices=list(TOOLS), default=list(TOOLS))
    parser.add_argument("--seconds", type=float, default=15.0, help="seconds of training under the other tools")
    parser.add_argument("--budget", type=float, default=45.0, help="seconds of pipediag's analysis")
    parser.add_argument("--python", help="an interpreter with the other tools and torch")
    parser.add_argument("--venv", type=Path, help="folder of their environment (default: a cache folder)")
    parser.add_argument("--wheels", type=Path, help="folder to install them from, without the network")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--show", type=Path, metavar="JSON", help="only print the tables of an earlier result")
    args = parser.parse_args()
    if args.show:
        _show(json.loads(args.show.read_text()))
        return

    import torch

    chosen = _chosen(args.only, torch.cuda.is_available())
    others = any(TOOLS[tool].distribution for tool in args.tools)
    python = args.python or (environment.interpreter(args.venv, args.wheels) if others else "")
    installed = environment.versions(python) if python else {}
    settings = Settings(args.seconds, args.budget, python, gpu=False)
    # Cases or tools left out now keep the results of an earlier run on this device.
    result = {"rows": [], "versions": {}, **load("rivals", args.out)}
    result |= {"seconds": args.seconds, "budget": args.budget}
    for case in chosen:
        for tool in args.tools:
            row = _row(case, tool, settings)
            print(json.dumps(row, ensure_ascii=False), flush=True)
            result["rows"] = [r for r in result["rows"] if (r["case"], r["tool"]) != (case.name, tool)] + [row]
            distribution = TOOLS[tool].distribution
            result["versions"][tool] = installed.get(distribution, "") if distribution else pipediag.__version__
            written = save("rivals", result, args.out)
    print("written", written)
    _show(result)


def _chosen(names: list[str] | None, gpu: bool) -> list[Case]:
    """Return the fast cases, plus the GPU's cases on a GPU; or the named ones."""
    every: Iterable[Case] = (*cases.CPU, *cases.GPU)
    if not names:
        return [case for case in every if case.fast or (gpu and case.gpu)]
    known = {case.name: case for case in every}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"no such case: {', '.join(unknown)}")
    return [known[name] for name in names]


def _row(case: Case, tool: str, settings: Settings) -> dict[str, Any]:
    source = edits.bring_compute_into_model(scripts.write(case))
    answer, edited = diagnose(TOOLS[tool], source, replace(settings, gpu=bool(case.gpu)))
    ended = edits.end_after(source, settings.seconds)
    right, costly = _right(case)
    sites = [scripts.site(case, plant, ended) for plant in costly]
    lines = sorted({line for found in sites if found for line in found.lines})
    library = "torchvision" if any(plant.kind == "blur" for plant in costly) else ""
    return {
        "case": case.name,
        "tool": tool,
        "how": TOOLS[tool].how,
        "right": right,
        "lines": lines,
        "exit_code": answer.exit_code,
        "took_s": answer.took_s,
        "added": edited.added,
        "indented": edited.indented,
        "words": answer.reading.words,
        "classes": list(answer.reading.classes),
        "code": list(answer.reading.code),
        "marks": asdict(mark(answer.reading, right, lines, library)),
    }


def _right(case: Case) -> tuple[list[str], list[cases.Plant]]:
    """Return the correct verdict classes, and the plants that cost something.

    Any of several plants may be named: which one costs more is the accuracy benchmark's question.
    """
    costly = [plant for plant in case.planted if not plant.hidden and case.label != "none"]
    return list(dict.fromkeys([case.label, *case.accepts, *(plant.stage for plant in costly)])), costly


def _show(result: dict[str, Any]) -> None:
    print(f"\n{table.overall(result)}\n\n{table.by_case(result)}")


if __name__ == "__main__":
    main()
