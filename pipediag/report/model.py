"""Say what the model's side of a step consists of, and what of it could run a batch ahead."""

from __future__ import annotations

from ..analysis import Diagnosis
from ..analysis.words import few, number, percent
from ..session import Prefix, Profile, Share
from .document import Listing, Section, Table


def section(diagnosis: Diagnosis) -> Section:
    profile, prefix = diagnosis.session.profile, diagnosis.session.prefix
    lines = [_profiled(profile)] if profile is not None else []
    lines += [_frozen(prefix)] if prefix is not None else []
    tables = _tables(profile) if profile is not None and profile.steps else []
    return Section("the model's side", [Listing(lines), *tables], page=5)


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


def _tables(profile: Profile) -> list[Table]:
    parts = {"module": profile.modules, "operator": profile.operators, "kernel": profile.kernels}
    return [
        Table(
            (name, "calls a step", "ms a step", "share"),
            "lrrr",
            [_row(share, profile.step_ms) for share in shares],
            code=True,
            extra=name == "kernel",
        )
        for name, shares in parts.items()
    ]


def _row(share: Share, step_ms: float) -> tuple[str, ...]:
    part = share.ms / step_ms if step_ms > 0 else 0.0
    return share.name, number(share.calls), number(share.ms), percent(part)
