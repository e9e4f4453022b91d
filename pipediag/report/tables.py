"""Text for the cells of Markdown tables."""

from __future__ import annotations


def cell(text: str) -> str:
    """Text as it may stand in a table, where a bar would end the cell and an angle bracket begin a tag."""
    for plain, escaped in (("&", "&amp;"), ("<", "&lt;"), ("|", "\\|"), ("\n", " ")):
        text = text.replace(plain, escaped)
    return text
