"""Reproduce the caching article's table: analyse its workload and its two improved forms as unmodified scripts."""

from __future__ import annotations

import argparse
from pathlib import Path

from common import RESULTS, ROOT, analyze, load, save

FORMS = {
    "as written": [],
    "optimised transforms": ["--optimised"],
    "and a smaller raw image": ["--optimised", "--raw-size", "256"],
    "and 12 workers": ["--optimised", "--raw-size", "256", "--workers", "12"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=float, default=100.0)
    parser.add_argument("--only", choices=FORMS, help="measure this form again and keep the other results")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("arguments", nargs="*", help="arguments of examples/caching_article.py, after --")
    args = parser.parse_args()
    script = str(ROOT / "examples" / "caching_article.py")
    size = args.arguments or ["--article", "--samples", "1000000", "--steps", "1000000"]
    rows = load("caching_article", args.out).get("forms", []) if args.only else []
    rows = [row for row in rows if row["form"] != args.only]
    for form, switches in FORMS.items():
        if args.only not in (None, form):
            continue
        report = analyze(["--budget", str(args.budget)], [script, *size, *switches])
        rates = {r["name"]: r["steps_per_s"] for r in report["rungs"] if r["steps_per_s"]}
        waterfall = [[s["stage"], s["links"], s["ms"]] for s in report["waterfall"]]
        missing = {r["name"]: r["why_not"] for r in report["rungs"] if not r["steps_per_s"]}
        rows.append(
            {
                "form": form,
                "steps_per_s": rates,
                "waterfall_ms": waterfall,
                "verdict": report["verdict"],
                "evidence": {r["name"]: r["evidence"] for r in report["rungs"]},
                "missing": missing,
                "partial": report["partial"],
            }
        )
        print(form, {name: round(rate["value"], 2) for name, rate in rates.items()})
        print("   ", report["verdict"]["bottleneck"], report["verdict"]["band"], report["verdict"]["sentence"])
    print("written", save("caching_article", {"arguments": size, "forms": rows}, args.out))


if __name__ == "__main__":
    main()
