"""Hold the memo that is in use in this process, for functions that users have marked with ``pipediag.pure``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .memo import Memo

#: Memos in use, the latest last.
memos: list[Memo] = []
