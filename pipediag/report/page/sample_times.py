"""Show how long samples take, and which take longest."""

from __future__ import annotations

from ...analysis import Diagnosis
from ...analysis.sentences import number
from . import bars
from .histogram import histogram
from .parts import Chart, Drawing, PageBlock, Part


def part(diagnosis: Diagnosis) -> Part | None:
    tail = diagnosis.session.tail
    if tail is None or not tail.samples:
        return None
    blocks: list[PageBlock] = []
    told = f"median {number(tail.p50_ms)} ms, 99 % below {number(tail.p99_ms)} ms"
    if any(tail.counts) and len(tail.edges_ms) == len(tail.counts) + 1:
        marks = {"median": tail.p50_ms, "99 % below": tail.p99_ms}
        label = f"Histogram of the milliseconds of {tail.samples} samples: {told}"
        blocks.append(Drawing(histogram(label, tail.edges_ms, tail.counts, marks, "ms")))
    if tail.slowest:
        most = max(slow.ms for slow in tail.slowest) or 1.0
        rows = [
            [slow.index or "unknown", bars.bar(f"{number(slow.ms)} ms", slow.ms / most), number(slow.ms)]
            for slow in tail.slowest
        ]
        blocks.append(Chart("The slowest samples, by their index in the dataset", ("index", "", "ms"), "cgr", rows))
    return Part("samples", "Sample times", blocks, f"{tail.samples} samples as the workers made them: {told}.")
