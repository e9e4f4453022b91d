"""Every row of the table of faults; ``docs/reliability.md`` counts them.

``python -m pytest tests/faults -m "slow or not slow"`` carries out all of them, the default a quick part.
"""

from __future__ import annotations

import pytest

from .carried_out import carry_out
from .fault import Fault
from .leaks import Leaks
from .table import FAULTS


def marks(fault: Fault) -> list[pytest.MarkDecorator]:
    known = [pytest.mark.xfail(strict=True, reason=fault.defect)] if fault.defect else []
    return known if fault.quick else [*known, pytest.mark.slow]


CASES = [pytest.param(fault, id=fault.id, marks=marks(fault)) for fault in FAULTS]


@pytest.mark.parametrize("fault", CASES)
def test_fault(leaks: Leaks, fault: Fault) -> None:
    carry_out(fault, leaks)


def test_each_row_has_a_name_of_its_own() -> None:
    assert len({fault.id for fault in FAULTS}) == len(FAULTS) >= 250
