"""Errors in one line, and whose code raised them."""

from __future__ import annotations

import pytest
from torch._utils import ExceptionWrapper

from pipediag.frames import in_one_line


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("no"), "ValueError: no"),
        (ValueError("no\nfor two reasons"), "ValueError: no"),
        (ValueError(), "ValueError"),
        (SyntaxError("bad", ("x.py", 1, 2, "a b")), "SyntaxError: bad"),
    ],
)
def test_an_error_in_one_line(error: Exception, line: str) -> None:
    assert in_one_line(error) == line


def test_a_workers_error_is_the_original() -> None:
    try:
        raise LookupError("sample 3 is damaged")
    except LookupError:
        wrapped = ExceptionWrapper(where="in DataLoader worker process 0")
    with pytest.raises(LookupError) as caught:
        wrapped.reraise()
    assert in_one_line(caught.value) == "LookupError: sample 3 is damaged"
