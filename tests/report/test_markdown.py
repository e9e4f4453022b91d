"""Markdown shows what names and arguments hold, and does nothing with it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from pipediag.report import markdown
from pipediag.report.document import Advice, Block, Code, Listing, Location, Paragraph, Table, Title

HOSTILE = st.lists(
    st.sampled_from(
        ["`", "``", "```", "\\", "[", "](http://x.y/z)", "![a]", "<img src=x>", "<", "&lt;", "|", "a", " "]
    ),
    min_size=1,
    max_size=8,
).map("".join)
_LIVE = {"link_open", "image", "html_inline", "html_block"}


def documents(text: str) -> list[list[Block]]:
    return [
        [Title(text, text, text)],
        [Paragraph(text)],
        [Location("slow", text, text)],
        [Listing([text])],
        [Listing([text], code=True)],
        [Table(["what", text], "ll", [[text, text]], code=True)],
        [Code("run", [text, text], "diff")],
        [Advice(1, text, text, text, text, [text], text, [text], text)],
    ]


def live(written: str) -> set[str]:
    tokens = MarkdownIt("commonmark").enable("table").parse(written)
    return {inner.type for token in tokens for inner in [token, *(token.children or [])]} & _LIVE


@given(HOSTILE)
@settings(max_examples=60, deadline=None)
def test_nothing_of_it_is_live(text: str) -> None:
    for document in documents(text):
        assert not live(markdown.write(document)), markdown.write(document)


@pytest.mark.parametrize("text", ["a`b", "`", "``", "x|y"])
def test_a_code_span_shows_all_of_it(text: str) -> None:
    written = markdown.write([Location("slow", text, "")])
    html = MarkdownIt("commonmark").render(written)
    assert re.search(f"<code>{re.escape(text)}</code>", html), html


def test_an_address_is_not_linked() -> None:
    """GitHub links an address that stands in plain text."""
    assert "://" not in markdown.write([Paragraph("see https://x.y and www.x.y")])
    assert "www." not in markdown.write([Paragraph("see www.x.y")])
