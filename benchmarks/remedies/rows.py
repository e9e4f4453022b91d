"""Reduce a case to its row: figures of the report, ratios of the rounds, and the agreement of the losses. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from pipediag.analysis import diagnose_session
from pipediag.analysis.numbers.intervals import Interval
from pipediag.analysis.numbers.paired_windows import paired_ratio
from pipediag.session import REMEDIED, Session

from .clock import PAGEABLE, PINNED
from .turns import Taken

Row = dict[str, Any]
#: Ratio of throughputs below which a run counts as slower than the plain one.
NEVER_BELOW = 0.98
#: Maximum distance of a close prediction from the measurement, as a share of the prediction.
CLOSE = 0.15
#: The rung that no input pipeline can exceed: batches cached on the device.
CEILING = "device"
_LONGEST = 200
#: The forms that run only the loader, by the kind of memory of its batches.
RAW_FORMS = {PAGEABLE: "raw_pageable", PINNED: "raw_pinned"}
_PAIRS = (("run", "plain"), ("patched", "plain"), ("patched", "run"))


def of_analysis(report: Mapping[str, Any] | None) -> Row:
    """Return rates in steps per second, the remedy's predicted and measured gains, and its outcome."""
    if report is None or report["remedy"] is None:
        return {"verdict": None, "status": "not analysed", "applied": False}
    remedy = report["remedy"]
    rates = {rung["name"]: rung["steps_per_s"] for rung in report["rungs"] if rung["steps_per_s"]}
    starved = report["verdict"]["starved"]
    return {
        "verdict": report["verdict"]["bottleneck"],
        "starved": starved["value"] if starved else None,
        "status": status(remedy),
        "applied": remedy["applied"],
        "why": remedy["why_not"] or remedy["reverted"],
        "moved": [place["name"] for place in remedy["moved"]],
        "stayed": [f"{kept['name']}: {kept['why']}".strip(": ")[:_LONGEST] for kept in remedy["stayed"]],
        "certificate": certificate(remedy["certificate"]),
        "memory_bytes": remedy["memory_bytes"],
        "steps_per_s": {
            "ceiling": rates.get(CEILING),
            "supply": rates.get("supply"),
            "baseline": rates.get("baseline"),
            "remedied": rates.get(REMEDIED),
        },
        "recommended": {one["id"]: one["predicted_speedup"] for one in report["recommendations"]},
        "predicted": predicted(report),
        "predicted_blind": predicted_blind(report),
        "measured": remedy["measured_speedup"],
        "rounds_of_trial": remedy["rounds"],
    }


def status(remedy: Mapping[str, Any]) -> str:
    """Return whether the remedy was applied, reverted, or not tried."""
    if remedy["applied"]:
        return "applied"
    return "nothing moves" if remedy["why_not"] else "reverted"


def certificate(found: Mapping[str, Any] | None) -> Row | None:
    """Return whether the certificate passed, and the largest difference to the CPU's pixels.

    ``exact`` is True if everything moved is equal by construction as well, as far as the report says. ``levels`` counts
    levels of bytes, ``of_range`` is a share of the range of floats; null if not finite.
    """
    if found is None:
        return None
    apart = {
        name: [one["largest"] for one in found["apart"] if one["levels"] == is_levels]
        for name, is_levels in (("levels", True), ("of_range", False))
    }
    largest = {name: None if None in those else max(those, default=0.0) for name, those in apart.items()}
    proven = {name: found[name] for name in ("passed", "draws_equal", "samples")}
    return {**proven, **largest, "exact": all(one == 0.0 for one in largest.values()) and not found.get("elsewhere")}


def predicted(report: Mapping[str, Any]) -> dict[str, float | None] | None:
    """Return the speedup that the report predicts for moving the transforms, or None if it does not recommend that."""
    return next((one["predicted_speedup"] for one in report["recommendations"] if one["id"] == "offload"), None)


def predicted_blind(report: Mapping[str, Any]) -> dict[str, float | None] | None:
    """Return the speedup predicted before anything was tried, without knowing what moves and what that gains."""
    session = Session.from_dict(report["session"])
    session.remedy = None
    session.windows = [window for window in session.windows if window.rung != REMEDIED]
    session.rungs.pop(REMEDIED, None)
    found = next((one for one in diagnose_session(session).recommendations if one.id == "offload"), None)
    return found.predicted.to_dict() if found and found.predicted else None


def of_training(taken: Taken, planned: bool) -> Row:
    """Return the rates of the rounds with their ratios, and the losses compared with the plain run's."""
    losses = {form: own for form, own in taken.losses.items() if form not in RAW_FORMS.values()}
    plain = losses.get("plain", [])
    return {
        "run_with": "plan" if planned else "no plan",
        "rounds": taken.rates,
        "ratios": {
            f"{one}/{other}": compared(taken.rates, one, other)
            for one, other in _PAIRS
            if one in taken.rates and other in taken.rates
        },
        "losses": {form: agreement(plain, own) for form, own in losses.items() if form != "plain" and plain},
        "seconds": taken.seconds,
        "checking_s": [round(seconds, 2) for seconds in taken.checking],
        "said": taken.said.get("run", []),
        "failed": {form: why[:_LONGEST] for form, why in taken.failed.items()},
    }


def of_bounds(row: Row) -> Row:
    """Return the limits of the remedied training, and how close it comes to them.

    ``raw_supply`` is the rate of the raw loader alone, with the better kind of memory. ``reached`` is ``run`` over the
    lower of ceiling and raw supply, paired round by round if that is the supply. ``reached_in_trial`` is the remedied
    rate of the analysis over the same.
    """
    rates = row.get("steps_per_s") or {}
    raw = {form: statistics.median(row["rounds"][form]) for form in RAW_FORMS.values() if row["rounds"].get(form)}
    best = max(raw, key=lambda form: raw[form], default=None)
    ceiling, remedied, run = rates.get("ceiling"), rates.get("remedied"), row["rounds"].get("run")
    if best is None or not ceiling:
        return {"raw_supply": None, "reached": None, "reached_in_trial": None}
    bound = min(raw[best], ceiling["value"])
    of_supply = compared(row["rounds"], "run", best) if run and bound == raw[best] else None
    return {
        "raw_supply": raw[best],
        "reached": of_supply or (paired_ratio(run, [bound] * len(run)).to_dict() if run else None),
        "reached_in_trial": remedied["value"] / bound if remedied else None,
    }


def compared(rates: Mapping[str, Sequence[float]], one: str, other: str) -> dict[str, float | None]:
    """Return the ratio of the steps per second of ``one`` and ``other``, paired round by round."""
    pairs = list(zip(rates[one], rates[other], strict=False))
    return paired_ratio([a for a, _ in pairs], [b for _, b in pairs]).to_dict()


def agreement(theirs: Sequence[float], ours: Sequence[float]) -> Row:
    """Compare two sequences of losses over their common length.

    ``largest`` is the largest difference, as a share of the larger of the two losses; null if one of them is not a
    number.
    """
    pairs = list(zip(theirs, ours, strict=False))
    apart = [abs(a - b) / max(abs(a), abs(b)) if a != b else 0.0 for a, b in pairs]
    finite = all(math.isfinite(a) and math.isfinite(b) for a, b in pairs)
    return {
        "compared": len(pairs),
        "equal": bool(pairs) and all(a == b for a, b in pairs),
        "largest": max(apart, default=None) if finite else None,
    }


def never_worse(row: Row) -> str:
    """Return whether training as pipediag leaves it is slower than plain training by more than allowed.

    The limit is :data:`NEVER_BELOW`. Without a plan, training is the plain script. Otherwise the result is ``holds`` if
    the interval of the ratio is above the limit, ``slower`` if it is below, and ``open`` if it contains the limit.
    """
    return "plain" if row["run_with"] == "no plan" else beside_plain(row)


def beside_plain(row: Row) -> str:
    """Judge ``pipediag run`` as it was timed in the same way; ``failed`` if it did not finish."""
    if "run" in row["failed"]:
        return "failed"
    found = row["ratios"].get("run/plain")
    if found is None:
        return "open"
    if found["low"] is not None and found["low"] >= NEVER_BELOW:
        return "holds"
    return "slower" if found["high"] is not None and found["high"] < NEVER_BELOW else "open"


def same_losses(row: Row, form: str = "run") -> str:
    """Compare a form's losses with the plain run's, and with what its pixels require.

    ``equal``; ``as plain`` if they differ no more than those of two plain runs; ``near`` if they differ and the pixels
    do too, or nothing is certified; ``DIFFER`` if the pixels were certified equal.
    """
    found, again = row["losses"].get(form), row["losses"].get("again")
    if found is None or not found["compared"]:
        return "-"
    if found["equal"]:
        return "equal"
    if None not in (found["largest"], again and again["largest"]) and found["largest"] <= again["largest"]:
        return "as plain"
    exact = (row.get("certificate") or {}).get("exact")
    return "DIFFER" if exact else "near"


def is_close(prediction: Interval | Mapping[str, Any], measured: Mapping[str, Any]) -> bool:
    """Return whether a prediction is within :data:`CLOSE` of the measurement."""
    value = prediction.value if isinstance(prediction, Interval) else prediction["value"]
    return bool(abs(measured["value"] / value - 1) <= CLOSE)


def broken(error: str) -> Row:
    """Return the row of a case of which only the error is known."""
    row = {"error": error, **of_analysis(None), **of_training(Taken(), planned=False), "took_s": 0.0}
    return row | of_bounds(row)


def merged(rows: Sequence[Row], row: Row, order: Sequence[str]) -> list[Row]:
    """Return the rows with this one in place of the same case's, in the order of the names."""
    kept = [*(other for other in rows if other["case"] != row["case"]), row]
    place = {name: number for number, name in enumerate(order)}
    return sorted(kept, key=lambda one: place.get(one["case"], len(place)))
