"""Keep the cells of a run in a file that can be continued, and join the files of several runs."""

from __future__ import annotations

import hashlib
import json
import sysconfig
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pipediag

from ..common import ROOT
from .score import totals

Cell = dict[str, Any]
Place = tuple[str, int]


def tool() -> str:
    """Return the version of pipediag and a digest of its sources, which change more often."""
    package, digest = ROOT / "pipediag", hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(str(path.relative_to(package)).encode() + path.read_bytes())
    return f"{pipediag.__version__}+{digest.hexdigest()[:8]}"


class Results:
    """The cells by script and load. Every addition is written at once; several threads may add.

    Args:
        path: the file; what it holds already is kept.
        facts: the circumstances of this run, as written at the beginning of the file.
        hidden: paths of this machine that are left out of the file.

    Raises:
        ValueError: the file is of another device.
    """

    def __init__(self, path: Path, facts: Mapping[str, Any], hidden: Iterable[str] = ()) -> None:
        self.path, self.facts = path, dict(facts)
        self._hidden = [*hidden, f"{sysconfig.get_path('purelib')}/", f"{ROOT}/"]
        self._lock = threading.Lock()
        self.cells: dict[Place, Cell] = {}
        if path.exists():
            earlier = json.loads(path.read_text())
            if earlier["device"] != self.facts["device"]:
                raise ValueError(f"{path} is of {earlier['device']}, not {self.facts['device']}")
            self.cells = {place(cell): cell for cell in earlier["cells"]}

    def cell(self, script: str, load: int, version: str) -> Cell:
        """Return what this version of pipediag has of a cell; another version's counts for nothing."""
        found = self.cells.get((script, load), {})
        if found.get("tool") == version:
            return found
        return {"script": script, "load": load, "tool": version, "turns": [], "answers": []}

    def add(self, cell: Cell, kind: str, *rows: Mapping[str, Any]) -> None:
        """Add turns or answers (``kind``) to a cell, which takes the place of another version's."""
        with self._lock:
            cell[kind] += rows
            self.cells[place(cell)] = cell
            self._write()

    def _write(self) -> None:
        text = json.dumps(file_of(self.facts, self.cells.values()), indent=1) + "\n"
        for path in self._hidden:
            text = text.replace(path, "")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        making = self.path.with_suffix(".part")
        making.write_text(text)
        making.replace(self.path)


def place(cell: Cell) -> Place:
    return cell["script"], cell["load"]


def file_of(facts: Mapping[str, Any], cells: Iterable[Cell]) -> dict[str, Any]:
    """Return the content of a result file."""
    kept = [*cells]
    return {**facts, "totals": totals(kept).to_dict(), "cells": kept}


def join(contents: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the content of several result files as one. Of a cell that several have, the last is taken.

    Raises:
        ValueError: they are of different devices or settings.
    """
    facts: dict[str, Any] = {}
    cells: dict[Place, Cell] = {}
    for content in contents:
        own = {key: value for key, value in content.items() if key not in ("cells", "totals", "date")}
        if facts and own != {key: value for key, value in facts.items() if key != "date"}:
            unlike = sorted(key for key in {*own, *facts} - {"date"} if own.get(key) != facts.get(key))
            raise ValueError(f"the files differ in {', '.join(unlike)}")
        facts = {"date": content["date"], **own}
        cells.update({place(cell): cell for cell in content["cells"]})
    return file_of(facts, cells.values())
