"""Describe a remedy for the session: what moves, what stays and why, and how exact the replay is."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader

from ..analysis.words import together
from ..replay.certify.certifying import Certificate, Verdict
from ..replay.decode.decoding import why_not
from ..replay.ops.op import NotRecordable
from ..replay.ops.triton import available
from ..replay.plan import Piece, Plan, moved_calls, moved_links, slot_at
from ..replay.record.plain_code import line_at
from ..session import Apart, Kept, Place, Proof, Remedy
from ..usercode.constructions import places_of
from ..usercode.links import links_of
from .loader import OffloadedLoader
from .saved_plan import SavedPlan, versions

_NO_TRANSFORMS = "no transforms were found on the dataset that could be moved"


def told(offloaded: OffloadedLoader, cached: DataLoader[Any] | None = None) -> Remedy:
    """Return the session's description of the result of :func:`pipediag.offload`.

    ``cached`` is the user's loader if its samples are cached.
    """
    plan, dataset = offloaded.plan, offloaded.loader.dataset
    placed = [(piece, places_of(links_of(slot_at(dataset, piece.path).get()))) for piece in plan.pieces]
    moved = [place for piece, places in placed for place in places[piece.start :]]
    moved += [Place(site.function, site.where) for site in plan.called]
    stays = [place.name for piece, places in placed for place in places[: piece.start]]
    certificate = offloaded.certificate
    return Remedy(
        device=str(offloaded.device),
        moved=moved,
        stayed=list(_kept(stays, plan.reasons)),
        why_not="" if moved else next(iter(plan.reasons), _NO_TRANSFORMS),
        proof=proof(certificate) if certificate is not None else None,
        plan=saved_plan(offloaded, cached).to_dict() if moved else {},
    )


def told_without_moves(offloaded: OffloadedLoader, cached: DataLoader[Any] | None = None) -> Remedy:
    """Return the session's description of a loader whose transforms stay: the hand-off alone, or a cache."""
    return Remedy(device=str(offloaded.device), plan=saved_plan(offloaded, cached).to_dict())


def saved_plan(offloaded: OffloadedLoader, cached: DataLoader[Any] | None = None) -> SavedPlan:
    """Return the plan to save, without the script and the speedup."""
    loader, plan = offloaded.loader, offloaded.plan
    return SavedPlan(
        dataset=class_name((loader if cached is None else cached).dataset),
        batch_size=loader.batch_size,
        device=offloaded.device.type,
        moved=tuple(moved_links(plan, loader.dataset)),
        calls=tuple(moved_calls(plan)),
        decodes=plan.decodes,
        caches=cached is not None,
        versions=versions(),
        pieces=() if plan.begins else tuple((piece.path, piece.start, piece.links) for piece in plan.pieces),
        refused=tuple(sorted(plan.refused)),
    )


def plan_from(saved: SavedPlan, dataset: Any, device: torch.device) -> Plan | None:
    """Return the plan that was saved; None if that must be found out again, for example for another dataset."""
    if not saved.pieces or (saved.decodes and why_not(device)):
        return None
    plan = Plan(
        pieces=tuple(Piece(*piece) for piece in saved.pieces),
        fuse=available(device),
        decodes=saved.decodes,
        refused=frozenset(saved.refused),
    )
    try:
        plan.recorders(dataset)
    except NotRecordable:
        return None
    return plan


def check(saved: SavedPlan, offloaded: OffloadedLoader) -> None:
    """Raise PlanRefused if something else moves than what the plan was made for."""
    plan = offloaded.plan
    files = {os.path.basename(site.file): site.file for site in plan.called}

    def text(file: str, line: int) -> str | None:
        return line_at(files[file], line) if file in files else None

    why_none = why_nothing(plan)
    saved.check_moved(moved_links(plan, offloaded.loader.dataset), plan.undecoded, why_none)
    saved.check_calls(moved_calls(plan), text, why_none)


def class_name(obj: Any) -> str:
    return f"{type(obj).__module__}.{type(obj).__qualname__}"


def _kept(stays: Sequence[str], reasons: Sequence[str]) -> Iterator[Kept]:
    """Yield the links that stay, each with the reason that names it, and the reasons that name no link."""
    named: dict[str, str] = {}
    general = []
    for name, why in map(_parted, reasons):
        if name:
            named.setdefault(name, why)
        else:
            general.append(why)
    last = next((name for name in reversed(stays) if name in named), "")
    for name in stays:
        yield Kept(name, named.pop(name, f"it comes before {last}" if last else ""))
    yield from (Kept(name, why) for name, why in named.items())
    yield from (Kept("", why) for why in general)


def _parted(reason: str) -> tuple[str, str]:
    """Return the link that a reason names, or "", and the rest."""
    name, colon, why = reason.partition(": ")
    return (name, why) if colon and " " not in name else ("", reason)


def why_nothing(plan: Plan) -> str:
    """Return why nothing moves, with the links of one reason together."""
    found = together(map(_parted, plan.reasons))
    return "; ".join(f"{names}: {why}" if names else why for names, why in found) or _NO_TRANSFORMS


def proof(certificate: Certificate) -> Proof:
    return Proof(
        passed=certificate.passed,
        samples=certificate.samples,
        unrecorded=certificate.unrecorded,
        why=certificate.why,
        draws_equal=certificate.draws_equal,
        elsewhere=list(certificate.elsewhere),
        apart=[_apart(verdict) for verdict in (*certificate.ops, *certificate.whole)],
        pictured=list(certificate.pictured),
    )


def _apart(verdict: Verdict) -> Apart:
    difference = verdict.difference
    return Apart(
        name=verdict.name,
        samples=verdict.samples,
        largest=difference.largest if math.isfinite(difference.largest) else None,
        off=difference.off,
        levels=not difference.floating,
        passed=verdict.passed,
    )
