"""Judge each row, and write all as a Markdown table."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

_HEAD = (
    *("script", "kind", "truth: share (turns), line", "verdict, level, starved", "right?"),
    *("lines on the screen", "first advice", "gained natively", "analysed again"),
)
#: Below the first, nothing is lost; at the second or more something is. Between them either answer is right.
NOTHING, SOMETHING = 0.05, 0.10
#: Distance beyond the turns' shares at which an interval still agrees.
TOLERANCE = 0.05
#: A line counts as a true one if its share of the making is at least this part of the largest.
CLOSE = 0.5
_PLACE = re.compile(r"[\w./-]+\.py:\d+")


def turns(row: dict[str, Any]) -> list[float]:
    """Return the shares of all turns, before and after the analysis."""
    return [share for part in ("truth", "truth_after") for share in (row.get(part) or {}).get("shares", [])]


def right(row: dict[str, Any]) -> str:
    """Return whether the verdict agrees with the truth: yes, no, open, or why it cannot be told."""
    verdict, shares = (row.get("analyse") or {}).get("verdict") or {}, turns(row)
    if not shares:
        return "no truth"
    named, starved = verdict.get("bottleneck"), verdict.get("starved")
    if not named:
        return "no answer"
    if named == "inconclusive":
        return "open"
    low, high = min(shares), max(shares)
    if named in ("none", "compute"):
        return "yes" if low < SOMETHING else "no"
    if high < NOTHING and named != "startup":
        return "no"
    if not starved or starved.get("low") is None:
        return "yes"
    apart = max(starved["low"] - high, low - starved["high"])
    return "yes" if apart <= TOLERANCE else f"no: off by {apart:.0%}"


def true_lines(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the lines that take most of the making of batches."""
    found = ((row.get("truth") or {}).get("profile") or {}).get("lines", [])
    return [one for one in found if one["share"] >= CLOSE * found[0]["share"]]


def line_right(row: dict[str, Any]) -> str:
    """Return whether the screen's causes name a true line: by file and line, or by what is called there."""
    shown, truths = (row.get("analyse") or {}).get("where", []), true_lines(row)
    if not shown or not truths:
        return "–"
    for text in shown:
        places = {place.rpartition("/")[2] for place in _PLACE.findall(text)}
        for one in truths:
            place = one["line"].split(" ")[0].rpartition("/")[2]
            names = {part for part in re.split(r"[.\s]", f"{one['calls']} {one['line'].partition(' ')[2]}") if part}
            names -= {"__call__", "forward", "__getitem__", "apply"}
            if one["line"] == "collating":
                names.add("collating")
            if place in places or names & set(re.split(r"[^\w]", text)):
                return "yes"
    return "no"


def markdown(rows: list[dict[str, Any]]) -> str:
    lines = ["| " + " | ".join(_HEAD) + " |", "|" + "---|" * len(_HEAD)]
    lines += ["| " + " | ".join(cell.replace("|", "/") for cell in cells(row)) + " |" for row in rows]
    return "\n".join([*lines, "", summary(rows)])


def summary(rows: list[dict[str, Any]]) -> str:
    verdicts = Counter(right(row).partition(":")[0] for row in rows)
    places = Counter(line_right(row) for row in rows)
    said = ", ".join(f"{name} {count}" for name, count in verdicts.most_common())
    return (
        f"{len(rows)} scripts; verdict right: {said}; a true line on the screen: {places['yes']}, not: {places['no']}"
    )


def cells(row: dict[str, Any]) -> list[str]:
    truth, answer = row.get("truth") or {}, row.get("analyse") or {}
    return [
        row["name"],
        row["kind"],
        _truth(row, truth),
        _verdict(answer),
        f"{right(row)}; line: {line_right(row)}",
        "<br>".join(answer.get("where", [])),
        _advice(answer),
        _gained(row.get("advice") or {}),
        _verdict(row["again"]) if "again" in row else "",
    ]


def _truth(row: dict[str, Any], truth: dict[str, Any]) -> str:
    shares = turns(row)
    if not shares:
        return truth.get("stopped", "–")
    text = f"{truth.get('share', shares[0]):.0%} ({min(shares):.0%} to {max(shares):.0%})"
    text += f" of {truth['plain_ms']:.3g} ms, waits {truth['waits']:.0%}" if "waits" in truth else ""
    if truth.get("startup", 0.0) > NOTHING:
        text += f", starting workers {truth['startup']:.0%} of an epoch"
    if truth.get("foreign", 0.0) > 0.2:
        text += f", others used {truth['foreign']:.1f} cores"
    named = "; ".join(f"{one['line']} {one['calls']} {one['share']:.0%}" for one in true_lines(row)[:3])
    return f"{text}: {named}"


def _verdict(answer: dict[str, Any]) -> str:
    verdict = answer.get("verdict") or {}
    if not verdict.get("bottleneck"):
        return f"none: exit code {answer.get('code')}" if answer else "–"
    starved = verdict.get("starved")
    text = f"{verdict['bottleneck']} ({verdict['level']})"
    if starved:
        text += f", {starved['value']:.0%} ({starved['low']:.0%} to {starved['high']:.0%})"
    return text if verdict.get("certain", True) else f"{text}, not certain"


def _advice(answer: dict[str, Any]) -> str:
    if not answer.get("advice"):
        return "–"
    one = answer["advice"][0]
    return f"{one['title']} {_speedup(one)}"


def _speedup(one: dict[str, Any]) -> str:
    gain = one.get("gain")
    return f"{gain['value']:.2f}x ({gain['low']:.2f} to {gain['high']:.2f}) {one['kind']}" if gain else ""


def _gained(found: dict[str, Any]) -> str:
    if "gain" in found:
        gains = found["gains"]
        about = f", advised as {found['advice']['title']} {_speedup(found['advice'])}"
        return f"{found['gain']:.2f}x ({min(gains):.2f} to {max(gains):.2f}) by {found['edit']}{about}"
    return found.get("why_not", "")
