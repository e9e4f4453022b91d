"""A record decodes to the value that was encoded: bit for bit, and with the same types."""

from __future__ import annotations

import datetime
import math
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torchvision import tv_tensors

from pipediag.sample_cache.records import Record, RecordError, decode, encode

from ..things import Encoding, Frozen, Pair, Sample, Slotted
from ..things import Record as Labelled

DTYPES = [
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64),
    *(torch.float16, torch.float32, torch.float64, torch.bfloat16, torch.float8_e4m3fn, torch.bool),
    *(torch.complex32, torch.complex64, torch.complex128),
]
MODES = [
    *("1", "L", "P", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "HSV", "I", "F", "LA", "PA", "RGBa", "La", "RGBX"),
    *("I;16", "I;16B", "I;16L", "I;16N"),
]


def again(value: Any) -> Any:
    return decode(encode(value).copied())


def size(value: Any) -> int:
    """Bytes of a value's record."""
    record = encode(value)
    return len(record.head) + sum(map(len, record.buffers))


def identical(a: Any, b: Any) -> bool:
    """Equal in types and structure, and bit for bit: signs of zeros and NaNs count."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        alike = (a.dtype, a.shape, a.requires_grad) == (b.dtype, b.shape, b.requires_grad)
        return alike and bits(a) == bits(b) and identical(vars(a), vars(b))
    if isinstance(a, np.ndarray):
        return (a.dtype, a.shape) == (b.dtype, b.shape) and a.tobytes() == b.tobytes()
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(identical, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(identical(a[key], b[key]) for key in a)
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    if hasattr(a, "image"):
        return identical(a.image, b.image) and identical(a.label, b.label)
    return bool(a == b)


def bits(tensor: torch.Tensor) -> bytes:
    with torch._C.DisableTorchFunctionSubclass():
        plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
        return plain.flatten().view(torch.uint8).numpy().tobytes()


def as_stored(tensor: torch.Tensor, how: str) -> torch.Tensor:
    """One of the ways in which a tensor can lie in memory."""
    if how == "gaps":
        return tensor.repeat_interleave(3, 0)[::3]
    if how == "transposed" and tensor.dim() > 1:
        return tensor.transpose(0, -1).contiguous().transpose(0, -1)
    if how == "expanded":
        return tensor[:1].expand(min(1, len(tensor)) * 7, *tensor.shape[1:])
    if how == "offset":
        return torch.cat([tensor, tensor])[len(tensor) :]
    return tensor


shapes = st.lists(st.integers(0, 9), min_size=1, max_size=4)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    shape, dtype = draw(shapes), draw(st.sampled_from(DTYPES))
    size = math.prod(shape) * dtype.itemsize
    values = np.random.default_rng(draw(st.integers(0, 99))).integers(
        0, 2 if dtype == torch.bool else 256, size, np.uint8
    )
    made = torch.zeros(size, dtype=torch.uint8).copy_(torch.from_numpy(values)).view(dtype).reshape(shape)
    return as_stored(made, draw(st.sampled_from(["plain", "gaps", "transposed", "expanded", "offset"])))


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    random = np.random.default_rng(draw(st.integers(0, 99)))
    array = random.integers(0, 9, draw(shapes)).astype(draw(st.sampled_from(["u1", "<i4", ">f8", "c8", "?", "M8[s]"])))
    array = array.transpose(draw(st.permutations(range(array.ndim))))
    return array[:: draw(st.sampled_from([1, -1, 2]))]


@st.composite
def pictures(draw: st.DrawFn) -> Image.Image:
    image = Image.new(draw(st.sampled_from(MODES)), (draw(st.integers(1, 40)), draw(st.integers(1, 40))))
    size = len(image.tobytes())
    image.frombytes(np.random.default_rng(draw(st.integers(0, 99))).bytes(size))
    image.info = draw(st.dictionaries(st.sampled_from(["dpi", "exif"]), st.binary(max_size=9)))
    return image


scalars = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(max_size=2000), st.complex_numbers()),
    st.builds(np.float32, st.floats(width=32, allow_nan=False)),
    st.just(datetime.date(2026, 1, 2)),
    st.builds(Path, st.just("a/b")),
)
values = st.recursive(
    st.one_of(scalars, tensors(), arrays(), pictures()),
    lambda inner: st.one_of(
        *(
            st.lists(inner, max_size=4),
            st.tuples(inner, inner),
            st.dictionaries(st.text(max_size=3), inner, max_size=3),
        ),
        *(st.builds(kind, inner, inner) for kind in (Pair, Labelled, Frozen, Slotted, Sample)),
        st.builds(OrderedDict, st.dictionaries(st.integers(), inner, max_size=3)),
    ),
    max_leaves=12,
)


@given(values)
def test_any_value_comes_back(value: Any) -> None:
    assert identical(again(value), value)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_of_a_large_tensor(dtype: torch.dtype) -> None:
    tensor = torch.randint(0, 2, (4096,), dtype=torch.uint8).repeat_interleave(dtype.itemsize).view(dtype)
    assert identical(again(tensor), tensor) and len(encode(tensor).buffers) == 1


@pytest.mark.parametrize("mode", MODES)
def test_a_picture_of_every_mode_comes_back_and_can_be_drawn_on(mode: str) -> None:
    image = Image.effect_noise((40, 30), 50).convert("RGB").convert(mode) if mode in ("L", "RGBA") else None
    image = image or Image.new(mode, (40, 30))
    back = again(image)
    assert back == image and type(back) is Image.Image
    back.putpixel((0, 0), back.getpixel((1, 1)))


def test_an_opened_file_comes_back_as_a_plain_image(tmp_path: Path) -> None:
    Image.effect_noise((64, 48), 50).convert("RGB").save(tmp_path / "a.jpg", dpi=(72, 72))
    with Image.open(tmp_path / "a.jpg") as opened:
        back = again(opened)
        assert type(back) is Image.Image and back.info == opened.info
        assert back.tobytes() == opened.tobytes() and (back.mode, back.size) == (opened.mode, opened.size)


@pytest.mark.parametrize("transparency", [None, 3, bytes(range(256))])
@pytest.mark.parametrize("kind", ["RGB", "RGBA"])
def test_palettes_keep_their_colours_and_transparency(kind: str, transparency: Any) -> None:
    image = Image.effect_noise((64, 48), 50)
    image.putpalette(np.random.default_rng(0).bytes(256 * len(kind)), kind)
    if transparency is not None:
        image.info["transparency"] = transparency
    back = again(image)
    assert back == image and back.convert("RGBA") == image.convert("RGBA")


def test_an_image_without_pixels_comes_back() -> None:
    assert again(Image.new("RGB", (0, 5))) == Image.new("RGB", (0, 5))


def test_tensor_subclasses_keep_class_and_attributes() -> None:
    boxes = tv_tensors.BoundingBoxes(torch.rand(100, 4), format="XYWH", canvas_size=(9, 8))
    image, mask = tv_tensors.Image(torch.rand(3, 9, 8)), tv_tensors.Mask(torch.ones(9, 8))
    assert identical(
        again({"boxes": boxes, "image": image, "mask": mask}), {"boxes": boxes, "image": image, "mask": mask}
    )
    parameter = torch.nn.Parameter(torch.rand(100))
    assert identical(again(parameter), parameter)


def test_memory_formats_and_strides_are_kept() -> None:
    image = torch.rand(2, 3, 16, 16).contiguous(memory_format=torch.channels_last)
    assert again(image).stride() == image.stride()
    expanded = torch.zeros(1).expand(1000, 1000)
    assert again(expanded).stride() == (0, 0) and size(expanded) < 1000
    transposed = np.zeros((30, 20, 3)).transpose(2, 0, 1)
    assert again(transposed).strides == transposed.strides and size(transposed) < transposed.nbytes + 500


def test_only_the_part_of_a_storage_that_a_tensor_shows_is_stored() -> None:
    assert size(torch.zeros(10_000, 100)[5]) < 1000
    assert size(torch.zeros(10_000, 100)[:, 5]) < 50_000


@pytest.mark.parametrize(
    "tensor",
    [
        torch.eye(50).to_sparse(),
        torch.empty(3, device="meta"),
        torch.rand(500, dtype=torch.complex64).conj(),
        torch.rand(500, dtype=torch.complex64).conj().imag,
    ],
)
def test_unusual_tensors_come_back(tensor: torch.Tensor) -> None:
    back = again(tensor)
    assert (back.layout, back.device, back.shape, back.dtype) == (
        tensor.layout,
        tensor.device,
        tensor.shape,
        tensor.dtype,
    )
    assert back.is_meta or torch.equal(back.to_dense(), tensor.to_dense())


def test_an_object_found_twice_is_one_object_again() -> None:
    tensor = torch.rand(1000)
    first, second = again([tensor, tensor])
    assert first is second


def test_a_tokenizer_output_comes_back() -> None:
    encoding = Encoding(ids=torch.arange(900))
    assert type(again(encoding)) is Encoding and identical(again(encoding).data, encoding.data)


def test_arrays_view_the_memory_that_they_are_decoded_from() -> None:
    record = encode((torch.zeros(1000), np.zeros(1000), torch.zeros(0))).copied()
    tensor, array, _ = decode(record)
    tensor += 1
    array += 1
    assert all(any(buffer) for buffer in record.buffers)


class Undecodable:
    def __reduce__(self) -> Any:
        return int, ("no number",)


def test_what_cannot_be_encoded_or_decoded_is_an_error_of_ours() -> None:
    with pytest.raises(RecordError, match=r"this sample cannot be stored: .*<lambda>"):
        encode({"x": lambda: 1})
    with pytest.raises(RecordError, match=r"a stored sample cannot be read: ValueError: invalid literal"):
        again(Undecodable())
    record = encode(torch.zeros(1000))
    with pytest.raises(RecordError):
        decode(Record(record.head, []))
    with pytest.raises(RecordError):
        decode(Record(record.head[:-5], record.buffers))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_tensor_on_a_device_is_not_stored() -> None:
    with pytest.raises(RecordError, match="it holds a tensor on cuda:0, not in host memory"):
        encode(torch.zeros(3, device="cuda"))
