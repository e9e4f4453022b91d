"""A hook of mkdocs: links to files of the repository outside docs/ lead nowhere in the site, so only their text stays.

They are for readers of the plain Markdown; ``tests/test_docs.py`` checks that the files are there.
"""

from __future__ import annotations

import re
from typing import Any

_OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./(?!README\.md)[^)]*\)")


def on_page_markdown(markdown: str, **context: Any) -> str:
    """Return a page without links out of the site; those to the README lead to the first page."""
    markdown = re.sub(r"\]\(\.\./README\.md[^)]*\)", "](start.md)", markdown)
    return _OUTSIDE.sub(r"\1", markdown)
