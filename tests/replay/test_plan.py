"""How a plan is printed."""

from __future__ import annotations

from pipediag.replay.plan import Piece, Plan


def test_the_lines_of_a_plan() -> None:
    assert str(Plan()) == "nothing moves"
    assert str(Plan(reasons=("for this", "and that"))) == "nothing moves\n- for this\n- and that"
    pieces = (Piece((0,), 0, ("Crop", "Flip")), Piece((1,), 1, ("Open", "Flip")))
    assert str(Plan(pieces, ("Open: it opens",))).splitlines() == [
        "moves to the device: Crop, Flip",
        "moves to the device: Flip",
        "stays in the workers: Open",
        "- Open: it opens",
    ]
