"""Say what the model's side of a step consists of, and what of it could run a batch ahead."""

from __future__ import annotations

from ..analysis import Diagnosis
from ..analysis.sentences import few, number, percent
from ..session import Prefix, Profile, Share
from .document import Block, Table, listing, section


def blocks(diagnosis: Diagnosis) -> list[Block]:
    return section("the model's side", [*listing(_told(diagnosis)), *_tables(diagnosis)], page=5)


def _told(diagnosis: Diagnosis) -> list[str]:
    session = diagnosis.session
    lines = [_profiled(session.profile)] if session.profile is not None else []
    return lines + ([_frozen(session.prefix)] if session.prefix is not None else [])


def _profiled(profile: Profile) -> str:
    if profile.why_not:
        return f"no trace was recorded: {profile.why_not}"
    busy = f"operators take {number(profile.busy_ms)} ms of a step of {number(profile.step_ms)} ms on the device"
    return f"{profile.steps} steps on batches that lie on the device: {profile.trace}; {busy}"


def _frozen(prefix: Prefix) -> str:
    if not prefix.modules:
        return f"whether a frozen part of the model could run a batch ahead is not known: {prefix.why_not}"
    told = f"{number(prefix.ms)} ms of a step of {number(prefix.ms + prefix.rest_ms)} ms go into a frozen part that "
    told += f"learns nothing: {few(prefix.modules)}"
    return f"{told}; it cannot run a batch ahead: {prefix.why_not}" if prefix.why_not else told


def _tables(diagnosis: Diagnosis) -> list[Table]:
    profile = diagnosis.session.profile
    if profile is None or not profile.steps:
        return []
    return [
        Table(
            (name, "calls a step", "ms a step", "share"),
            "lrrr",
            [(share.name, *_cells(share, profile.step_ms)) for share in shares],
            code=True,
            extra=name == "kernel",
        )
        for name, shares in (
            ("module", profile.modules),
            ("operator", profile.operators),
            ("kernel", profile.kernels),
        )
        if shares
    ]


def _cells(share: Share, step_ms: float) -> tuple[str, str, str]:
    return number(share.calls), number(share.ms), percent(share.ms / step_ms if step_ms > 0 else 0.0)
