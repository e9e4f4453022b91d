"""Show characters that a page must not obey: names come from the user's code and files."""

from __future__ import annotations

import re

#: Control characters but tab and newline, marks that change the direction of text, separators of lines, surrogates.
_OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ufffe\uffff\ud800-\udfff]"
)


def visible(text: str) -> str:
    """Return ``text`` with such characters written as escapes: a right-to-left mark becomes ``\\u200f``."""
    return _OBEYED.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
