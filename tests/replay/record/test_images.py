"""Recording images: what they answer, and what they refuse."""

from __future__ import annotations

import copy
import functools
import io
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import PIL.Image
import PIL.ImageChops
import PIL.ImageDraw
import PIL.ImageFilter
import PIL.ImageOps
import pytest
import torch
import torchvision.transforms.functional as F1
from torch import Tensor
from torch.utils.data import default_collate
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from pipediag.patches import replaced
from pipediag.remedy import NotRecordable
from pipediag.replay.record.hooks import recording
from pipediag.replay.record.images import real
from pipediag.replay.record.plain_code import Tried
from pipediag.replay.record.session import session
from pipediag.replay.record.substitutes import is_recording, stand_in, stand_in_for_stack

from ...remedy.sameness import HEIGHT, WIDTH, floats, image, mask, picture, pixels

KINDS = pytest.mark.parametrize("make", [pixels, image, mask], ids=["tensor", "image", "mask"])


@pytest.fixture(autouse=True)
def while_recording() -> Iterator[None]:
    with recording():
        yield


# ---- answers


@KINDS
def test_a_recording_image_is_what_it_stands_for(make: Callable[[int], Tensor]) -> None:
    real = make(0)
    mine = stand_in(real)
    assert is_recording(mine) and not is_recording(real)
    for kind in (Tensor, tv_tensors.TVTensor, tv_tensors.Image, tv_tensors.Mask, tv_tensors.Video, PIL.Image.Image):
        assert isinstance(mine, kind) == isinstance(real, kind)
    assert torch.is_tensor(mine)
    assert F.get_size(mine) == [HEIGHT, WIDTH]


@KINDS
def test_shape_and_dtype(make: Callable[[int], Tensor]) -> None:
    real = make(0)
    mine = stand_in(real)
    answers: list[Callable[[Any], Any]] = [
        lambda x: x.shape,
        lambda x: x.shape[-2:],
        lambda x: x.size(),
        lambda x: x.size(-1),
        lambda x: x.size(dim=0),
        lambda x: x.dim(),
        lambda x: x.ndim,
        lambda x: x.numel(),
        len,
        lambda x: x.dtype,
        lambda x: x.device,
        lambda x: x.is_cuda,
        lambda x: x.requires_grad,
        lambda x: x.layout,
        lambda x: x.is_floating_point(),
        torch.is_floating_point,
        torch.numel,
    ]
    for answer in answers:
        assert answer(mine) == answer(real)
        assert type(answer(mine)) is type(answer(real))


@pytest.mark.parametrize("make", [pixels, image, picture])
def test_metadata_for_torchvision(make: Callable[[int], Any]) -> None:
    real = make(0)
    mine = stand_in(real)
    for functions in (F, F1):
        for name in ("get_size", "get_dimensions", "get_num_channels", "get_image_num_channels", "get_image_size"):
            if hasattr(functions, name):
                assert getattr(functions, name)(mine) == getattr(functions, name)(real), name
    assert v2.query_size([mine]) == v2.query_size([real]) if hasattr(v2, "query_size") else True


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_pictures(mode: str) -> None:
    real = picture(0).convert(mode)
    real.info["dpi"] = (72, 72)
    mine = stand_in(real)
    assert isinstance(mine, PIL.Image.Image) and not isinstance(mine, Tensor)
    for name in ("size", "width", "height", "mode", "info", "format"):
        assert getattr(mine, name) == getattr(real, name), name
    assert mine.getbands() == real.getbands()
    assert mine.convert(mode).size == mine.copy().size == real.size


@pytest.mark.parametrize("make", [pixels, image, picture])
def test_an_image_is_printed_with_its_pixels(make: Callable[[int], Any]) -> None:
    real, mine = make(0), stand_in(make(0))
    with pytest.raises(NotRecordable):
        str(mine)
    with session.going_on():
        assert str(mine).partition(" at 0x")[0] == str(real).partition(" at 0x")[0]


def test_the_notes_of_a_picture() -> None:
    real = picture(0)
    real.info["dpi"], real.format = (72, 72), "PNG"
    with session.going_on():
        mine = stand_in(real)
        assert (mine.info, mine.format) == (real.info, "PNG")
        settled = session.settled
        flipped, padded = mine.transpose(PIL.Image.Transpose.ROTATE_90), PIL.ImageOps.expand(mine, 1)
        assert session.settled == settled
        assert (flipped.info, flipped.format) == (real.info, None)
        assert (padded.info, padded.format) == (PIL.ImageOps.expand(real, 1).info, None)


def test_what_user_code_notes_on_a_picture() -> None:
    with session.going_on():
        mine = stand_in(picture(0)).transpose(PIL.Image.Transpose.ROTATE_90)
        assert getattr(mine, "note", 0) == 0
        mine.note = 3
        mine.info["note"] = 4
        assert (mine.note, mine.copy().info["note"], getattr(mine.copy(), "note", 0)) == (3, 4, 0)


ALIASES: list[tuple[str, Callable[[Any], Any]]] = [
    ("crop", lambda x: F.crop(x, 1, 2, 9, 9)),
    ("older crop", lambda x: F1.crop(x, 1, 2, 9, 9)),
    ("five_crop", lambda x: F.five_crop(x, [9, 8])[3]),
    ("centre", v2.CenterCrop(9)),
]


@pytest.mark.parametrize(
    "same", [lambda x: x.to(torch.uint8), lambda x: x.cpu(), lambda x: x.detach(), lambda x: x.contiguous()]
)
def test_a_conversion_that_changes_nothing_gives_the_image_itself(same: Any) -> None:
    with session.going_on():
        mine = F.horizontal_flip(stand_in(pixels(0)))
        assert same(mine) is mine
        same(mine)[:, 1:3, 1:3] = 7
        assert torch.equal(real(mine)[:, 1:3, 1:3], torch.full((3, 2, 2), 7, dtype=torch.uint8))


def test_attributes_that_code_has_set() -> None:
    image = pixels(0)
    image.note = "before"
    with session.going_on():
        mine = stand_in(image)
        assert mine.note == "before" and not mine.tape.settled
        flipped = F.horizontal_flip(mine)
        assert not hasattr(flipped, "note")
        flipped.note = "after"
        assert flipped.note == flipped.settled().note == "after"
    with pytest.raises(NotRecordable, match="'note' of an image is set"):
        F.horizontal_flip(stand_in(image)).note = "in a trial"


@pytest.mark.parametrize("alias", [alias for _, alias in ALIASES], ids=[name for name, _ in ALIASES])
@pytest.mark.parametrize("write", [lambda x: x[:, 1:3, 1:3].fill_(7), lambda x: x.__setitem__((slice(None),) * 3, 7)])
def test_what_is_written_into_a_view_is_seen_in_the_image(alias: Any, write: Callable[[Any], Any]) -> None:
    plain = F.horizontal_flip(pixels(0))
    write(alias(plain))
    with session.going_on():
        mine = F.horizontal_flip(stand_in(pixels(0)))
        view = alias(mine)
        write(view)
        with pytest.raises(NotRecordable):
            mine.tape.check()
        assert torch.equal(F.invert(mine), F.invert(plain)) and torch.equal(F.invert(view), F.invert(alias(plain)))
        view.zero_()
        alias(plain).zero_()
        assert torch.equal(mine.settled(), plain)


@pytest.mark.parametrize("alias", [alias for _, alias in ALIASES], ids=[name for name, _ in ALIASES])
def test_a_trial_records_nothing_of_an_image_after_a_view_of_it_is_written_into(alias: Any) -> None:
    mine = F.horizontal_flip(stand_in(pixels(0)))
    alias(mine)[:, 1:3, 1:3] = 7  # recorded
    with pytest.raises(NotRecordable, match="shares its memory"):
        F.invert(mine)


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (PIL.Image.fromarray, (HEIGHT, WIDTH, 3)),
        (PIL.Image.fromarray, (HEIGHT, WIDTH)),
        (torch.from_numpy, (3, HEIGHT, WIDTH)),
    ],
)
def test_an_image_of_an_array_that_is_overwritten_later(make: Callable[[Any], Any], shape: tuple[int, ...]) -> None:
    """A dataset may do so for late samples only, so that no trial has seen it."""
    array = np.full(shape, 7, dtype=np.uint8)
    array[..., :9] = 9
    given = make(array)
    want = np.asarray(F.vertical_flip(copy.deepcopy(given)))
    with session.going_on():
        mine = F.vertical_flip(stand_in(given))
        array[:] = 0
        mine.tape.check()
        assert np.array_equal(np.asarray(real(mine)), want)


def test_videos_of_which_some_are_real() -> None:
    one, other = (tv_tensors.Video(torch.rand(2, 3, 8, 9)) for _ in range(2))
    for order in (1, -1):
        plain = default_collate([F.horizontal_flip(one), other][::order])
        mine = default_collate([F.horizontal_flip(stand_in_for_stack(one)), other][::order])
        assert is_recording(mine) and torch.equal(real(mine), plain)
    with session.going_on():
        assert torch.equal(stand_in_for_stack(one).as_subclass(Tensor), one)


def test_a_call_is_pickled_while_its_function_is_replaced() -> None:
    """A cache replaces methods of Pillow's."""

    def copied(picture: PIL.Image.Image) -> Any:
        return picture.copy()

    mine = stand_in(picture(0)).copy()
    with replaced(PIL.Image.Image, "copy", copied):
        (call,) = pickle.loads(pickle.dumps(mine.tape.calls))
    assert call == mine.tape.calls[0] and call.fn is PIL.Image.Image.copy


def test_a_tensor_that_is_overwritten_later() -> None:
    given = pixels(0)
    with session.going_on():
        mine = F.horizontal_flip(stand_in(given))
        given.zero_()
        mine.tape.check()
        assert torch.equal(real(mine), F.horizontal_flip(pixels(0)))


def _set(access: Any) -> None:
    access[3, 3] = (1, 2, 3)


#: What a dataset may hold of a picture that it gives to its transforms, and how it writes with it afterwards.
WRITINGS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "paste": (lambda given: given, lambda given: given.paste((1, 2, 3), (0, 0, 9, 9))),
    "close": (lambda given: given, lambda given: given.close()),
    "pixel access": (lambda given: given, lambda given: _set(given.load())),
    "older pixel access": (lambda given: given.load(), _set),
    "drawing": (lambda given: given, lambda given: PIL.ImageDraw.Draw(given).point([(3, 3)], (1, 2, 3))),
    "older drawing": (PIL.ImageDraw.Draw, lambda drawing: drawing.point([(3, 3)], (1, 2, 3))),
}


@pytest.mark.parametrize("kind", WRITINGS)
def test_a_picture_that_is_overwritten_later(kind: str) -> None:
    held, write = WRITINGS[kind]
    given, plain = picture(0), picture(0)
    want = F.horizontal_flip(plain).tobytes()
    write(held(plain))
    holds = held(given)
    with session.going_on():
        mine, other = F.horizontal_flip(stand_in(given)), F.horizontal_flip(stand_in(given))
        if not kind.startswith("older"):
            assert mine.tape.source is other.tape.source  # two views of it are sent once
        write(holds)
        mine.tape.check()
        assert real(mine).tobytes() == real(other).tobytes() == want
    if kind != "close":
        assert given.tobytes() == plain.tobytes() and given.getpixel((3, 3)) == (1, 2, 3)


@pytest.mark.parametrize("name", ["resize", "crop", "convert"])
def test_the_users_own_method_of_pictures(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes Pillow's place at any time, and gets pixels."""
    plain, sizes = getattr(PIL.Image.Image, name), []

    def own(picture: Any, *args: Any, **kwargs: Any) -> Any:
        sizes.append(len(picture.tobytes()))
        return plain(picture, *args, **kwargs)

    mine = stand_in(picture(0))
    args: Any = {"resize": ((7, 8),), "crop": ((1, 2, 8, 9),), "convert": ("L",)}[name]
    assert is_recording(getattr(mine, name)(*args))
    monkeypatch.setattr(PIL.Image.Image, name, own)
    with pytest.raises(NotRecordable, match=f"'{name}' of a picture would need its pixels"):
        getattr(mine, name)(*args)
    with session.going_on():
        made = getattr(mine, name)(*args)
    assert type(made) is PIL.Image.Image and sizes == [3 * HEIGHT * WIDTH]


def test_a_file_of_several_frames() -> None:
    file = io.BytesIO()
    frames = [PIL.Image.new("RGB", (WIDTH, HEIGHT), colour) for colour in ("red", "lime", "blue")]
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
    with PIL.Image.open(file) as given, session.going_on():
        made = []
        for k in range(3):
            given.seek(k)
            made.append(F.horizontal_flip(stand_in(given if given.mode == "RGB" else given.convert("RGB"))))
        assert [real(mine).getpixel((0, 0)) for mine in made] == [(255, 0, 0), (0, 255, 0), (0, 0, 255)]


@pytest.mark.parametrize("alias", [lambda x: x, lambda x: x.permute(1, 2, 0), lambda x: x[:, :8]])
@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.transpose_(0, 1),
        lambda x: x.unsqueeze_(0).transpose_(1, 2),
        lambda x: x.resize_(3, 2),
        lambda x: setattr(x, "data", x.data.double()),
        lambda x: x.requires_grad_(),
    ],
)
def test_the_form_of_an_image_that_code_changes_in_place(alias: Any, change: Callable[[Any], Any]) -> None:
    def form_of(x: Any) -> tuple[Any, ...]:
        form = x.shape, len(x), x.ndim, x.size(), x.numel(), x.stride(), x.dtype, x.is_floating_point()
        return *form, x.contiguous().stride(), x.requires_grad, x.detach().requires_grad

    plain = alias(F.hflip(floats(0)))
    change(plain)
    with recording(calls=Tried({})), session.going_on():
        mine = alias(F.hflip(stand_in(floats(0))))
        change(mine)
        assert form_of(mine) == form_of(plain)


def test_a_written_image_may_be_used() -> None:
    with session.going_on():
        mine = F.horizontal_flip(stand_in(pixels(0)))
        settled, cut = session.settled, F.crop(mine, 1, 2, 9, 9)
        cut[:, 1:3, 1:3] = 7
        want = F.crop(F.horizontal_flip(pixels(0)), 1, 2, 9, 9)
        want[:, 1:3, 1:3] = 7
        assert session.settled == settled and torch.equal(real(cut), want)


@pytest.mark.parametrize(
    "value",
    [
        3,
        "cat",
        torch.tensor(3),
        torch.rand(4, 3, 8, 8),
        torch.rand(8, 8),
        torch.rand(3, 8, 8, requires_grad=True),
        torch.empty(3, 0, 8),
        torch.empty(3, 8, 8, device="meta"),
        tv_tensors.Video(torch.rand(5, 3, 8, 8)),
        tv_tensors.BoundingBoxes(torch.rand(1, 4), format="XYXY", canvas_size=(8, 8)),
        np.zeros((8, 8, 3), np.uint8),
        PIL.Image.new("P", (8, 8)),
        PIL.Image.new("I", (8, 8)),
        PIL.Image.new("F", (8, 8)),
    ],
    ids=lambda value: f"{type(value).__name__}-{list(getattr(value, 'shape', []))}",
)
def test_values_without_a_recording_image(value: Any) -> None:
    assert stand_in(value) is None


CALLS: list[tuple[str, Callable[[Any], Any]]] = [
    ("crop", lambda x: F.crop(x, 3, 4, 10, 11)),
    ("center_crop", lambda x: F.center_crop(x, [50, 21])),
    ("resize", lambda x: F.resize(x, [17])),
    ("resized_crop", lambda x: F.resized_crop(x, 1, 2, 20, 30, [12, 13])),
    ("pad", lambda x: F.pad(x, [1, 2, 3, 4])),
    ("rotate", lambda x: F.rotate(x, 30, expand=True)),
    ("quarter", lambda x: F.rotate(x, 90, expand=True)),
    ("affine", lambda x: F.affine(x, 10, [1, 2], 1.1, [0, 0])),
    ("perspective", lambda x: F.perspective(x, [[0, 0], [9, 0], [9, 9], [0, 9]], [[1, 0], [9, 1], [8, 9], [0, 8]])),
    ("grey", lambda x: F.rgb_to_grayscale(x)),
    ("grey of three", lambda x: F.rgb_to_grayscale(x, 3)),
    ("to_dtype", lambda x: F.to_dtype(x, torch.float32, scale=True)),
    ("double", lambda x: F.to_dtype(x, torch.float64)),
    ("float", lambda x: x.float()),
    ("to", lambda x: x.to(torch.float16)),
    ("contiguous", lambda x: x.contiguous()),
    ("normalize", lambda x: F.normalize(F.to_dtype(x, torch.float32), [0.5], [0.5])),
    ("crops", lambda x: F.five_crop(x, [9, 8])[3]),
    ("flipped crops", lambda x: F.ten_crop(x, [9, 8])[7]),
    ("older crop", lambda x: F1.resized_crop(x, 1, 2, 20, 30, [12, 13], antialias=True)),
    ("older conversion", lambda x: F1.convert_image_dtype(x)),
    ("older flip", lambda x: F1.hflip(x)),
]


@pytest.mark.parametrize("call", [call for _, call in CALLS], ids=[name for name, _ in CALLS])
@pytest.mark.parametrize("make", [pixels, image], ids=["tensor", "image"])
def test_shape_and_dtype_after_a_call(make: Callable[[int], Any], call: Callable[[Any], Any]) -> None:
    real, mine = make(0), stand_in(make(0))
    want, got = call(real), call(mine)
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    assert mine.tape.ops == () and mine.shape == real.shape, "the input has changed"


@pytest.mark.parametrize("call", [call for _, call in CALLS], ids=[name for name, _ in CALLS])
def test_type_after_a_call(call: Callable[[Any], Any]) -> None:
    want, got = call(image(0)), call(stand_in(image(0)))
    assert isinstance(got, tv_tensors.Image) == isinstance(want, tv_tensors.Image)


@pytest.mark.parametrize("call", [call for _, call in CALLS], ids=[name for name, _ in CALLS])
def test_recorded_calls_can_be_called_again(call: Callable[[Any], Any]) -> None:
    real, mine = pixels(0), call(stand_in(pixels(0)))
    got = functools.reduce(lambda made, one: one(made), mine.tape.calls, real)
    assert torch.equal(got, call(real))
    assert sum(one.ops for one in mine.tape.calls) == len(mine.tape.ops)


def test_noise_can_be_called_again() -> None:
    mine = F.gaussian_noise(stand_in(floats(0)))
    torch.manual_seed(7)
    mine, other = F.gaussian_noise(stand_in(floats(0))), torch.rand(())
    torch.manual_seed(7)
    want, then = F.gaussian_noise(floats(0)), torch.rand(())
    assert other == then
    torch.manual_seed(8)
    (call,) = mine.tape.calls
    before = torch.get_rng_state()
    assert torch.equal(call(floats(0)), want)
    assert torch.equal(torch.get_rng_state(), before)


def test_views_share_only_their_first_calls() -> None:
    first = F.horizontal_flip(stand_in(pixels(0)))
    one, other = F.invert(first), F.crop(first, 0, 0, 5, 5)
    assert [op.name for op in first.tape.ops] == ["horizontal_flip"]
    assert [op.name for op in one.tape.ops] == ["horizontal_flip", "invert"]
    assert [op.name for op in other.tape.ops] == ["horizontal_flip", "crop"]
    assert one.tape.source is other.tape.source


def test_a_call_that_changes_nothing_makes_no_ops() -> None:
    mine = stand_in(pixels(0))
    for call in (
        lambda x: F.crop(x, 0, 0, HEIGHT, WIDTH),
        lambda x: F.pad(x, 0),
        lambda x: F.resize(x, [HEIGHT, WIDTH]),
        lambda x: F.rotate(x, 360.0),
        lambda x: F.to_dtype(x, torch.uint8),
    ):
        assert call(mine).tape.ops == ()


# ---- stacks


def images(*sizes: tuple[int, int]) -> list[Any]:
    return [stand_in(pixels(0, height=height, width=width)) for height, width in sizes]


def test_stacks() -> None:
    three = images((8, 9), (8, 9), (8, 9))
    for stack in (torch.stack(three), torch.stack(tuple(three), 0), torch.stack(three, dim=0), default_collate(three)):
        assert is_recording(stack) and isinstance(stack, Tensor)
        assert stack.shape == (3, 3, 8, 9) and stack.dtype == torch.uint8 and len(stack) == 3
    nested = torch.stack([torch.stack(three), torch.stack(three)])
    assert nested.shape == (2, 3, 3, 8, 9)


def test_nested_batches() -> None:
    samples = [{"image": stand_in(image(k)), "mask": stand_in(mask(k)), "label": k} for k in range(2)]
    batch = default_collate(samples)
    assert batch["image"].shape == (2, 3, HEIGHT, WIDTH) and batch["mask"].shape == (2, 1, HEIGHT, WIDTH)
    assert batch["label"].tolist() == [0, 1]


def test_images_of_different_sizes_are_not_stacked() -> None:
    for stack in (torch.stack, default_collate):
        with pytest.raises(RuntimeError, match="equal size"):
            stack(images((8, 9), (9, 8)))


@pytest.mark.parametrize(
    "stack",
    [
        lambda x: torch.stack([x, x], dim=1),
        lambda x: torch.stack([x, x], out=torch.empty(0)),
        lambda x: torch.stack([x, pixels(0)]),
        lambda x: torch.stack([x, F.to_dtype(x, torch.float32)]),
        lambda x: torch.cat([x, x]),
    ],
    ids=["dim", "out", "with pixels", "dtypes", "cat"],
)
def test_stacks_that_are_refused(stack: Callable[[Any], Any]) -> None:
    with pytest.raises(NotRecordable):
        stack(stand_in(pixels(0)))


# ---- refusals


def _assigned(x: Any) -> None:
    x[:, 0] = 0


def _box_assigned(x: Any) -> None:
    x[:, 1:3, 2:4] = 0


def _saved(x: Any) -> None:
    torch.save(x, io.BytesIO())


NEED_PIXELS: list[Any] = [
    pytest.param(use, id=name)
    for name, use in {
        "numpy": lambda x: x.numpy(),
        "asarray": np.asarray,
        "array": np.array,
        "bool": bool,
        "float": float,
        "item": lambda x: x.item(),
        "tolist": lambda x: x.tolist(),
        "mean": lambda x: x.mean(),
        "max": torch.max,
        "any": lambda x: x.any(),
        "add": lambda x: x + 1,
        "radd": lambda x: 1 + x,
        "iadd": lambda x: x.__iadd__(1),
        "mul": lambda x: x * torch.rand(()),
        "rmul": lambda x: torch.rand(()) * x,
        "neg": lambda x: -x,
        "matmul": lambda x: x @ x,
        "less": lambda x: x < 3,
        "equal": lambda x: x == x,
        "torch.equal": lambda x: torch.equal(x, x),
        "index": lambda x: x[0],
        "assignment": _assigned,
        "assignment to the original": _box_assigned,
        "iteration": list,
        "clamp": lambda x: x.clamp(0, 1),
        "add_": lambda x: x.add_(1),
        "permute": lambda x: x.permute(2, 1, 0),
        "unsqueeze": lambda x: x.unsqueeze(1),
        "T": lambda x: x.mT,
        "clone": torch.clone,
        "interpolate": lambda x: torch.nn.functional.interpolate(x, 3),
        "chunk": lambda x: x.chunk(3),
        "data_ptr": lambda x: x.data_ptr(),
        "untyped_storage": lambda x: x.untyped_storage(),
        "to device": lambda x: x.to("meta"),
        "cuda": lambda x: x.cuda(),
        "share_memory_": lambda x: x.share_memory_(),
        "pickle": pickle.dumps,
        "save": _saved,
        "copy": copy.copy,
        "deepcopy": copy.deepcopy,
        "to_pil_image": F.to_pil_image,
        "older to_pil_image": F1.to_pil_image,
    }.items()
]


@pytest.mark.parametrize("use", NEED_PIXELS)
@KINDS
def test_uses_that_need_pixels_raise(make: Callable[[int], Any], use: Callable[[Any], Any]) -> None:
    mine = stand_in(make(0))
    before = NotRecordable.raised
    with pytest.raises(NotRecordable):
        use(mine)
    assert NotRecordable.raised > before


@pytest.mark.parametrize(
    "use",
    [lambda x: F.jpeg(x, 50), lambda x: F.resize(x, [5, 5], interpolation=v2.InterpolationMode.BOX)],
    ids=["jpeg", "box"],
)
def test_functions_without_a_kernel_raise(use: Callable[[Any], Any]) -> None:
    with pytest.raises(NotRecordable):
        use(stand_in(image(0)))


@pytest.mark.parametrize(
    "use",
    [
        np.asarray,
        np.array,
        pickle.dumps,
        copy.deepcopy,
        PIL.ImageOps.exif_transpose,
        lambda x: x.load(),
        lambda x: x.getpixel((0, 0)),
        lambda x: x.getextrema(),
        lambda x: x.histogram(),
        lambda x: x.getbbox(),
        lambda x: x.tobytes(),
        lambda x: x.filter(PIL.ImageFilter.BLUR),
        lambda x: x.convert("P"),
        lambda x: x.thumbnail((9, 9)),
        lambda x: PIL.ImageChops.invert(x),
        lambda x: x.split(),
        lambda x: x.putpixel((0, 0), 0),
        lambda x: x.save(io.BytesIO(), "png"),
        lambda x: PIL.Image.new("RGB", (99, 99)).paste(x, (1, 1)),
        lambda x: PIL.Image.blend(x, x, 0.5),
        lambda x: x == x.copy(),
    ],
)
def test_uses_that_need_a_pictures_pixels_raise(use: Callable[[Any], Any]) -> None:
    with pytest.raises(NotRecordable):
        use(stand_in(picture(0)))


@pytest.mark.parametrize(
    ("index", "value", "op"),
    [
        ((slice(None), slice(3, 9), slice(None, 7)), 0.5, "erase"),
        ((slice(0, 3), slice(-9, -2), slice(30, 99)), torch.rand(3, 1, 1), "erase"),
        ((slice(None), slice(1, 4), slice(2, 4)), torch.rand(3, 3, 2), "erase_drawn"),
    ],
)
def test_a_box_that_is_written(index: Any, value: Any, op: str) -> None:
    mine, real = F.invert(stand_in(floats(0))), F.invert(floats(0))
    mine[index] = value
    real[index] = value
    assert [one.name for one in mine.tape.ops] == ["invert", op]
    assert torch.equal(mine.tape.pixels(), real)


@pytest.mark.parametrize(
    ("index", "value"),
    [
        ((slice(None), slice(0, 9, 2), slice(None)), 0.0),
        ((slice(0, 2), slice(0, 9), slice(None)), 0.0),
        ((slice(None), slice(9, 9), slice(None)), 0.0),
        ((slice(None), 3, slice(None)), 0.0),
        (slice(None), 0.0),
        ((slice(None), slice(0, 4), slice(0, 4)), torch.rand(4)),
        ((slice(None), slice(0, 4), slice(0, 4)), torch.ones(3, 1, 1, dtype=torch.float64)),
    ],
)
def test_other_writes_by_an_index_are_refused(index: Any, value: Any) -> None:
    mine = F.invert(stand_in(floats(0)))
    with pytest.raises(NotRecordable, match="writing by an index"):
        mine[index] = value


def test_a_function_that_is_refused() -> None:
    with recording(refused=frozenset({"rotate"})):
        mine = F.invert(stand_in(pixels(0)))
        assert F.rotate(mine, 360.0).tape.ops == mine.tape.ops, "this call changes no pixels"
        with pytest.raises(NotRecordable, match="certificate"):
            F.rotate(mine, 10)
