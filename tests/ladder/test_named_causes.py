"""The first cause named is the line or the transform that was made costly, in datasets as people write them."""

from __future__ import annotations

import random
import time
import wave
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset, Subset, default_collate
from torchvision import transforms
from torchvision.datasets import FakeData

from pipediag.analysis.numbers.chain import grains, merged
from pipediag.analysis.numbers.hot_lines import of_stage
from pipediag.ladder.workers.rung_switch import RungSwitch
from pipediag.ladder.workers.worker_side import WorkerSide
from pipediag.loop.wrappers import StagedCollate, StagedDataset, StagedIterable
from pipediag.session import Inside
from pipediag.usercode.places import short

HERE = short(__file__)


def line_of(mark: str) -> str:
    source = Path(__file__).read_text().splitlines()
    (number,) = (number for number, text in enumerate(source, 1) if text.endswith(f"# {mark}"))
    return f"{HERE}:{number}"


def inspected(dataset: Any, looks: int) -> Inside:
    """Make batches as a worker does, until several samples were timed and lines looked at so many times."""
    side, found = WorkerSide(dataset, default_collate, RungSwitch(), []), Inside()
    collate, until = StagedCollate(side), time.monotonic() + 30
    stream = iter(StagedIterable(side)) if isinstance(dataset, IterableDataset) else None
    try:
        while (found.looks < looks or found.samples < 4) and time.monotonic() < until:
            samples = [next(stream), next(stream)] if stream else StagedDataset(side).__getitems__([0, 1])
            notes = collate(samples).notes
            found = notes.inside if notes is not None and notes.inside is not None else found
    finally:
        side.close()
    return merged([found])


def first_cause(dataset: Any, looks: int = 8) -> tuple[str, str]:
    """Return name and place of what takes most of a sample's time: a line of loading, or a transform."""
    inside = inspected(dataset, looks)
    lines = of_stage(inside, "load")
    whole = sum(line.share for line in lines)
    causes = [(inside.load.wall_ms * line.share / whole, line.name, line.where) for line in lines]
    causes += [(one.cost.wall_ms, one.name, one.where) for one in grains(inside.links)]
    return max(causes)[1:]


class Items(Dataset[Any]):
    def __len__(self) -> int:
        return 8


class Slow:
    def __call__(self, x: Any) -> Any:
        time.sleep(0.005)
        return x + 1


class SlowModule(nn.Module):
    def forward(self, x: Any) -> Any:
        time.sleep(0.005)
        return x + 1


def quick(x: Any) -> Any:
    return x + 1


class Speech(Items):
    """Reads recordings with the standard library and computes features in the dataset's own code."""

    def __init__(self, file: Path) -> None:
        self.file = str(file)

    def read(self) -> Any:
        with wave.open(self.file) as recording:
            return np.frombuffer(recording.readframes(recording.getnframes()), np.int16).astype(np.float32)

    def features(self, signal: Any) -> Any:
        frames = np.lib.stride_tricks.sliding_window_view(signal, 512)[::8]
        spectrum = np.fft.rfft(frames * np.hanning(512), 4096)  # spectrum
        return np.log(np.abs(spectrum[:100, :80]) + 1e-6)

    def __getitem__(self, index: int) -> Any:
        return self.features(self.read()), index


class Rows(Items):
    """Parses text in Python; a loop runs over several lines."""

    def tokens(self, text: str) -> list[int]:
        found = []
        for word in text.split():
            total = 0
            for letter in word:
                total = (31 * total + ord(letter)) % 9973
            found.append(total)
        return found

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(self.tokens("several words " * 5000)[:9]), index


class Archive(IterableDataset[Any]):
    def decode(self, index: int) -> Any:
        time.sleep(0.01)  # decode
        return torch.zeros(3)

    def __iter__(self) -> Iterator[Any]:
        for index in range(10000):
            yield self.decode(index), index


class Wrapped(Items):
    """The user's own wrapper around another dataset."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getitem__(self, index: int) -> Any:
        return self.inner[index]


class Augmented(Items):
    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __getitem__(self, index: int) -> Any:
        return self.transform(torch.zeros(3)), index


class ByPhase(Items):
    def __init__(self, transform: Any) -> None:
        self.phases = {"train": transform}

    def __getitem__(self, index: int) -> Any:
        return self.phases["train"](torch.zeros(3)), index


class OneOf:
    """As albumentations has it."""

    def __init__(self, *parts: Any) -> None:
        self.transforms = list(parts)

    def __call__(self, x: Any) -> Any:
        return random.choice(self.transforms)(x)


class Views:
    """Many crops, each through a chain of its own that shares a part with the others."""

    def __init__(self, part: Any) -> None:
        self.first = transforms.Compose([quick, part])
        self.others = transforms.Compose([part, quick])

    def __call__(self, x: Any) -> Any:
        return torch.stack([self.first(x), *(self.others(x) for _ in range(3))])


class TestLoading:
    def test_features_in_the_datasets_own_code(self, tmp_path: Path) -> None:
        with wave.open(str(tmp_path / "a.wav"), "wb") as recording:
            recording.setnchannels(1)
            recording.setsampwidth(2)
            recording.setframerate(16000)
            recording.writeframes(np.random.default_rng(0).integers(-999, 999, 16000, np.int16).tobytes())
        name, where = first_cause(Speech(tmp_path / "a.wav"), looks=60)
        assert where == line_of("spectrum")
        assert name.startswith(("np.fft.rfft", "spectrum = "))

    def test_a_loop_in_python(self) -> None:
        """Its lines share the time."""
        name, where = first_cause(Rows())
        begin = Rows.tokens.__code__.co_firstlineno
        assert where in [f"{HERE}:{begin + n}" for n in range(8)], name

    def test_a_stream(self) -> None:
        assert first_cause(Archive()) == ("time.sleep", line_of("decode"))

    def test_a_librarys_dataset(self) -> None:
        """None of its lines is the user's."""
        lines = of_stage(inspected(FakeData(8, (3, 256, 256), transform=np.array), looks=8), "load")
        assert lines and all(line.where.startswith("torchvision/") for line in lines)

    def test_nothing_is_looked_at_while_the_loop_is_timed(self) -> None:
        side = WorkerSide(Archive(), default_collate, switch := RungSwitch(), [])
        stream = iter(StagedIterable(side))
        with switch.undisturbed():
            for _ in range(5):
                StagedCollate(side)([next(stream)])
        side.close()
        (state,) = side._states.values()
        assert state.inspection is None or state.inspection.lines.looks == 0


@pytest.mark.parametrize(
    "chain",
    [
        lambda slow: transforms.Compose([quick, transforms.Compose([quick, transforms.Compose([slow])])]),
        lambda slow: transforms.RandomApply([slow], p=0.9),
        lambda slow: transforms.RandomOrder([quick, slow]),
        lambda slow: OneOf(slow, slow),
        lambda slow: Views(slow),
        lambda slow: Views(transforms.RandomApply([slow], p=0.9)),
    ],
    ids=["nested", "applied at random", "in random order", "one of several", "views", "views at random"],
)
@pytest.mark.parametrize("hold", [Augmented, ByPhase, lambda t: Wrapped(Subset(Augmented(t), range(8)))])
def test_a_transform_inside_others(chain: Callable[[Any], Any], hold: Callable[[Any], Any]) -> None:
    random.seed(0)
    torch.manual_seed(0)
    assert first_cause(hold(chain(Slow())), looks=0) == ("Slow", f"{HERE}:{Slow.__call__.__code__.co_firstlineno - 1}")


def test_a_module_inside_a_sequential() -> None:
    chain = nn.Sequential(nn.Identity(), nn.Sequential(SlowModule(), nn.Identity()))
    assert first_cause(Augmented(chain), looks=0)[0] == "SlowModule"
