"""Summarise the measured epochs of a kind: ratios within a repetition, and one line of a table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from tabulate import tabulate

#: Seconds of each epoch, for each repetition.
Epochs = Sequence[Sequence[float]]
Row = dict[str, Any]


def summary(seconds: Mapping[str, Epochs]) -> dict[str, Any]:
    """Return medians over the repetitions.

    Args:
        seconds: epochs of the forms ``plain``, ``cached`` and ``ceiling``; at least two each, and as many repetitions.

    Returns:
        ``seconds``: each form's epochs;
        ``first_epoch``: the first epoch with the cache over the plain one;
        ``gain``: the second epoch, plain over cached;
        ``share_of_ceiling``: the second epoch, ceiling over cached; 1 if reading back costs nothing.
    """

    def ratio(of: str, over: str, epoch: int) -> float:
        pairs = zip(seconds[of], seconds[over], strict=True)
        return statistics.median(one[epoch] / other[epoch] for one, other in pairs)

    return {
        "seconds": {
            form: [statistics.median(epoch) for epoch in zip(*epochs, strict=True)] for form, epochs in seconds.items()
        },
        "first_epoch": ratio("cached", "plain", 0),
        "gain": ratio("plain", "cached", 1),
        "share_of_ceiling": ratio("ceiling", "cached", 1),
    }


def markdown(rows: Sequence[Row]) -> str:
    """Return a table with a line for each kind."""
    return tabulate([_cells(row) for row in rows], headers="keys", tablefmt="pipe", disable_numparse=True)


def _cells(row: Row) -> dict[str, str]:
    medians = row["medians"]
    shown = {form: " ".join(f"{value:.2f}" for value in epochs) for form, epochs in medians["seconds"].items()}
    return {
        "kind": row["kind"],
        "samples": str(row["samples"]),
        "plain epochs (s)": shown["plain"],
        "`cache()` (s)": f"{statistics.median(row['cache_call_s']):.2f}",
        "cached epochs (s)": shown["cached"],
        "in memory (s)": shown["ceiling"],
        "epoch 1: cached / plain": f"{medians['first_epoch']:.2f}",
        "epoch 2: plain / cached": f"{medians['gain']:.2f}",
        "epoch 2: in memory / cached": f"{medians['share_of_ceiling']:.2f}",
        "predicted MB": _megabytes(row["predicted_bytes"]),
        "kept MB": _megabytes(row["kept_bytes"]),
        "losses": "equal" if row["losses_equal"] else "DIFFER",
    }


def _megabytes(nbytes: Sequence[int]) -> str:
    return f"{statistics.median(nbytes) / 1e6:.1f}" if nbytes else "-"
