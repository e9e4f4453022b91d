"""The user's code runs once for a sample, also where a late sample takes a branch that cannot be recorded."""

from __future__ import annotations

import json
import pickle
import random
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from PIL import ImageDraw
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate
from torch.utils.data._utils import fetch
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from pipediag.remedy.loader import offload
from pipediag.replay.pack.packed_batch import Packed
from pipediag.replay.plan import Plan
from pipediag.replay.record.scouting import find
from pipediag.replay.run.replay import replay
from pipediag.replay.worker import AlsoExecuted, Executed, PackingSide, Plainly, Sent, Unrecorded
from pipediag.usercode import randomness, tree

from .sameness import image, picture, pixels

LATE = 5


class Late(Dataset[Any]):
    """Its sample ``LATE`` is changed by code that needs pixels, inside the chain or after it."""

    def __init__(self, make: Callable[[int], Any], change: Callable[[Any], Any], inside: bool) -> None:
        self.make, self.change, self.inside = make, change, inside
        last = [v2.PILToTensor()] if make is picture else []
        self.transform = v2.Compose(
            [v2.RandomHorizontalFlip(), v2.ColorJitter(0.5), self._own, v2.RandomVerticalFlip(), *last]
        )
        self.index, self.calls = -1, 0

    def _own(self, value: Any) -> Any:
        return self.change(value) if self.index == LATE and self.inside else value

    def __getitem__(self, index: int) -> Any:
        self.index = index
        self.calls += 1
        value = self.transform(self.make(index))
        if index == LATE and not self.inside:
            value = self.change(value)
        return value, random.random(), torch.rand(())


def scaled(x: Tensor) -> Tensor:
    return (x * x.float().mean()).to(x.dtype)


def through_numpy(x: Tensor) -> Tensor:
    return torch.from_numpy(x.numpy()[:, ::-1].copy())


def in_place(x: Tensor) -> Tensor:
    x.bitwise_xor_(1)
    return x


def by_an_index(x: Tensor) -> Tensor:
    x[0, ::2] = 7
    return x


def through_a_view(x: Tensor) -> Tensor:
    part = x[:, 3:20, 4:9]
    part.fill_(9)
    return x


def after_a_call(x: Tensor) -> Tensor:
    turned = F.horizontal_flip(x)
    x.zero_()
    return turned


def after_a_look(x: Tensor) -> Tensor:
    x.float().mean()
    turned = F.horizontal_flip(x)
    x.zero_()
    return turned


def one_by_one(x: Tensor) -> Tensor:
    made: Tensor = torch.func.vmap(lambda channel: channel * 2)(x)
    return made


def beside_another(x: Tensor) -> Tensor:
    made: Tensor = torch.func.vmap(lambda channel: channel // 2 + x[0] // 3)(x)
    return made


def gradient(x: Tensor) -> Tensor:
    made: Tensor = torch.func.grad(lambda value: (value**2).sum())(x.float())
    return made.to(x.dtype)


def traced(x: Tensor) -> Tensor:
    made: Tensor = torch.jit.trace(lambda value: value // 2, x)(x)
    return made


def unusual(x: Any) -> Any:
    return F.resize(x, [40, 56], interpolation=v2.InterpolationMode.HAMMING if isinstance(x, PIL.Image.Image) else 3)


def zeroed(x: Tensor) -> Tensor:
    return torch.zeros(3, *x.shape[1:], dtype=torch.uint8)


def listed(samples: Any) -> Any:
    return default_collate([*samples])


def drawn_on(x: PIL.Image.Image) -> PIL.Image.Image:
    ImageDraw.Draw(x).rectangle((3, 4, 20, 30), fill=(9, 8, 7))
    return x


def put(x: PIL.Image.Image) -> PIL.Image.Image:
    if x.getpixel((2, 3)) != (1, 1, 1):
        x.putpixel((2, 3), (1, 1, 1))
    return x


def by_array(x: PIL.Image.Image) -> PIL.Image.Image:
    return PIL.Image.fromarray(255 - np.asarray(x))


def pickled(x: PIL.Image.Image) -> Any:
    return pickle.loads(pickle.dumps(x))


TENSORS = [
    scaled, through_numpy, in_place, by_an_index, through_a_view, after_a_call, after_a_look, one_by_one, unusual,
    beside_another, gradient, traced,
]  # fmt: skip
PICTURES = [drawn_on, put, by_array, pickled, unusual]


def sides(data: Late) -> PackingSide:
    return PackingSide(data, default_collate, find(data, default_collate, range(LATE), Plan()))


def made(sent: Sent) -> Any:
    assert isinstance(sent, (Packed, Unrecorded))
    batch = sent.batch if isinstance(sent, Unrecorded) else sent
    return replay(batch, torch.device("cpu")) if isinstance(batch, Packed) else batch


def plainly(data: Late, indices: range) -> tuple[Any, Any]:
    torch.manual_seed(1)
    random.seed(1)
    return default_collate([data[index] for index in indices]), randomness.state()


def recorded(side: PackingSide, indices: range) -> tuple[Any, Any]:
    torch.manual_seed(1)
    random.seed(1)
    return made(side.samples(indices)), randomness.state()


@pytest.mark.parametrize(
    ("make", "change", "inside"),
    [
        *((make, change, inside) for make in (pixels, image) for change in TENSORS for inside in (True, False)),
        *((picture, change, True) for change in PICTURES),
    ],
)
def test_a_late_branch(make: Callable[[int], Any], change: Callable[[Any], Any], inside: bool) -> None:
    data = Late(make, change, inside)
    side = sides(data)
    assert side._plan.pieces and side._plan.pieces[0].start <= 2
    theirs, state = plainly(data, range(4, 8))
    before = data.calls
    ours, after = recorded(side, range(4, 8))
    assert data.calls == before + 4, "the user's code ran again"
    assert randomness.moved(state, after) is None
    assert type(ours[0]) is type(theirs[0]) and torch.equal(ours[0], theirs[0])
    assert all(torch.equal(one, two) for one, two in zip(ours[1:], theirs[1:], strict=True))


class SomePlain(Late):
    """Its sample ``LATE`` goes around the transform, so it holds no recorded image."""

    def __getitem__(self, index: int) -> Any:
        if index != LATE:
            return super().__getitem__(index)
        self.calls += 1
        return pixels(index), random.random(), torch.rand(())


def drawing(samples: Any) -> Any:
    return default_collate(samples), torch.rand(()), np.random.rand()


@pytest.mark.parametrize("collate", [default_collate, list, drawing])
def test_samples_of_which_some_hold_no_recorded_image_draw_once(collate: Callable[[Any], Any]) -> None:
    data = SomePlain(pixels, scaled, False)
    side = PackingSide(data, collate, sides(data)._plan)
    kept = randomness.state()
    theirs = [collate([data[index] for index in indices]) for indices in (range(4, 8), range(8, 12))]
    state, before = randomness.state(), data.calls
    randomness.restore(kept)
    ours = [made(side.samples(indices)) for indices in (range(4, 8), range(8, 12))]
    assert data.calls == before + 8, "the user's code ran again"
    assert randomness.moved(state, randomness.state()) is None
    for one, two in zip(tree.leaves(ours), tree.leaves(theirs), strict=True):
        assert torch.equal(one, two) if isinstance(two, Tensor) else one == two


@pytest.mark.parametrize("index", [4, 6])
def test_an_error_of_the_dataset_is_raised_at_once(index: int) -> None:
    def make(number: int) -> Tensor:
        if number == index and data.calls > LATE * 2:
            raise LookupError(number)
        return pixels(number)

    data = Late(make, scaled, False)
    side = sides(data)
    data.calls = 100
    with pytest.raises(LookupError):
        side.samples(range(4, 8))
    assert data.calls == 100 + 1 + index - 4


def corrupt(x: Tensor) -> Tensor:
    raise ValueError("corrupt")


def dark(x: Tensor) -> Tensor:
    if x.float().mean() < 999:
        raise AssertionError("dark")
    return x


def unlabelled(x: Tensor) -> Tensor:
    return {}[x.shape]  # type: ignore[no-any-return]


def absent(x: Tensor) -> Tensor:
    try:
        PIL.Image.open(b"/absent")
    except OSError as error:
        raise RuntimeError("absent") from error
    return x


def not_json(x: Tensor) -> Tensor:
    json.loads("{")
    return x


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("change", [corrupt, dark, unlabelled, absent, not_json])
def test_an_error_that_user_code_raises_with_a_recorded_image_is_raised_at_once(
    change: Callable[[Any], Any], together: bool
) -> None:
    data = Late(pixels, change, False)
    side = sides(data)
    if together:
        data.__getitems__ = lambda indices: [data[k] for k in indices]  # type: ignore[attr-defined]
    with pytest.raises(Exception) as expected:
        plainly(data, range(4, 8))
    state, before = randomness.state(), data.calls
    with pytest.raises(expected.type, match=re.escape(str(expected.value))):
        recorded(side, range(4, 8))
    assert data.calls == before + 2 and randomness.moved(state, randomness.state()) is None


def test_an_error_of_the_collate_function_is_raised_at_once() -> None:
    calls = []

    def collate(samples: Any) -> Any:
        calls.append(len(samples))
        raise ValueError("ragged")

    data = Late(pixels, scaled, False)
    side = PackingSide(data, collate, sides(data)._plan)
    with pytest.raises(ValueError, match="ragged"):
        side.samples(range(4))
    assert calls == [4]


def test_samples_of_which_only_some_are_recorded_leave_the_generators_as_they_were() -> None:
    data = Late(pixels, zeroed, False)
    side = PackingSide(data, listed, sides(data)._plan)
    theirs, state = plainly(data, range(4, 8))
    before = data.calls
    ours, after = recorded(side, range(4, 8))
    assert data.calls == before + 4 and randomness.moved(state, after) is None
    assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])


def test_the_collate_function_runs_once_for_a_batch_without_recorded_images() -> None:
    calls = []

    def collate(samples: Any) -> Any:
        calls.append(random.random())
        return default_collate(samples)

    data = Late(pixels, zeroed, False)
    side = PackingSide(data, collate, sides(data)._plan)
    theirs, _ = plainly(data, range(LATE, LATE + 1))
    ours, _ = recorded(side, range(LATE, LATE + 1))
    assert len(calls) == 1 and torch.equal(ours[0], theirs[0])
    torch.manual_seed(1)
    random.seed(1)
    assert side.samples(range(LATE, LATE + 1)).launches == []
    after = random.random()
    plainly(data, range(LATE, LATE + 1))
    assert (calls[1], after) == (random.random(), random.random())


def of_exact_type(x: Tensor) -> Tensor:
    if type(x) is not Tensor:
        raise TypeError(type(x))
    return x


def hidden(x: Tensor) -> Tensor:
    try:
        return of_exact_type(x)
    except TypeError as error:
        raise ValueError("no tensor") from error


@pytest.mark.parametrize("change", [of_exact_type, hidden])
def test_an_error_that_a_recording_image_causes_is_not_seen(change: Callable[[Any], Any]) -> None:
    data = Late(pixels, change, False)
    theirs, state = plainly(data, range(4, 8))
    ours, after = recorded(sides(data), range(4, 8))
    assert torch.equal(ours[0], theirs[0]) and randomness.moved(state, after) is None


class Single:
    """An object that cannot be copied."""

    def __reduce__(self) -> Any:
        raise AssertionError("a copy is made")


def test_nothing_of_the_users_is_copied_as_evidence() -> None:
    data = Late(pixels, scaled, False)
    side = sides(data)

    def collate(samples: Any) -> Any:
        return default_collate(samples), [Single() for _ in samples]

    made = PackingSide(data, collate, side._plan).samples(AlsoExecuted(range(4), 2))
    assert isinstance(made, Executed)
    real, told = pickle.loads(made.evidence)
    assert told.packed is not None and len(told.samples) == len(real.samples) == 2


def test_warnings_name_the_file_that_calls_the_dataset_as_without_the_remedy() -> None:
    class Warns(Late):
        def __getitem__(self, index: int) -> Any:
            warnings.warn("odd", stacklevel=2)
            return super().__getitem__(index)

    def collate(samples: Any) -> Any:
        warnings.warn("few", stacklevel=2)
        return default_collate(samples)

    data = Warns(pixels, scaled, False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        side = PackingSide(data, collate, sides(data)._plan)
    for request in (range(4), AlsoExecuted(range(4), 2), Plainly(range(4)), range(4, 8)):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            side.samples(request)
        assert len(seen) == 5 and {one.filename for one in seen} == {fetch.__file__}


class Written(Dataset[torch.Tensor]):
    """Plain code or a link of its transform makes a call on each image. Late in the training, it overwrites the image's
    memory, which it gets as an array before or after the call."""

    def __init__(self, call: Callable[[Any], Any], memory: Callable[[Any], Any], before: bool, inside: bool) -> None:
        self.call, self.memory, self.before, self.inside = call, memory, before, inside
        self.late, self.calls = False, 0
        self.pixels = torch.rand(16, 3, 8, 8)
        self.transform = v2.Compose([v2.RandomHorizontalFlip(), self._own, v2.RandomVerticalFlip()])

    def __len__(self) -> int:
        return len(self.pixels)

    def _own(self, x: Any) -> Any:
        if not self.late:
            return self.call(x)
        array = self.memory(x) if self.before else None
        made = self.call(x)
        (array if self.before else self.memory(x))[:] = 0
        return made

    def __getitem__(self, index: int) -> torch.Tensor:
        self.calls += 1
        x = self.pixels[index].clone()
        made: torch.Tensor = self.transform(x) if self.inside else self._own(x)
        return made


def assert_trained_alike(make: Callable[[], Written], collate: Callable[[Any], Any]) -> None:
    """Check that a training of three epochs, the last one late, gets the same images with the remedy, and that the
    user's code runs once for each but the first, which are tried before."""

    def images(remedy: bool) -> list[Tensor]:
        torch.manual_seed(0)
        data = make()
        loader: Any = DataLoader(data, 4, collate_fn=collate)
        loader = offload(loader, "cpu") if remedy else loader
        found = []
        for epoch in range(3):
            data.late, before = epoch == 2, data.calls
            found += [image for batch in loader for image in batch]
            assert data.calls == before + len(data)
        return found

    plain, remedied = images(False), images(True)
    assert len(plain) == len(remedied) == 48 and all(map(torch.equal, plain, remedied))


MEMORY: dict[str, Callable[[Any], Any]] = {
    "numpy": lambda x: x.numpy(),
    "asarray": np.asarray,
    "detach": lambda x: x.detach().numpy(),
    "data": lambda x: x.data,
    "dlpack": np.from_dlpack,
    "view": lambda x: x.view(3, -1).numpy(),
    "slice": lambda x: x[:].numpy(),
    "unsqueeze": lambda x: x.unsqueeze(0).numpy(),
    "contiguous": lambda x: x.contiguous().numpy(),
    "crop": lambda x: F.crop(x, 0, 0, 4, 4).numpy(),
}


@pytest.mark.parametrize(
    "call",
    [lambda x: x * 2, lambda x: F.adjust_brightness(x, 0.5), lambda x: F.crop(x, 1, 1, 6, 6)],
    ids=["arithmetic", "brightness", "crop"],
)
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize(("memory", "inside"), [(how, inside) for how in MEMORY for inside in (True, False)])
def test_memory_of_an_image_is_overwritten_by_late_samples(
    call: Callable[[Any], Any], memory: str, before: bool, inside: bool
) -> None:
    """No tensor counts what is written into an array."""
    if memory == "dlpack" and before and not inside:
        pytest.skip("nothing of it is left to see on a tensor of the script's own")
    if memory == "dlpack" and not np.from_dlpack(torch.zeros(1)).flags.writeable:
        pytest.skip("torch hands such arrays out to be read only")

    assert_trained_alike(lambda: Written(call, MEMORY[memory], before, inside), default_collate)


def row(x: Any) -> Any:
    part = x[0]
    part.float().mean()
    x.mul_(2)
    return torch.stack([part, x[0], x[1]])


def flat(x: Any) -> Any:
    part = x.view(3, -1)
    part.sum()
    x[0] = 0.5
    return torch.cat([part, x.view(3, -1)])


def flattened(x: Any) -> Any:
    part = x.flatten(1)
    scale = float(part.sum())
    x.clamp_(0.2, 0.4)
    return part * 2 + scale


def cropped(x: Any) -> Any:
    part = F.crop(x, 1, 1, 4, 4)
    float(part.sum())
    x.mul_(3)
    return part


def of_a_copy(x: Any) -> Any:
    copy = x.clone()
    part = copy[1]
    float(part.sum())
    copy.mul_(3)
    return torch.stack([part, copy[0], x[1]])


def permuted(x: Any) -> Any:
    part = x.permute(1, 2, 0)
    part.numpy()
    F.normalize(x, [0.5] * 3, [0.5] * 3, inplace=True)
    return part.permute(2, 0, 1)


def beneath(x: Any) -> Any:
    x.float().mean()
    part = x[0]
    part.zero_()
    return F.horizontal_flip(x)


def by_a_row(x: Any) -> Any:
    x[1].zero_()
    return x


def by_a_part_of_a_row(x: Any) -> Any:
    x.view(3, -1)[:, ::2].mul_(2)
    x.unbind(0)[1].zero_()
    return x


def by_another_row(x: Any) -> Any:
    x[0] = x[1]
    return F.vertical_flip(x)


def of_another_type(x: Any) -> Any:
    typed = tv_tensors.Image(x)
    typed.mul_(2)
    typed.exp_()
    return x


def part_of_a_flip(x: Any) -> Any:
    turned = torch.flip(x, [0])
    part = turned[0]
    part.zero_()
    return turned


def part_of_joined(x: Any) -> Any:
    joined = torch.cat([x, x], 1)
    joined[:, :4].exp_()
    return joined


def row_of_a_stack(x: Any) -> Any:
    stack = torch.stack([x, F.horizontal_flip(x)])
    first = stack[0]
    float(first.sum())
    stack.mul_(0.5)
    stack.exp_()
    return torch.stack([first, stack[1], x])


def stack_of_one(x: Any) -> Any:
    one = x[None]
    one.exp_()
    return torch.cat([one[0], x])


def recorded_and_not(x: Any) -> Any:
    """Two calls are recorded that write, and one is not."""
    part = F.crop(x, 1, 1, 4, 4)
    x.mul_(2)
    part.add_(1)
    x.exp_()
    part.sub_(0.5)
    return torch.cat([x.flatten(), part.flatten()]).view(1, -1, 4)


def another_in_its_place(x: Any) -> Any:
    """Each pixel is computed, of one that is written into later by a view."""
    part = x.detach()
    x.add_(torch.rand_like(x))
    part[0].zero_()
    return x


def computed_by_parts(x: Any) -> Any:
    part = x.permute(2, 1, 0)
    x.mul_(torch.rand_like(x))
    part.exp_()
    return x + part.permute(2, 1, 0)


def of_its_parts(x: Any) -> Any:
    made = x * torch.rand_like(x)
    part = made[1]
    made[2, 3:5].zero_()
    part.exp_()
    return made


CHANGES = [
    row, flat, flattened, cropped, of_a_copy, permuted, beneath, by_a_row, by_a_part_of_a_row, by_another_row,
    of_another_type, part_of_a_flip, part_of_joined, row_of_a_stack, stack_of_one, recorded_and_not,
    another_in_its_place, computed_by_parts, of_its_parts,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("inside", [True, False])
def test_a_part_that_code_got_shows_what_is_written_later(change: Callable[[Any], Any], inside: bool) -> None:
    assert_trained_alike(lambda: Changed(change, inside), list)


class Changed(Written):
    """Late in the training it changes its images in another way."""

    def __init__(self, change: Callable[[Any], Any], inside: bool) -> None:
        super().__init__(change, torch.clone, False, inside)

    def _own(self, x: Any) -> Any:
        bright = F.adjust_brightness(x, 0.8)
        return self.call(bright) if self.late else bright
