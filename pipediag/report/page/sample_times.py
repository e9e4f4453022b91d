"""Show how long samples take, and which take longest."""

from __future__ import annotations

from ...analysis import Diagnosis
from ...analysis.sentences import number
from . import bars
from .histogram import histogram, without_stragglers
from .parts import Chart, Drawing, PageBlock, Part


def part(diagnosis: Diagnosis) -> Part | None:
    tail = diagnosis.session.tail
    if tail is None or not tail.samples:
        return None
    blocks: list[PageBlock] = []
    told = f"median {number(tail.p50_ms)} ms, 99 % below {number(tail.p99_ms)} ms"
    lead = f"{tail.samples} samples as the workers made them: {told}."
    if any(tail.counts) and len(tail.edges_ms) == len(tail.counts) + 1:
        edges, counts, left_out = without_stragglers(tail.edges_ms, tail.counts)
        marks = {"median": tail.p50_ms, "99 % below": tail.p99_ms}
        blocks.append(Drawing(histogram(f"Histogram of the samples' milliseconds: {told}", edges, counts, marks, "ms")))
        lead += f" Not drawn: {left_out} below {number(edges[0])} ms." if left_out else ""
    if tail.slowest:
        most = max(slow.ms for slow in tail.slowest) or 1.0
        rows = [
            [slow.index or "unknown", bars.bar(f"{number(slow.ms)} ms", slow.ms / most), number(slow.ms)]
            for slow in tail.slowest
        ]
        blocks.append(Chart("The slowest samples, by their index in the dataset", ("index", "", "ms"), "cgr", rows))
    return Part("samples", "Sample times", blocks, lead)
