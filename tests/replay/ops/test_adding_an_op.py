"""One file in the folder of the families adds an op: it is recorded, packed and replayed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torchvision.transforms import v2

from pipediag.replay.ops.op import NotRecordable
from pipediag.replay.run.per_sample import PerSample

FAMILY = '''
"""Compress as JPEG, and decode again."""

import torch
from torchvision.transforms.v2 import functional as F

from pipediag.replay.ops.exactness import exact
from pipediag.replay.ops.operation import Functional, Operation


def jpeg(state, quality):
    return [state.op("jpeg", quality)]


def _jpeg(x, numbers, static, bulk):
    return torch.stack([F.jpeg(image, int(quality)) for image, (quality,) in zip(x, numbers.tolist())])


OPERATIONS = (Operation("jpeg", _jpeg, exact),)
FUNCTIONALS = (Functional("jpeg", jpeg),)
'''
#: The property that every exact op has: the function's pixels, and the draws of the user's own code.
PROPERTY = """
import sys
from pipediag.replay.ops import families
families.__path__.append(sys.argv[1])

import torch
from torchvision.transforms import v2
from pipediag.replay.run.per_sample import PerSample

transform = v2.Compose([v2.JPEG((20, 90)), v2.RandomHorizontalFlip()])
images = torch.randint(0, 256, (6, 3, 16, 24), dtype=torch.uint8)
torch.manual_seed(1)
plain, drawn = torch.stack([transform(image) for image in images]), torch.get_rng_state()
torch.manual_seed(1)
assert torch.equal(PerSample(transform)(images), plain) and torch.equal(torch.get_rng_state(), drawn)

"""


@pytest.mark.skipif(not hasattr(v2, "JPEG"), reason="newer than this torchvision")
def test_one_file_adds_an_op(tmp_path: Path) -> None:
    with pytest.raises(NotRecordable):
        PerSample(v2.JPEG(50))(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))
    (tmp_path / "jpeg.py").write_text(FAMILY)
    done = subprocess.run([sys.executable, "-c", PROPERTY, tmp_path], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
