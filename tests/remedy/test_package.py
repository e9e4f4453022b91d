"""Importing the remedy is cheap, and without torchvision says what to do."""

from __future__ import annotations

import subprocess
import sys


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


def test_importing_the_package_imports_neither_torch_nor_torchvision() -> None:
    program = "import sys, pipediag, pipediag.remedy; print(sorted({'torch', 'torchvision'} & set(sys.modules)))"
    assert run(program).stdout == "[]\n"


def test_without_torchvision_it_says_what_to_do() -> None:
    ended = run("import sys; sys.modules['torchvision'] = None; import pipediag; pipediag.offload")
    assert ended.returncode == 1
    assert ended.stderr.endswith(
        'pipediag.errors.UsageError: moving transforms needs torchvision: pip install "pipediag[vision]"\n'
    )
