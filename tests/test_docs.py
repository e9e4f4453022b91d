"""The documentation: no dead link, commands that the command line understands, and a bounded length."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from .conftest import Analyzed, Main
from .made import climbing, make

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [
    *DOCS,
    *(
        ROOT / name
        for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md", "pipediag/replay/README.md")
    ),
]
#: Pages of evidence, and that for contributors, whose length is not bounded.
EVIDENCE = {"accuracy", "benchmarks", "reliability", "compatibility", "transforms", "limits", "architecture"}
MOST_WORDS = 18_000
#: Launchers and options that need a file of their own, or that start something else.
_NOT_RUN = re.compile(r"torchrun|accelerate|python -m|srun|pipediag (run|demo)|--plan plan.json train|\.\.\.|[A-Z]{3,}")


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as readers of Markdown make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    found = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert not anchor or anchor in headings(target), link


def test_every_page_is_in_the_site() -> None:
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert sorted(re.findall(r": (\w[\w-]*\.md)$", site, re.M)) == [page.name for page in DOCS]


def test_pages_stay_short() -> None:
    words = {page.stem: len(page.read_text(encoding="utf-8").split()) for page in DOCS}
    assert sum(count for name, count in words.items() if name not in EVIDENCE) <= MOST_WORDS


def commands(page: Path) -> list[str]:
    """Commands that stand alone in a line of code, or between backticks in a table."""
    text = page.read_text(encoding="utf-8")
    lines = re.findall(r"^(?:    |\$ )(pipediag [^#\n]*)", text, re.M)
    found = [line.strip() for line in [*lines, *re.findall(r"`(pipediag [^`]*)`", text)] if not _NOT_RUN.search(line)]
    return [line for line in found if "train" in line or re.match(r"pipediag (report|compare)\b", line)]


@pytest.mark.parametrize("name", ["start", "low-utilisation", "tools", "monitor", "recommendations", "audit", "usage"])
def test_commands_are_understood(
    name: str, main: Main, analyzed: Analyzed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is run on a script, with a measurement that is there at once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "train.py").touch()
    analyzed(make(climbing(raw=30.0)))
    for saved in ("A.json", "B.json"):
        main("analyze", "-o", saved, "train.py")
    for written in commands(ROOT / "docs" / f"{name}.md"):
        for command in written.split(" && "):
            words = shlex.split(command.partition(";")[0])[1:]
            code, _, err = main(*words)
            failed = "--diff" in words and "no change to print" in err
            assert code in (0, 3) or failed, f"{command}: {err}"
