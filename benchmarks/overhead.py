"""Compare the baseline rung with the plain script, in pairs, at several speeds."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from pathlib import Path

from common import ENVIRONMENT, RESULTS, analyze, save

SCRIPT = str(Path(__file__).resolve().with_name("overhead_script.py"))


def plain(arguments: list[str]) -> float:
    """Return steps per second as measured by the script itself."""
    done = subprocess.run(
        [sys.executable, SCRIPT, *arguments], check=True, env=ENVIRONMENT, capture_output=True, text=True
    )
    return float(done.stdout.split()[-1])


def analysed(arguments: list[str], budget: float) -> float:
    """Return steps per second over all baseline windows."""
    # The budget ends the script, so its own end is far away.
    report = analyze(
        ["--rungs", "baseline", "--budget", str(budget)], [SCRIPT, *arguments, "--seconds", str(10 * budget)]
    )
    windows = report["session"]["windows"]
    return sum(w["steps"] for w in windows) / sum(w["seconds"] for w in windows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rates", type=float, nargs="+", default=[5.0, 50.0, 500.0])
    parser.add_argument("--limits", nargs="+", default=["loader", "step"])
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    for limit in args.limits:
        rows = []
        for rate in args.rates:
            script = ["--limit", limit, "--rate", str(rate), "--workers", str(args.workers)]
            ratios, speeds = [], []
            for pair in range(args.pairs):
                both = [lambda s=script: plain([*s, "--seconds", str(args.seconds)])]
                both.append(lambda s=script: analysed(s, args.seconds + 2))
                if pair % 2:  # neither form always runs first
                    under, alone = both[1](), both[0]()
                else:
                    alone, under = both[0](), both[1]()
                ratios.append(under / alone)
                speeds.append(alone)
            rows.append(
                {
                    "rate_aimed": rate,
                    "plain_steps_per_s": round(statistics.median(speeds), 3),
                    "ratio_median": round(statistics.median(ratios), 4),
                    "ratios": [round(r, 4) for r in ratios],
                }
            )
            print(rows[-1], flush=True)
        result = {"limit": limit, "pairs": args.pairs, "workers": args.workers, "rows": rows}
        print("written", save(f"overhead_{limit}", result, args.out))


if __name__ == "__main__":
    main()
