"""Report what the training thread does in a step, under each rung that the training process's own side limits."""

from __future__ import annotations

from typing import NamedTuple

from ..analysis import Diagnosis
from ..analysis.numbers.load import mean_account
from ..analysis.words import number
from ..session import Account
from .document import Section, Table

TITLE = "what the training thread does in a step, ms"
#: The parts of a step, in the order of the columns.
PARTS = ("on a CPU", "waits for a core", "waits for data", "other blocking")
_RUNGS = ("device", "host", "worker", "baseline")
_NOT_COUNTED = "the training thread's account: the kernel does not count it, or another thread draws the batches"


class AccountRow(NamedTuple):
    """A rung, milliseconds of its step, and the parts of the step in the order of :data:`PARTS`."""

    rung: str
    step: float
    parts: tuple[float, float, float, float]


def account_rows(diagnosis: Diagnosis) -> list[AccountRow]:
    """Return a row for each of the rungs that have an account; the parts of a row sum to its step."""
    rows = []
    for rung in _RUNGS:
        account = mean_account(diagnosis.ladder.windows_used(rung))
        if account is not None:
            parts = _parts(account)
            rows.append(AccountRow(rung, sum(parts), parts))
    return rows


def _parts(account: Account) -> tuple[float, float, float, float]:
    return account.cpu_ms, account.queue_ms, account.waits_ms, account.other_ms


def section(diagnosis: Diagnosis) -> Section:
    cells = [[row.rung, number(row.step), *map(number, row.parts)] for row in account_rows(diagnosis)]
    return Section(TITLE, [Table(("", "step", *PARTS), "lrrrrr", cells, ruled=False)], page=3)


def why_none(diagnosis: Diagnosis) -> str:
    """Return why there is no account; empty if there is one, or if no step was measured."""
    measured = any(diagnosis.ladder.windows(rung) for rung in _RUNGS)
    return _NOT_COUNTED if measured and not account_rows(diagnosis) else ""
