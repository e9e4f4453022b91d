"""``python -m benchmarks.recipes``: measure each recipe's truth and pipediag's answer, one after another."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

from .. import common
from . import asking, data, pace, running, table, truth
from .catalogue import RECIPES, Place, Recipe

PARTS = ("truth", "analyse", "apply", "remedy")
_ROOT = Path(__file__).resolve().parent.parent.parent


def fetch(recipes: list[Recipe], sources: Path) -> None:
    """Clone each repository at its commit, with only the needed files."""
    for repository in sorted({recipe.repository for recipe in recipes}):
        own = [recipe for recipe in recipes if recipe.repository == repository]
        target = sources / repository
        if all((target / recipe.script).exists() for recipe in own):
            continue
        target.mkdir(parents=True, exist_ok=True)
        git = ["git", "-C", str(target)]
        subprocess.run([*git, "init", "-q"], check=True)
        url = f"https://github.com/{repository}"
        subprocess.run(
            [*git, "fetch", "-q", "--depth", "1", "--filter=blob:none", url, own[0].source.commit], check=True
        )
        subprocess.run([*git, "checkout", "-q", "FETCH_HEAD", "--", *own[0].source.files], check=True)


def one(recipe: Recipe, at: Place, args: argparse.Namespace, row: dict[str, Any]) -> None:
    """Measure the requested parts of a recipe into ``row``."""
    if "truth" in args.part:
        row["truth"] = truth.measure(recipe, at, args.seconds, args.limit)
    if "analyse" in args.part:
        keep = args.sessions and args.sessions / f"{recipe.name}.json"
        row["analyse"] = asking.ask(recipe, at, args.budget, tuple(args.options.split()), keep)
    if "apply" in args.part and recipe.loader:
        plan = str(pace.plan(recipe, at))
        keep = args.sessions and args.sessions / f"{recipe.name}-apply.json"
        row["apply"] = asking.ask(recipe, at, args.budget, (*args.options.split(), "--apply", "--plan", plan), keep)
    if "remedy" in args.part and recipe.loader:
        paces = row.setdefault("remedy", {})
        earlier = paces.get(str(at.workers), {})
        earlier = {key: value for key, value in earlier.items() if key.split(":")[0] not in args.forms}
        paces[str(at.workers)] = {**earlier, **pace.measure(recipe, at, args.forms, args.steps, args.limit)}
    row["load_average"] = os.getloadavg()[0]


def _portable(text: str, data: Path, sources: Path) -> str:
    """Return results without the paths of the machine."""
    places = {str(sources.resolve()): "SOURCES", str(data.resolve()): "DATA", f"{sysconfig.get_path('purelib')}/": ""}
    for path, name in {**places, f"{_ROOT}/": ""}.items():
        text = text.replace(path, name)
    return text


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(prog="python -m benchmarks.recipes", description=__doc__)
    parser.add_argument("--where", choices=("gpu", "cpu"), default="gpu" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", choices=[recipe.name for recipe in RECIPES])
    parser.add_argument("--part", nargs="+", choices=PARTS, default=PARTS[:3], help="default: all but remedy")
    parser.add_argument("--budget", type=float, default=120, help="seconds for each analysis")
    parser.add_argument("--options", default="--no-knobs", help="further options for the analysis")
    parser.add_argument("--seconds", type=float, default=20, help="seconds for each phase of the truth")
    parser.add_argument("--limit", type=float, default=300, help="maximum seconds for the truth of a recipe, or a pace")
    parser.add_argument("--forms", nargs="+", choices=pace.FORMS, default=list(pace.FORMS), help="of the remedy part")
    parser.add_argument("--steps", type=int, default=100, help="timed steps of each form of the remedy part")
    parser.add_argument("--until", type=float, help="start no recipe after this many seconds")
    parser.add_argument("--workers", type=int, help="default: 2 on a CPU, else one less than the cores, at most 15")
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "recipes-data")
    parser.add_argument("--sources", type=Path, default=_ROOT / ".recipes")
    parser.add_argument("--fetch", action="store_true", help="fetch the sources from GitHub and exit")
    parser.add_argument("--list", action="store_true", help="list the recipes and exit")
    parser.add_argument("--skip-done", action="store_true", help="keep the earlier file's rows that have the part")
    parser.add_argument("--sessions", type=Path, metavar="DIR", help="keep the session of each analysis here")
    parser.add_argument("-o", "--output", type=Path, help="default: results/recipes-DEVICE.json")
    parser.add_argument("--table", nargs="+", type=Path, metavar="FILE", help="print results and exit")
    args = parser.parse_args()
    if args.table:
        print(table.of_files(args.table))
        return
    recipes = [recipe for recipe in RECIPES if not args.only or recipe.name in args.only]
    if args.fetch:
        fetch(recipes, args.sources)
        return

    gpu = args.where == "gpu"
    workers = args.workers or (min(15, max(1, len(os.sched_getaffinity(0)) - 1)) if gpu else 2)
    places = {recipe.name: running.place(recipe, args.data, args.sources, gpu, workers) for recipe in recipes}
    if args.list:
        for recipe in recipes:
            line = " ".join(running.command(recipe, places[recipe.name]))
            reason = running.why_not(recipe, places[recipe.name])
            print(f"{recipe.name}: {recipe.repository} {recipe.source.commit[:12]}", f"({reason})" if reason else line)
        return
    runnable = [recipe for recipe in recipes if not running.why_not(recipe, places[recipe.name])]
    took = data.prepare(args.data, {kind for recipe in runnable for kind in recipe.data}, gpu)
    print("data:", took or "there already", flush=True)

    facts = {**common.circumstances(), "where": args.where, "workers": workers, "budget": args.budget}
    name = str(facts["device"]).lower().replace("nvidia", "").strip().replace(" ", "-")
    output = args.output or common.RESULTS / f"recipes-{name}.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    rows: dict[str, dict[str, Any]] = {}
    if output.exists():
        rows = {row["name"]: row for row in json.loads(output.read_text())["rows"]}
        for row in rows.values():  # by the current rules
            if row.get("truth", {}).get("phases"):
                row["truth"].update(truth.concluded(row["truth"]))
    began = time.monotonic()
    for recipe in recipes:
        at = places[recipe.name]
        row = rows.get(recipe.name, {})
        if args.skip_done and all(part in row for part in args.part):
            continue
        if args.until is not None and time.monotonic() - began > args.until:
            print("no time left for", recipe.name, flush=True)
            continue
        kept = {key: value for key, value in row.items() if key != "skipped"}
        row = {**kept, "name": recipe.name, "repository": recipe.repository, "commit": recipe.source.commit}
        row["arguments"] = [a.replace(str(at.data), "DATA") for a in recipe.arguments(at)]
        reason = running.why_not(recipe, at)
        if reason:
            row["skipped"] = reason
        else:
            one(recipe, at, args, row)
        rows[recipe.name] = row
        text = json.dumps({**facts, "rows": list(rows.values())}, indent=1) + "\n"
        output.write_text(_portable(text, args.data, args.sources))
        print(table.line(row), flush=True)
    data.forget(args.data)


if __name__ == "__main__":
    main()
