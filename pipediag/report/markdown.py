"""Render the report as Markdown, for a pull request or a CI summary."""

from __future__ import annotations

from ..analysis import Diagnosis
from . import advice, knobs, model, remedy, rows
from .text import warning_texts


def render_markdown(diagnosis: Diagnosis) -> str:
    verdict = diagnosis.verdict
    lines = [f"# {rows.headline(diagnosis)}{rows.level(diagnosis)}"]
    lines += ["", f"`{rows.setting(diagnosis)}`", "", verdict.sentence]
    if verdict.culprit is not None:
        where = f" at `{verdict.culprit.where}`" if verdict.culprit.where else ""
        lines += ["", f"Culprit: `{verdict.culprit.name}`{where}"]
    step = rows.step_line(diagnosis)
    if step:
        lines += ["", step]
    table = rows.stage_rows(diagnosis)
    if table:
        lines += [
            "",
            "| where a step goes | ms | 95 % interval | share | steps/s without it |",
            "|---|--:|---|--:|--:|",
        ]
        lines += [f"| {r.stage} | {r.cost} | {r.interval} | {r.share} | {r.without} |" for r in table]
    rungs = rows.rung_line(diagnosis)
    if rungs:
        lines += ["", rungs]
    inside = rows.worker_rows(diagnosis)
    if inside:
        lines += ["", "## Inside a worker, ms for each sample", ""]
        lines += ["| | wall | cpu | share | |", "|---|--:|--:|--:|---|"]
        lines += [f"| {r.name} | {r.wall} | {r.cpu} | {r.share} | {r.where} |" for r in inside]
    lines += advice.markdown(diagnosis)
    lines += knobs.markdown(diagnosis)
    for title, entries in (
        ("Hottest lines there", [f"`{line}`" for line in rows.hot_lines(diagnosis)]),
        ("Not measured", rows.not_measured(diagnosis)),
        ("Seen beside the clock", rows.evidence_lines(diagnosis)),
        ("Warnings", warning_texts(diagnosis.warnings)),
    ):
        if entries:
            lines += ["", f"## {title}", "", *(f"- {entry}" for entry in entries)]
    return "\n".join(lines + model.markdown(diagnosis) + remedy.markdown(diagnosis)) + "\n"
