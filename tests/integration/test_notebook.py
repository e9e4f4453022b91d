"""In a notebook, a measured loop shows its diagnosis, and the next cell trains on as if nothing had happened."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="notebooks need nbclient and ipykernel")
nbclient = pytest.importorskip("nbclient", reason="notebooks need nbclient and ipykernel")
pytest.importorskip("ipykernel", reason="notebooks need nbclient and ipykernel")

ROOT = Path(__file__).parents[2]
SETUP = """
import time, torch, pipediag
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.full((8,), float(index))

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loader = DataLoader(Slow(), batch_size=8, num_workers=WORKERS)

def train_step(batch):
    optimizer.zero_grad()
    model(batch).pow(2).mean().backward()
    optimizer.step()

weight = model[0].weight.clone()
"""
DIAGNOSE = "diagnosis = pipediag.diagnose(loader, train_step, budget=3)\ndiagnosis"
UNTOUCHED = """
assert torch.equal(model[0].weight, weight) and model[1].num_batches_tracked == 0 and not optimizer.state
print(diagnosis)
"""
FAILS = """
def fails(batch, calls=[]):
    calls.append(1)
    if len(calls) > 30:
        raise ValueError("a label is out of range")
    train_step(batch)

try:
    pipediag.diagnose(loader, fails, budget=20)
except ValueError as error:
    print(repr(error.diagnosis))
"""


def executed(tmp_path: Path, *cells: str) -> list[Any]:
    """Run a notebook of these cells; their outputs by kind, cell by cell. An error in a cell is raised."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbformat.write(notebook, tmp_path / "loop.ipynb")
    notebook = nbformat.read(tmp_path / "loop.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute(cwd=str(tmp_path))
    return [cell.outputs for cell in notebook.cells]


@pytest.fixture(autouse=True)
def kernel_finds_this_pipediag(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A kernel of this interpreter, which reads nothing of the user's."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    for folder in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(folder, str(tmp_path / folder.lower()))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_cell_shows_the_diagnosis(workers: int, tmp_path: Path) -> None:
    setup = SETUP.replace("WORKERS", str(workers))
    _, shown, printed, failed = executed(tmp_path, setup, DIAGNOSE, UNTOUCHED, FAILS)
    (result,) = [output for output in shown if output.output_type == "execute_result"]
    assert result.data["text/plain"].startswith("<Diagnosis: ") and "possible" in result.data["text/plain"]
    assert "<" in result.data["text/html"]
    kinds = {output.get("name", output.output_type) for output in (*shown, *printed, *failed)}
    assert kinds == {"execute_result", "display_data", "stdout"}, "an error, or something on standard error"
    (bar,) = [output for output in shown if output.output_type == "display_data"]
    assert bar.data == {"text/plain": "", "text/html": ""}, "it is removed at the end"
    (screen,) = [output.text for output in printed]  # one text, not a picture of each line
    assert "YOUR TRAINING" in screen and screen.count("\n") <= 25
    assert any("<Diagnosis: " in output.get("text", "") for output in failed)
