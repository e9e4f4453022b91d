"""Score the reports of the jobs. Pure: records in, numbers and tables out.

A record is the plain data of one job: ``name``, ``kind``, ``holds`` and ``late`` (see :class:`~.cases.Case`),
``found`` (``ranks`` and ``kind`` of the straggler that the report names; None if it names none), ``error`` (why there
is no report), ``seconds``, ``trials``, and ``steps_per_s`` (``native``, ``native_cached``, ``baseline``, ``device``;
those not measured are None).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from tabulate import tabulate

Record = Mapping[str, Any]

ANSWERS = ("right", "missed", "wrong", "false", "quiet", "failed")


def answer(record: Record) -> str:
    """Return how the report answers.

    A late rank is named (``right``), not named (``missed``), or others are, or something else of it is (``wrong``).
    Where no rank is late, none is named (``quiet``) or one is (``false``). ``failed``: there is no report.
    """
    found = record["found"]
    if record["error"]:
        return "failed"
    if not record["holds"]:
        return "false" if found else "quiet"
    if not found:
        return "missed"
    return "right" if (found["ranks"], found["kind"]) == ([record["late"]], record["holds"]) else "wrong"


def overhead(record: Record) -> float | None:
    """Return the speed of the loop as it is under the analysis, over that of the script without it."""
    return _ratio(record, "baseline", "native")


def ceiling(record: Record) -> float | None:
    """Return the speed with batches cached on the device, over that of the script that caches them itself."""
    return _ratio(record, "device", "native_cached")


def summary(records: Sequence[Record]) -> dict[str, Any]:
    """Return the number of jobs with each answer, and medians over them; None where nothing was measured."""
    answers = [answer(record) for record in records]
    return {
        **{name: answers.count(name) for name in ANSWERS},
        "seconds": _median([record["seconds"] for record in records]),
        "overhead": _median([overhead(record) for record in records]),
        "ceiling": _median([ceiling(record) for record in records]),
    }


def markdown(records: Sequence[Record]) -> str:
    """Return a table with a row for each job."""
    return tabulate([_cells(record) for record in records], headers="keys", tablefmt="pipe", disable_numparse=True)


def _ratio(record: Record, of: str, over: str) -> float | None:
    measured = record["steps_per_s"]
    return measured[of] / measured[over] if measured[of] and measured[over] else None


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(statistics.median(known), 4) if known else None


def _cells(record: Record) -> dict[str, str]:
    found = record["found"]
    return {
        "job": record["name"],
        "late": "-" if record["late"] is None else f"rank {record['late']} ({record['kind']})",
        "named": f"{found['kind']} of {', '.join(map(str, found['ranks']))}" if found else "-",
        "answer": answer(record),
        "trials": str(record["trials"]),
        "seconds": f"{record['seconds']:.0f}",
        "baseline / native": _shown(overhead(record)),
        "device / cached": _shown(ceiling(record)),
    }


def _shown(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"
