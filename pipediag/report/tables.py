"""Escape text for the cells of Markdown tables."""

from __future__ import annotations


def cell(text: str) -> str:
    """Return text for a table cell: a bar would end the cell, and an angle bracket would begin a tag."""
    for plain, escaped in (("&", "&amp;"), ("<", "&lt;"), ("|", "\\|"), ("\n", " ")):
        text = text.replace(plain, escaped)
    return text
