"""Every row of the table of faults; ``docs/reliability.md`` counts them.

``python -m pytest tests/faults -m "slow or not slow"`` carries out all of them, the default a quick part.
"""

from __future__ import annotations

import pytest

from .carried_out import carry_out
from .fault import Fault
from .leaks import Leaks
from .table import FAULTS

CASES = [pytest.param(fault, id=fault.id, marks=[] if fault.quick else [pytest.mark.slow]) for fault in FAULTS]


@pytest.mark.parametrize("fault", CASES)
def test_fault(leaks: Leaks, fault: Fault) -> None:
    carry_out(fault, leaks)


def test_each_row_has_a_name_of_its_own() -> None:
    assert len({fault.id for fault in FAULTS}) == len(FAULTS) >= 850
