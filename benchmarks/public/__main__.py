"""``python -m benchmarks.public``: each script's truth, pipediag's answer, and the truth again, one after another."""

from __future__ import annotations

import argparse
import json
import os
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from .. import common
from ..recipes import running
from ..recipes.__main__ import fetch
from . import advice, asking, data, porting, table, truth
from .catalogue import SCRIPTS
from .kinds import Script

_ROOT = Path(__file__).resolve().parent.parent.parent


def one(script: Script, args: argparse.Namespace, row: dict[str, Any]) -> None:
    """Measure one script into ``row``."""
    at = porting.place(script, args.data, args.workers)
    porting.copy(script, args.sources, at.repository)
    if not args.advice:
        keep = args.sessions and args.sessions / f"{script.name}.json"
        row["truth"] = truth.measure(script, at, args.seconds, args.limit)
        row["analyse"] = asking.ask(script, at, args.budget, tuple(args.options.split()), keep)
        row["truth_after"] = truth.measure(script, at, args.seconds, args.limit, profiled=False, turns=2)
    elif (row.get("analyse") or {}).get("advice"):
        given = row["analyse"]["advice"]
        row["advice"] = advice.measure(script, given, args.sources, args.data, args.workers, args.seconds, args.limit)
    row["load_average"] = os.getloadavg()[0]


def _portable(text: str, args: argparse.Namespace) -> str:
    """Return results without the paths of the machine."""
    places = {str(args.data.resolve()): "DATA", str(args.sources.resolve()): "SOURCES", f"{_ROOT}/": ""}
    places[f"{sysconfig.get_path('purelib')}/"] = ""
    for path, name in places.items():
        text = text.replace(path, name)
    return text


def why_not(script: Script, args: argparse.Namespace) -> str:
    """Return why the script cannot run here; empty if it can."""
    files = [script.source.files[0]]
    if not all((args.sources / script.repository / name).exists() for name in files):
        return f"no sources in {args.sources / script.repository}; --fetch brings them"
    missing = running.missing(script)
    return f"needs {', '.join(missing)}" if missing else ""


def main() -> None:
    names = [script.name for script in SCRIPTS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.public", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all of {', '.join(names)}")
    parser.add_argument("--budget", type=float, default=60, help="seconds for each analysis")
    parser.add_argument("--options", default="", help="further options for the analysis")
    parser.add_argument("--advice", action="store_true", help="apply the first advice of the rows in --out natively")
    parser.add_argument("--seconds", type=float, default=8, help="seconds for each phase of the truth")
    parser.add_argument("--limit", type=float, default=300, help="maximum seconds for one run of a truth")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "public-data")
    parser.add_argument("--sources", type=Path, default=_ROOT / ".recipes")
    parser.add_argument("--sessions", type=Path, metavar="DIR", help="keep the session of each analysis here")
    parser.add_argument("--out", type=Path, default=common.RESULTS / "public-cpu.json")
    parser.add_argument("--fetch", action="store_true", help="fetch the sources from GitHub and exit")
    parser.add_argument("--list", action="store_true", help="list the scripts with their ports and exit")
    parser.add_argument("--again", action="store_true", help="let this version analyse the kept sessions, and exit")
    parser.add_argument("--table", action="store_true", help="print the table of --out and exit")
    args = parser.parse_args()
    if args.again and args.sessions is None:
        parser.error("--again needs --sessions")
    unknown = [name for name in args.names if name not in names]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}")
    scripts = [script for script in SCRIPTS if not args.names or script.name in args.names]
    if args.fetch:
        fetch(list(scripts), args.sources)
        return
    if args.list:
        for script in scripts:
            port = f"; smaller: {script.small}" if script.small else ""
            print(
                f"{script.name}: {script.kind}; {script.repository} {script.source.commit[:12]} {script.script}{port}"
            )
        return

    kept = json.loads(args.out.read_text()) if args.out.exists() else {"rows": []}
    rows: dict[str, dict[str, Any]] = {row["name"]: row for row in kept["rows"]}
    if args.again:
        for name, row in rows.items():
            session = args.sessions / f"{name}.json"
            if session.exists():
                row["again"] = asking.said(session)
        args.out.write_text(_portable(json.dumps(kept, indent=1) + "\n", args))
    elif not args.table:
        facts = {**common.circumstances(), "budget": args.budget, "workers": args.workers}
        for script in scripts:
            row = {**rows.get(script.name, {}), "name": script.name, "kind": script.kind}
            row.update(repository=script.repository, commit=script.source.commit, small=script.small)
            reason = why_not(script, args)
            if reason:
                print(f"{script.name}: skipped, {reason}", flush=True)
                continue
            data.prepare(args.data, script.data)
            one(script, args, row)
            rows[script.name] = row
            ordered = [rows[name] for name in names if name in rows]
            args.out.parent.mkdir(parents=True, exist_ok=True)
            args.out.write_text(_portable(json.dumps({**facts, "rows": ordered}, indent=1) + "\n", args))
            print(" | ".join(table.cells(row)), flush=True)
    print(table.markdown([rows[name] for name in names if name in rows]))


if __name__ == "__main__":
    main()
