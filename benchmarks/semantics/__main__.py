"""Invent training scripts, and check that pipediag leaves what their loops see as it is.

python -m benchmarks.semantics --scripts 1000 --seed 0        # about 8 s a script and core
python -m benchmarks.semantics --scripts 1000 --seed 0 --processes 16 --time 480 -o out   # begin none after 480 s
python -m benchmarks.semantics --summary out/results.jsonl    # after a call that was killed, or of several calls
python -m benchmarks.semantics --first --seed 0               # stop at a difference, and make its script plainer
python -m benchmarks.semantics --only 17 --seed 0             # one script, with all that pipediag said
python -m benchmarks.semantics --kept tests/semantics/kept    # scripts from files
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from .choosing import has, invent, shrunk, size, traits
from .compose import compose
from .parts import FILES, HEAVY
from .record import files
from .results import Row, read, row_of, summary, write
from .running import scheduled
from .stages import Parts
from .ways import WAYS, Result, compared, takes_part

#: Share of the scripts that are analysed too: that takes 25 s.
_PLANNED = 0.03
#: The file of results in the folder for output: a line of JSON for each script.
RESULTS = "results.jsonl"
#: What a script calls to read what can be kept.
_READS = re.compile(r"files\(|np\.load\(|helper\.load\(")
#: What a kept script says of itself if it needs a fresh interpreter.
_BY_COMMAND = "(by the command line)"


class Suite:
    """The scripts of one call, their folders, and how they are run."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self._args, self._folder = args, folder
        self._data = folder / "data"
        for kind in (*FILES, HEAVY):
            files(kind, str(self._data))

    def runs(self, name: str, text: str, number: int | None = None) -> Any:
        """Return the runs of a script, which :func:`scheduled` carries out."""
        args, shell = self._args, _BY_COMMAND in text
        reads = number is None or bool(_READS.search(text))  # kept scripts also show that nothing else is kept
        ways = [("cache" if reads else "run") if way == "either" else way for way in args.ways]
        if number is not None:
            shell = takes_part(args.seed, number, args.shell, "shell")
            if f"files('{HEAVY}')" not in text and not takes_part(args.seed, number, args.planned, "analyze"):
                ways = [way for way in ways if way != "analyze"]
            ways = [way for way in ways if reads or way != "cache"]
            ways += ["plain"] if takes_part(args.seed, number, args.again, "again") else []
        folder = self._folder / name
        shutil.rmtree(folder, ignore_errors=True)
        patience = args.patience * (2 if shell or "'spawn'" in text else 1)  # each process imports torch anew
        return compared(name, text, folder, self._data, ways, shell, patience, args.ignore)

    def one(self, name: str, text: str) -> Result:
        """Run one script to its end."""
        result: Result = next(scheduled(iter([self.runs(name, text)]), 1))
        self.clear(name)
        return result

    def keep(self, name: str, folder: Path) -> None:
        """Keep what the runs of a script wrote to the terminal."""
        for file in sorted(self._folder.glob(f"{name}/*/std*")):
            shutil.copy(file, folder / f"{name}-{file.parent.name}.{file.name}")

    def clear(self, name: str) -> None:
        shutil.rmtree(self._folder / name, ignore_errors=True)


def main() -> int:
    args = _arguments()
    if args.summary:
        print(summary(row for path in args.summary for row in read(path)))
        return 0
    out = Path(args.output or tempfile.mkdtemp(prefix="semantics-"))
    out.mkdir(parents=True, exist_ok=True)
    invented = ((n, invent(args.seed, n, args.without)) for n in args.only or itertools.count())
    chosen = ((n, one) for n, one in invented if args.only or not args.having or has(one, args.having))
    parts = {f"{n:04d}": one for n, one in itertools.islice(chosen, len(args.only or ()) or args.scripts)}
    print(f"seed {args.seed}, {', '.join(args.ways)}; results and differing scripts go to {out}", flush=True)
    rows: list[Row] = []
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with _folder_for_runs() as folder, open(out / RESULTS, "w") as file:
            suite = Suite(args, folder)
            for result in scheduled(_waiting(args, suite, parts), args.processes):
                result.acted |= traits(parts[result.name]) if result.name in parts else set()
                rows.append(row_of(result))
                write(rows[-1], file)
                _show(args, suite, result, out)
                if args.first and result.difference and result.name in parts:
                    _show_shrunk(suite, parts[result.name], out)
                    break
    except KeyboardInterrupt:
        print("interrupted; what was running is left out", flush=True)
    print(summary(rows), flush=True)
    return int(any(row["difference"] for row in rows))


@contextmanager
def _folder_for_runs() -> Iterator[Path]:
    """Yield a folder for this process; those forked from it do not remove it when they end."""
    folder = Path(tempfile.mkdtemp(prefix="semantics-runs-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _interrupt(number: int, frame: Any) -> NoReturn:
    raise KeyboardInterrupt


def _waiting(args: argparse.Namespace, suite: Suite, parts: dict[str, Parts]) -> Iterator[Any]:
    """Yield the runs of each kept script, then those of invented ones until the time is over."""
    began = time.monotonic()
    for path in sorted(args.kept.glob("*.py")) if args.kept else ():
        if not args.names or path.stem in args.names:
            yield suite.runs(path.stem, path.read_text())
    for name, one in parts.items():
        if time.monotonic() - began > args.time:
            return
        yield suite.runs(name, compose(one), int(name))


def _show(args: argparse.Namespace, suite: Suite, result: Result, out: Path) -> None:
    """Show a difference, and keep its script with what its runs wrote."""
    if args.only:
        print("\n".join(f"{way}: {line}" for way, lines in result.said.items() for line in lines), flush=True)
    if result.difference:
        (out / f"{result.name}.py").write_text(result.text)
        suite.keep(result.name, out)
        print(f"{result.name}  {result.difference}", flush=True)
    suite.clear(result.name)


def _show_shrunk(suite: Suite, parts: Parts, out: Path) -> None:
    """Make a script plainer as long as it differs, and show it."""

    def fails(plainer: Parts) -> bool:
        result = suite.one("shrunk", compose(plainer))
        print(f"  size {size(plainer)}: {result.difference or 'no difference'}", flush=True)
        return bool(result.difference)

    plainest = shrunk(parts, fails)
    (out / "shrunk.py").write_text(compose(plainest))
    print(f"shrunk to {plainest}\n{compose(plainest)}", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scripts", type=int, help="how many are invented; by default 100, or none with --kept")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="runs at the same time")
    parser.add_argument("--ways", type=lambda text: text.split(","),
                        default=["run", "cache", "offload", "plan", "analyze"],
                        help=f"of {', '.join(WAYS)}; plain checks the suite: a second plain run")  # fmt: skip
    parser.add_argument("--first", action="store_true", help="stop at the first difference, and shrink its script")
    parser.add_argument("--only", type=int, nargs="+", help="numbers of the scripts to run")
    parser.add_argument("--kept", type=Path, help="a folder with scripts to run")
    parser.add_argument("--names", nargs="+", help="with --kept: only these scripts")
    parser.add_argument("--shell", type=float, default=0.0, help="share that runs by the real command line")
    parser.add_argument(
        "--planned", type=float, default=_PLANNED, help="share analysed for a plan, beside scripts that wait for data"
    )
    parser.add_argument(
        "--again", type=float, default=0.0, help="share that runs plainly twice, which checks the suite"
    )
    parser.add_argument("--without", action="append", default=[], help="leave out an option of the parts; repeatable")
    parser.add_argument("--having", action="append", default=[],
                        help="only scripts with one of these options of the parts; repeatable")  # fmt: skip
    parser.add_argument("--time", type=float, default=float("inf"), help="begin no script after these seconds")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds after which a run hangs")
    parser.add_argument("--ignore", action="append", default=[], choices=["calls", "alive", "generators", "weights"],
                        help="do not compare these lines; repeatable")  # fmt: skip
    parser.add_argument("-o", "--output", help="folder for the results and the scripts that differ")
    parser.add_argument("--summary", type=Path, nargs="+", metavar="FILE", help="only sum up results of earlier calls")
    args = parser.parse_args()
    args.without = frozenset(args.without)
    if args.scripts is None:
        args.scripts = 0 if args.kept else 100
    if unknown := set(args.ways) - set(WAYS):
        parser.error(f"no such way: {', '.join(unknown)}")
    return args


if __name__ == "__main__":
    sys.exit(main())
