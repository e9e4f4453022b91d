"""Measure the cost of one rung per transform: seconds until the verdict names its culprit and keeps it.

The events of an analysis are kept with their times and judged again afterwards, window by window. The answer is known
from the moment after which verdict and culprit no longer change.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from common import ROOT

sys.path.insert(0, str(ROOT))

from chain_script import loader_and_step
from common import RESULTS, save

from pipediag import Session, diagnose
from pipediag.analysis import diagnose_session


def one(whole: bool, budget: float) -> dict[str, Any]:
    events: list[tuple[float, str, dict[str, Any]]] = []
    began = time.monotonic()
    loader, step = loader_and_step(whole)
    diagnosis = diagnose(
        loader, step, budget=budget, progress=lambda kind, data: events.append((time.monotonic() - began, kind, data))
    )
    answer = _answer(diagnosis.session)
    session, since = Session(), 0.0
    held = False
    for seconds, kind, data in events:
        session.apply(kind, data)
        if kind != "window":
            continue
        right = _answer(session) == answer
        if right and not held:
            since = seconds
        held = right
    return {"seconds": round(since, 1), "answer": answer, "ended": diagnosis.session.ended}


def _answer(session: Session) -> list[str]:
    verdict = diagnose_session(session).verdict
    return [verdict.bottleneck, verdict.culprit.name if verdict.culprit else ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--budget", type=float, default=90.0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    runs: dict[str, list[dict[str, Any]]] = {"whole": [], "chain": []}
    for _ in range(args.pairs):
        for name, done in runs.items():
            done.append(one(name == "whole", args.budget))
            print(name, done[-1], flush=True)
    medians = {name: statistics.median(run["seconds"] for run in done) for name, done in runs.items()}
    extra = round(medians["chain"] - medians["whole"], 1)
    print(f"eight links cost {extra} s more ({medians})")
    result = {"budget": args.budget, "extra_seconds": extra, "medians": medians, "runs": runs}
    print("written", save("chain_cost", result, args.out))


if __name__ == "__main__":
    main()
