"""List the running scripts: how each is started, which code causes its cost, and how its truth is found."""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from ..word.cases import KNOWN
from ..word.cases import SCRIPTS as WORD

SCRIPTS = Path(__file__).resolve().with_name("scripts")
#: What a script of ``benchmarks/word`` gets in addition, on the same lines: it tells its pace and its waiting.
_PACED = (
    (r"for (.+) in loader:", r"for _begun, (\1), _got in __import__('pace').timed(loader):"),
    (r"optimizer\.step\(\)", "optimizer.step(); __import__('pace').PACE.step(_got - _begun)"),
)


@dataclass(frozen=True)
class Case:
    """One running script.

    Attributes:
        name: Of the case.
        script: The file, in ``scripts/`` or in those of ``benchmarks/word``.
        arguments: Those of the script.
        code: Classes and functions in ``file`` at whose lines, or by whose name, the cost may be named; empty if the
            script does not starve.
        file: The file that defines ``code``.
        launcher: What stands before the script.
        needs: A module that must be installed.
    """

    name: str
    script: str
    arguments: tuple[str, ...] = ()
    code: tuple[str, ...] = ()
    file: str = ""
    launcher: tuple[str, ...] = (sys.executable,)
    needs: str = ""

    @property
    def of_word(self) -> bool:
        return not (SCRIPTS / self.script).exists()

    @property
    def starves(self) -> bool:
        return bool(self.code)

    @property
    def source(self) -> str:
        path = (WORD if self.of_word else SCRIPTS) / self.script
        return path.read_text(encoding="utf-8")

    @property
    def paced(self) -> str:
        """The script as it is run: with its pace."""
        source = self.source
        for old, new in _PACED if self.of_word else ():
            source = re.sub(old, new, source)
        return source

    def names(self, name: str, where: str) -> bool:
        """Return whether a culprit is the code that causes the cost."""
        if any(code in name for code in self.code):
            return True
        file, _, line = where.rpartition(":")
        wanted = self.file or self.script
        if Path(file).name != wanted or not line.isdecimal():
            return False
        source = self.source if wanted == self.script else (SCRIPTS / wanted).read_text(encoding="utf-8")
        found = set[int]()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name in self.code:
                found |= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
        return int(line) in found


def _word(name: str, *code: str) -> Case:
    return Case(name, f"{name}.py", code=code or ((KNOWN[name].code,) if KNOWN[name].code else ()))


_RANKS = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
_APART = ("unshare", "--pid", "--fork", "--mount-proc", sys.executable)
CASES = (
    _word("own_step"),
    _word("numpy_chain"),
    _word("tabular"),
    _word("frozen_encoder"),
    _word("slow_transform"),
    _word("jpeg_decode"),
    _word("slow_collate"),
    _word("remote"),
    _word("own_arrays", "Fields", "collate_tensor_fn"),
    _word("jitter_folder", "ColorJitter"),
    _word("ten_views", "Views", "Pictures", "ColorJitter", "RandomResizedCrop"),
    Case("generator", "generator.py", ("--work", "60"), ("make_sample",), "pace.py"),
    Case("generator_light", "generator.py", ("--work", "0")),
    Case("thread_ahead", "thread_ahead.py", ("--work", "60"), ("read",)),
    Case("thread_ahead_light", "thread_ahead.py", ("--work", "0")),
    Case("pool_ahead", "pool_ahead.py", ("--work", "200"), ("make_sample",), "pace.py"),
    Case("two_ranks", "two_ranks.py", ("--work", "100"), ("make_sample",), "pace.py", _RANKS),
    Case("two_ranks_light", "two_ranks.py", ("--work", "0"), (), "", _RANKS),
    Case("namespace", "slow_transform.py", (), ("Speckle",), "", _APART),
    Case("lightning", "in_lightning.py", ("--work", "200"), ("make_sample",), "pace.py", needs="lightning"),
    Case("accelerate", "in_accelerate.py", ("--work", "60"), ("make_sample",), "pace.py", needs="accelerate"),
)
