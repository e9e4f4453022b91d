"""Summarise the measured epochs of a kind: ratios within a repetition, and one line of a table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from tabulate import tabulate

Row = dict[str, Any]


def summary(repetitions: Sequence[Row]) -> Row:
    """Return medians over the repetitions, each of at least two epochs.

    Returns:
        ``epochs_s``: seconds of each form's epochs;
        ``first_epoch``: the first epoch with the cache over the plain one;
        ``gain``: the second epoch, plain over cached;
        ``share_of_ceiling``: the second epoch, ceiling over cached; 1 if reading back costs nothing;
        ``cache_call_s``, ``kept_bytes``: as in the repetitions;
        ``losses_equal``: True if they are in all repetitions.
    """

    def median(name: str) -> float:
        return statistics.median(one[name] for one in repetitions)

    def ratio(of: str, over: str, epoch: int) -> float:
        return statistics.median(one["epochs_s"][of][epoch] / one["epochs_s"][over][epoch] for one in repetitions)

    def epochs(form: str) -> list[float]:
        return [statistics.median(epoch) for epoch in zip(*(one["epochs_s"][form] for one in repetitions), strict=True)]

    return {
        "epochs_s": {form: epochs(form) for form in repetitions[0]["epochs_s"]},
        "first_epoch": ratio("cached", "plain", 0),
        "gain": ratio("plain", "cached", 1),
        "share_of_ceiling": ratio("ceiling", "cached", 1),
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
        "epoch 1: cached / plain": f"{medians['first_epoch']:.2f}",
        "epoch 2: plain / cached": f"{medians['gain']:.2f}",
        "epoch 2: in memory / cached": f"{medians['share_of_ceiling']:.2f}",
        "kept MB": f"{medians['kept_bytes'] / 1e6:.1f}",
        "losses": "equal" if medians["losses_equal"] else "DIFFER",
    }
