"""The page about reliability counts the table as it is."""

from __future__ import annotations

from .page import COMMANDS, PAGE, Cell, counted, read, written
from .table import FAULTS


def test_the_page_counts_every_row() -> None:
    """Otherwise: ``PIPEDIAG_WRITE_RELIABILITY=1 python -m pytest tests/faults -m "slow or not slow"``."""
    on_page = {place: cell.all for place, cell in read(PAGE.read_text()).items()}
    assert on_page == {place: cell.all for place, cell in counted([]).items()}


def test_the_page_is_as_the_suite_writes_it() -> None:
    text = PAGE.read_text()
    assert written(read(text)) == text


def test_a_row_that_did_not_hold_is_counted() -> None:
    held = {fault.id for fault in FAULTS[1:]}
    cells = counted(held)
    assert sum(cell.all - cell.held for cell in cells.values()) == 1
    assert f"{len(FAULTS) - 1} of {len(FAULTS)} faults held" in written(cells)
    assert read(written(cells)) == cells
    assert str(Cell(2, 3)) == "2 of 3"


def test_every_command_has_a_column() -> None:
    assert {fault.command for fault in FAULTS} == set(COMMANDS)
