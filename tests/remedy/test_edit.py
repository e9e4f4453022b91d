"""The two lines that keep a remedy: where they go, and when they are not offered."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from pipediag.remedy.edit import Holder, NotCertain, edit_for, unified, wrapped

ROOT = Path(__file__).parents[2]
PRINT = Path(__file__).parent / "scripts" / "print_edit.py"


def python(*command: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done


def patched(diff: str, file: Path) -> None:
    subprocess.run(["patch", "-p0"], input=diff, text=True, check=True, capture_output=True, cwd=file.parent)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("example", "arguments"),
    [
        ("augmentations.py", []),
        ("caching_article.py", ["--raw-size", "96"]),
        ("frozen_encoder.py", []),
        ("imagefolder.py", ["--images", "40", "--data", "pictures"]),
    ],
)
def test_examples_run_with_the_change(tmp_path: Path, example: str, arguments: list[str]) -> None:
    arguments = ["--steps", "2", "--warmup", "1", *arguments]
    file = tmp_path / example
    shutil.copy(ROOT / "examples" / example, file)
    diff = python(PRINT, example, *arguments, cwd=tmp_path).stdout
    added = [line for line in diff.splitlines() if line.startswith("+") and not line.startswith("+++")]
    assert added == ["+import pipediag", "+    loader = pipediag.offload(loader, device)"], diff
    assert not [line for line in diff.splitlines() if line.startswith("-") and not line.startswith("---")]
    patched(diff, file)
    assert "throughput" in python(example, *arguments, cwd=tmp_path).stdout


def holder(name: str = "loader", function: str = "<module>", line: int = 1, devices: tuple[str, ...] = ()) -> Holder:
    return Holder("train.py", function, line, name, devices)


def added(before: str, after: str) -> list[str]:
    assert [line for line in after.splitlines() if line in before.splitlines()] == before.splitlines()
    return [line for line in after.splitlines() if line not in before.splitlines()]


class TestWrapped:
    def test_behind_a_statement_of_several_lines(self) -> None:
        source = (
            '"""Doc."""\nimport torch\nfrom x import (\n    y,\n)\nloader = DataLoader(\n    data,\n)  # fast\nrun()\n'
        )
        assert wrapped(source, holder(), "cuda").splitlines() == [
            '"""Doc."""',
            "import torch",
            "from x import (",
            "    y,",
            ")",
            "import pipediag",
            "loader = DataLoader(",
            "    data,",
            ")  # fast",
            'loader = pipediag.offload(loader, "cuda")',
            "run()",
        ]

    def test_the_device_of_the_script_is_used_where_it_is_known_by_then(self) -> None:
        source = "device = f()\nloader = DataLoader(x)\n"
        assert "offload(loader, device)" in wrapped(source, holder(devices=("device",)), "cuda")
        later = "loader = DataLoader(x)\ndevice = f()\n"
        assert 'offload(loader, "cuda")' in wrapped(later, holder(devices=("device",)), "cuda")
        inside = "def main(dev):\n    loader = DataLoader(x)\ndevice = f()\n"
        of_main = holder("loader", "main", 1, ("dev", "device"))
        assert "    loader = pipediag.offload(loader, dev)" in wrapped(inside, of_main, "cuda")
        of_module = holder("loader", "main", 1, ("device",))
        assert "    loader = pipediag.offload(loader, device)" in wrapped(inside, of_module, "cuda")

    def test_an_attribute_is_searched_in_all_methods_of_the_class(self) -> None:
        source = (
            "class Trainer:\n    def __init__(self):\n        self.loader = DataLoader(x)\n\n"
            "    def fit(self):\n        for batch in self.loader:\n            pass\n"
        )
        found = wrapped(source, holder("self.loader", "fit", 5), "cuda")
        assert added(source, found) == [
            "import pipediag",
            '        self.loader = pipediag.offload(self.loader, "cuda")',
        ]

    def test_a_tuple_counts(self) -> None:
        source = "train, val = loaders()\n"
        assert added(source, wrapped(source, holder("train"), "cpu"))[1] == 'train = pipediag.offload(train, "cpu")'
        alone = added(source, wrapped(source, holder("train"), "cuda", {"transforms": False}))
        assert alone[1] == 'train = pipediag.offload(train, "cuda", transforms=False)'
        decoded = added(source, wrapped(source, holder("train"), "cuda", {"approximate": True}))
        assert decoded[1] == 'train = pipediag.offload(train, "cuda", approximate=True)'

    def test_decorated_functions_begin_at_their_decorator(self) -> None:
        source = "@record\ndef main():\n    loader = DataLoader(x)\n"
        assert "    loader = pipediag" in wrapped(source, holder("loader", "main", 1), "cpu")

    def test_no_second_import(self) -> None:
        source = "import pipediag\nloader = DataLoader(x)\n"
        assert added(source, wrapped(source, holder(), "cpu")) == ['loader = pipediag.offload(loader, "cpu")']

    def test_other_scopes_do_not_count(self) -> None:
        source = "loader = DataLoader(x)\ndef f():\n    loader = 3\n    return [loader for loader in y]\n"
        assert "pipediag.offload" in wrapped(source, holder(), "cpu")

    def test_names_beyond_ascii(self) -> None:
        source = "if 'ä':\n    größe = 1\n    loader = DataLoader('ö')\n"
        assert "    loader = pipediag.offload" in wrapped(source, holder(), "cpu")

    @pytest.mark.parametrize(
        ("source", "name", "why"),
        [
            ("loader = DataLoader(x)\nloader = prepare(loader)\n", "loader", "several lines"),
            ("if a:\n    loader = A()\nelse:\n    loader = B()\n", "loader", "several lines"),
            ("loader = DataLoader(x); run()\n", "loader", "holds more"),
            ("if a: loader = DataLoader(x)\n", "loader", "holds more"),
            ("for loader in loaders:\n    pass\n", "loader", "no plain assignment"),
            ("while loader := f():\n    pass\n", "loader", "no plain assignment"),
            ("loader = None\ndef f():\n    global loader\n    loader = DataLoader(x)\n", "loader", "several lines"),
            ("from lib import loader\n", "loader", "no statement"),
        ],
    )
    def test_no_edit_without_certainty(self, source: str, name: str, why: str) -> None:
        with pytest.raises(NotCertain, match=why):
            wrapped(source, holder(name), "cpu")

    def test_not_in_another_function(self) -> None:
        with pytest.raises(NotCertain, match="not where it was"):
            wrapped("def main():\n    loader = DataLoader(x)\n", holder("loader", "main", 7), "cpu")

    @pytest.mark.parametrize("end", ["\n", "\r\n", ""])
    def test_patch_applies_whatever_ends_the_lines(self, tmp_path: Path, end: str) -> None:
        stop = end or "\n"
        before = stop.join(["import torch", "x = 1", "loader = DataLoader(x)"]) + end
        after = wrapped(before, holder(), "cpu")
        file = tmp_path / "train.py"
        file.write_bytes(before.encode())
        subprocess.run(
            ["patch", "--binary", "-p0"],
            input=unified(before, after, "train.py").encode(),
            check=True,
            capture_output=True,
            cwd=tmp_path,
        )
        assert file.read_bytes() == after.encode()


def build() -> object:
    loader = object()
    return inner(loader)


def inner(given: object) -> object:
    return edit_for(given, torch.device("cpu")), edit_for(object(), torch.device("cpu"))


def test_the_name_is_found_by_identity_further_up_the_stack() -> None:
    known, unknown = build()  # type: ignore[misc]
    assert '+    loader = pipediag.offload(loader, "cpu")' in known.diff
    assert unknown.diff == "" and "no variable" in unknown.why_not


def test_a_script_that_is_nested_deep_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "deep.py").write_text(
        "def find(edit_for, device):\n    loader = object()\n"
        f"    total = {'+'.join(['1'] * 1500)}\n    return edit_for(loader, device)\n"
    )
    names: dict[str, Any] = {}
    exec(compile((tmp_path / "deep.py").read_text(), tmp_path / "deep.py", "exec"), names)
    edit = names["find"](edit_for, torch.device("cpu"))
    assert edit.diff == "" and edit.why_not.endswith("deep.py is nested too deep")
