"""Summarise the measured epochs of a kind: ratios within a repetition, and one line of a table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from tabulate import tabulate

Row = dict[str, Any]
#: Which form's epoch over which other's, and the epoch's number.
_RATIOS = {
    "first_epoch": ("cached", "plain", 0),
    "gain": ("plain", "cached", 1),
    "share_of_ceiling": ("ceiling", "cached", 1),
}


def summary(repetitions: Sequence[Row]) -> Row:
    """Return medians over the repetitions, each of at least two epochs.

    Returns:
        ``epochs_s``: seconds of each form's epochs;
        ``first_epoch``: the first epoch with the cache over the plain one;
        ``gain``: the second epoch, plain over cached;
        ``share_of_ceiling``: the second epoch, ceiling over cached; 1 if reading back costs nothing;
        ``first_epoch_cpu``, ``gain_cpu``, ``share_of_ceiling_cpu``: the same ratios of CPU time;
        ``cache_call_s``, ``kept_bytes``: as in the repetitions;
        ``losses_equal``: True if they are in all repetitions.
    """

    def median(name: str) -> float:
        return statistics.median(one[name] for one in repetitions)

    def ratio(times: str, of: str, over: str, epoch: int) -> float:
        return statistics.median(one[times][of][epoch] / one[times][over][epoch] for one in repetitions)

    def ratios(times: str, suffix: str) -> Row:
        return {f"{name}{suffix}": ratio(times, *which) for name, which in _RATIOS.items()}

    def epochs(form: str) -> list[float]:
        return [statistics.median(epoch) for epoch in zip(*(one["epochs_s"][form] for one in repetitions), strict=True)]

    return {
        "epochs_s": {form: epochs(form) for form in repetitions[0]["epochs_s"]},
        **ratios("epochs_s", ""),
        **ratios("cpu_s", "_cpu"),
        **{name: median(name) for name in ("cache_call_s", "kept_bytes")},
        "losses_equal": all(one["losses_equal"] for one in repetitions),
    }


def markdown(rows: Sequence[Row]) -> str:
    """Return a table with a line for each kind."""
    return tabulate([_cells(row) for row in rows], headers="keys", tablefmt="pipe", disable_numparse=True)


def _cells(row: Row) -> dict[str, str]:
    medians = row["medians"]
    shown = {form: " ".join(f"{value:.2f}" for value in epochs) for form, epochs in medians["epochs_s"].items()}
    return {
        "kind": row["kind"],
        "samples": str(row["samples"]),
        "plain epochs (s)": shown["plain"],
        "`cache()` (s)": f"{medians['cache_call_s']:.2f}",
        "cached epochs (s)": shown["cached"],
        "in memory (s)": shown["ceiling"],
        "epoch 1: cached / plain": _both(medians, "first_epoch"),
        "epoch 2: plain / cached": _both(medians, "gain"),
        "epoch 2: in memory / cached": _both(medians, "share_of_ceiling"),
        "kept MB": f"{medians['kept_bytes'] / 1e6:.1f}",
        "losses": "equal" if medians["losses_equal"] else "DIFFER",
    }


def _both(medians: Row, ratio: str) -> str:
    return f"{medians[ratio]:.2f} ({medians[f'{ratio}_cpu']:.2f})"
