"""A packed batch: one memory for all plain tensors, and launches that need nothing else."""

from __future__ import annotations

import dataclasses
import math
import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import default_collate
from torchvision import tv_tensors
from torchvision.transforms import v2

from pipediag.replay.ops.op import NotRecordable
from pipediag.replay.pack.packed_batch import Held, Packed, Plain, Section
from pipediag.replay.pack.packing import pack, pack_plain
from pipediag.replay.record.batches import Parts, real_leaf, stacking
from pipediag.replay.record.hooks import recording, register
from pipediag.replay.record.plain_code import Calls
from pipediag.replay.record.recorder import Recorder
from pipediag.replay.record.substitutes import stand_in
from pipediag.replay.run.replay import replay
from pipediag.usercode import tree

from ...remedy.sameness import of_any_size, picture, pixels

CPU = torch.device("cpu")


def recorded(transform: Any, sources: list[Any]) -> Tensor:
    """The images, collated as in a worker."""
    torch.manual_seed(0)
    recorder = Recorder(transform, 0)
    with recording():
        return torch.stack([recorder(source) for source in sources])


def real(transform: Any, sources: list[Any]) -> Tensor:
    torch.manual_seed(0)
    return torch.stack([transform(source) for source in sources])


def plains(packed: Packed) -> list[Plain]:
    return [leaf for leaf in tree.leaves(packed.batch) if isinstance(leaf, Plain)]


# ---- tensors that no op changes


def test_all_plain_tensors_lie_in_one_memory() -> None:
    batch = {"images": torch.rand(4, 3, 5), "labels": torch.arange(4), "flags": [torch.tensor(True), torch.empty(0, 2)]}
    packed = pack_plain(batch)
    sections = [plain.section for plain in plains(packed)]
    assert [(section.shape, section.dtype) for section in sections] == [
        ((4, 3, 5), torch.float32),
        ((4,), torch.int64),
        ((), torch.bool),
        ((0, 2), torch.float32),
    ]
    assert all(section.offset % 16 == 0 for section in sections)
    assert [section.offset for section in sections] == [0, 240, 272, 288]
    assert packed.memory.shape == (288,)
    made = replay(packed, CPU)
    for ours, theirs in zip(tree.leaves(made), tree.leaves(batch), strict=True):
        assert torch.equal(ours, theirs) and ours.dtype == theirs.dtype


DTYPES = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64]
DTYPES += [torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128]
DTYPES += [torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_comes_back(dtype: torch.dtype) -> None:
    values = torch.arange(30, dtype=torch.uint8).view(dtype) if dtype == torch.uint8 else torch.arange(30).to(dtype)
    odd = torch.zeros(3, dtype=torch.uint8)  # so that the next one is not aligned by chance
    ours = replay(pack_plain([odd, values, Parts([values, values])]), CPU)
    for mine, want in zip(ours[1:], (values, torch.stack([values, values])), strict=True):
        assert mine.dtype == dtype
        assert torch.equal(mine.view(torch.uint8), want.view(torch.uint8))


def test_strides_stay_the_same() -> None:
    images = torch.rand(2, 3, 4, 5)
    lying = [
        images.contiguous(memory_format=torch.channels_last),
        images.permute(3, 1, 0, 2),
        images.transpose(1, 2)[:, :, None],
        images[..., ::2],
        images[:, :1].expand(2, 3, 4, 5),
    ]
    for ours, theirs in zip(replay(pack_plain(lying), CPU), lying, strict=True):
        assert torch.equal(ours, theirs)
        assert ours.stride() == theirs.stride()


def test_a_tensor_that_the_batch_holds_twice() -> None:
    labels, images = torch.arange(4), recorded(v2.RandomHorizontalFlip(1.0), [pixels(k) for k in range(4)])
    with recording():
        packed = pack({"x": images, "same": images, "y": labels, "others": [labels, labels.clone()]})
    made = replay(pickle.loads(pickle.dumps(packed)), CPU)
    assert made["x"] is made["same"] and made["y"] is made["others"][0] is not made["others"][1]
    assert torch.equal(made["x"], real(v2.RandomHorizontalFlip(1.0), [pixels(k) for k in range(4)]))


def test_what_the_loops_process_may_hold_too_stays_itself() -> None:
    labels, images = torch.arange(4), recorded(v2.RandomHorizontalFlip(1.0), [pixels(k) for k in range(4)])
    own, flip = pixels(7), Recorder(v2.RandomHorizontalFlip(1.0), 0)
    target, held = {"y": labels, "part": labels[:2]}, []
    with recording():
        held.append(flip(pixels(8)))
        batch = {"x": images, "target": target, "targets": [target, 5], "held": held, "own": stand_in(own)}
        made = replay(pack(batch, here=True), CPU)
    assert made is batch and made["held"] is held, "the loop may write into what the dataset holds"
    assert made["targets"][0] is made["target"] is target and target["y"] is labels and made["own"] is own
    assert type(made["x"]) is type(held[0]) is Tensor and torch.equal(held[0], pixels(8).flip(-1))


def test_an_image_that_other_code_keeps_is_that_of_the_batch() -> None:
    flip = Recorder(v2.RandomHorizontalFlip(1.0), 0)
    with recording(calls=Calls()):
        kept = [flip(pixels(8)), flip(pixels(9)), torch.stack([flip(pixels(k)) for k in range(2)])]
        kept[1] = kept[1].permute(1, 2, 0)
        part, base = kept[2][1:], flip(pixels(7))
        made = replay(pack((*kept, base.permute(1, 2, 0)), here=True), CPU)
    for image, ours in zip((*kept, base), made, strict=True):
        assert type(ours) is Tensor is not type(image) and ours.count_nonzero()
        ours.zero_()
        assert not image.count_nonzero() and image.numpy().ctypes.data == ours.data_ptr()
    assert not part.count_nonzero()


def test_an_image_that_other_code_keeps_is_that_of_a_batch_with_pixels() -> None:
    with recording():
        kept = Recorder(v2.RandomHorizontalFlip(1.0), 0)(pixels(8))
    real_leaf(kept).zero_()
    assert not kept.count_nonzero()


def test_images_are_tensors_of_their_own() -> None:
    flip = Recorder(v2.RandomHorizontalFlip(1.0), 0)
    with recording(calls=Calls()):
        batch = [flip(pixels(8)), flip(pixels(9)), flip(pixels(8)).permute(1, 2, 0)]
        made = replay(pickle.loads(pickle.dumps(pack(batch))), CPU)
    for ours in made:
        assert not ours._is_view() and ours.untyped_storage().nbytes() == ours.nbytes


def test_on_a_device_nothing_of_the_datasets_changes() -> None:
    meta, labels = torch.device("meta"), torch.arange(4)
    target, own = {"y": labels}, [pixels(0)]
    made = replay(pack_plain([target, own], here=True), meta)
    assert made[0]["y"].is_meta and target["y"] is labels and not own[0].is_meta
    held = Held(own)
    held.parts[0] = "placeholder"
    assert held.filled(str.upper, meta) == ["PLACEHOLDER"] and held.original is own and isinstance(own[0], Tensor)


def test_tensors_that_share_memory_still_do() -> None:
    labels = torch.arange(4)
    sent = ForkingPickler.dumps(pack_plain({"y": labels, "part": labels[1:], "other": torch.ones(2)}))
    made = replay(pickle.loads(sent), CPU)
    made["y"].add_(1)
    assert made["part"].tolist() == [2, 3, 4] and made["other"].tolist() == [1, 1]


@pytest.mark.parametrize(
    "parts, shares",
    [
        (lambda x: [x, x[0]], True),
        (lambda x: [x[1:], x[0]], False),
        (lambda x: [x, x.flatten(1)], True),
        (lambda x: [x[:, :1], x[:, 1:]], False),
        (lambda x: [x[:, :2], x[:, 1:]], True),
        (lambda x: [x, x.clone()], False),
        (lambda x: [x, torch.cat([x, x])], False),
    ],
)
def test_images_that_share_memory_are_refused(parts: Any, shares: bool) -> None:
    images = recorded(v2.RandomHorizontalFlip(1.0), [pixels(k) for k in range(4)])
    with recording(calls=Calls()):
        batch = parts(images)
        if shares:
            with pytest.raises(NotRecordable, match="shares memory"):
                pack(batch)
        else:
            plain = parts(real(v2.RandomHorizontalFlip(1.0), [pixels(k) for k in range(4)]))
            assert all(map(torch.equal, replay(pack(batch), CPU), plain))


def test_an_image_of_the_users_in_two_places() -> None:
    own = pixels(0)
    with recording():
        with pytest.raises(NotRecordable, match="shares memory"):
            pack([own, stand_in(own)])
        assert pack([own.clone(), stand_in(own)]).results


def test_other_values_stay_as_they_are() -> None:
    odd = [
        torch.eye(3).to_sparse(),
        torch.ones(2, requires_grad=True),
        torch.ones(2, dtype=torch.complex64).conj(),
        torch.ones(2, device="meta"),
        tv_tensors.BoundingBoxes([[1, 2, 3, 4]], format="XYXY", canvas_size=(9, 9)),
        tv_tensors.Image(torch.ones(3, 2, 2)),
        torch.nn.Parameter(torch.ones(2)),
        "name",
        7,
        None,
    ]
    packed = pack_plain(odd)
    assert packed.memory.numel() == 0
    assert all(ours is theirs for ours, theirs in zip(packed.batch, odd, strict=True))


@dataclasses.dataclass(frozen=True)
class Record:
    image: Tensor
    name: str


class Words(dict):  # type: ignore[type-arg]
    """The user's own container."""


def test_the_users_own_containers_keep_their_tensors() -> None:
    record, words = Record(torch.ones(2), "one"), Words(a=torch.ones(3))
    packed = pack_plain([record, words])
    assert isinstance(packed.batch[0], Record) and isinstance(packed.batch[0].image, Plain)
    assert type(packed.batch[1]) is Words and packed.batch[1]["a"] is words["a"]
    made = replay(packed, CPU)
    assert made[0].image.tolist() == [1, 1] and made[0].name == "one" and made[1]["a"].tolist() == [1, 1, 1]
    assert isinstance(record.image, Tensor), "the batch itself is not changed"


def test_tensors_on_a_device_keep_little_memory() -> None:
    """Tested on the ``meta`` device, which has no memory but knows how much a tensor would hold."""
    packed = pack_plain((torch.ones(8, 100), torch.arange(8), torch.ones(3, 2).t()))
    images, labels, turned = replay(packed, torch.device("meta"))
    assert images.untyped_storage().nbytes() == packed.memory.numel()
    assert labels.untyped_storage().nbytes() == 64
    assert (turned.shape, turned.stride(), turned.untyped_storage().nbytes()) == ((2, 3), (1, 2), 24)
    assert not any(tensor._is_view() for tensor in (images, labels, turned))
    halves = replay(pack_plain((torch.ones(100), torch.ones(100))), torch.device("meta"))
    assert [half.untyped_storage().nbytes() for half in halves] == [400, 400]


def test_a_packed_batch_can_be_pickled() -> None:
    packed = pickle.loads(pickle.dumps(pack_plain([torch.arange(5), "name"])))
    assert replay(packed, CPU)[0].tolist() == [0, 1, 2, 3, 4]


# ---- deferred stacking


def test_stacking_is_deferred_if_no_other_code_sees_it() -> None:
    register()  # as in a worker
    collate = stacking(default_collate)
    made = collate([{"x": torch.ones(2), "y": (k, [torch.zeros(3)])} for k in range(4)])
    assert isinstance(made["x"], Parts) and made["x"].shape == (4, 2)
    assert isinstance(made["y"], list) and isinstance(made["y"][1][0], Parts)
    assert made["y"][0].tolist() == [0, 1, 2, 3]
    own = collate([Words(x=torch.ones(2))])
    assert type(own) is Words and isinstance(own["x"], Tensor)


def test_other_collate_functions_are_left_alone() -> None:
    assert stacking(list) is list


# ---- beside recorded images


def test_labels_lie_beside_the_images() -> None:
    chain = v2.Compose([v2.RandomRotation(30), v2.RandomHorizontalFlip()])
    sources = [pixels(k) for k in range(5)]
    labels = torch.arange(5)
    images = recorded(chain, sources)
    packed = pack([images, {"label": labels, "name": "five"}])
    assert [plain.section for plain in plains(packed)] == [Section(0, (5,), torch.int64)]
    made = replay(packed, CPU)
    assert torch.equal(made[0], real(chain, sources))
    assert torch.equal(made[1]["label"], labels) and made[1]["name"] == "five"


def test_a_batch_without_recorded_images_is_refused() -> None:
    with pytest.raises(NotRecordable, match="no image of the batch was recorded"):
        pack([torch.arange(4)])
    with pytest.raises(NotRecordable, match="turned into another tensor"):
        pack([recorded(v2.RandomHorizontalFlip(), [pixels(0)]), torch.empty(3, device="meta")])


# ---- images of different sizes


def lying(packed: Packed, launch: Any) -> list[Tensor]:
    """The images of a ragged launch, read from the memory."""
    assert launch.takes == ()
    *_, channels, layout = launch.static
    images = []
    for offset, height, width in launch.numbers.of(packed.memory)[4:].T.long().tolist():
        shape = (height, width, channels) if layout == "hwc" else (channels, height, width)
        image = packed.memory[offset : offset + math.prod(shape)].view(shape)
        images.append(image.permute(2, 0, 1) if layout == "hwc" else image)
    return images


@pytest.mark.parametrize(
    ("make", "chain"),
    [
        (of_any_size, v2.Compose([v2.Resize((24, 20))])),
        (lambda k: of_any_size(k)[:1], v2.Compose([v2.Resize((24, 20))])),
        (lambda k: tv_tensors.Mask(of_any_size(k)[0]), v2.Compose([v2.Resize((24, 20))])),
        (lambda k: pixels(k, height=30 + k, width=40), v2.Compose([v2.ToImage(), v2.Resize((24, 20))])),
    ],
    ids=["images", "grey", "masks", "tensors"],
)
def test_a_ragged_launch_reads_images_where_they_lie(make: Any, chain: Any) -> None:
    sources = [make(k) for k in range(6)]
    packed = pack(recorded(chain, sources), fuse=True)
    (launch,) = packed.launches
    assert launch.name == "fast_resample_ragged"
    shapes = [source.as_subclass(Tensor).reshape(-1, *source.shape[-2:]) for source in sources]
    assert sorted(map(tuple, (image.flatten().tolist() for image in lying(packed, launch)))) == sorted(
        map(tuple, (shape.flatten().tolist() for shape in shapes))
    )


@pytest.mark.parametrize("converted", ["first", "last"])
def test_pictures_lie_with_their_channels_last(converted: str) -> None:
    links = [v2.ToImage(), v2.RandomResizedCrop(16, (0.5, 1.0))]
    chain = v2.Compose(links if converted == "first" else links[::-1])
    sources = [picture(k) for k in range(4)]
    packed = pack(recorded(chain, sources), fuse=True)
    (launch,) = packed.launches
    assert launch.name == "fast_resample_ragged"
    assert launch.static[-2:] == (3, "hwc")
    boxes = launch.numbers.of(packed.memory)[:4].T.long().tolist()
    assert all(box[:2] == [0, 0] for box in boxes), "only the box of each image is sent"
    wholes = [pixels(k) for k in range(4)]
    for image, (_, _, height, width) in zip(lying(packed, launch), boxes, strict=True):
        assert image.shape == (3, height, width)
        assert any(holds(whole, image) for whole in wholes)


def holds(whole: Tensor, part: Tensor) -> bool:
    """Return whether an image contains another one."""
    windows = whole.unfold(1, part.shape[1], 1).unfold(2, part.shape[2], 1)
    return bool((windows == part[:, None, None]).flatten(3).all(3).all(0).any())


def test_images_of_one_size_are_resized_as_a_batch() -> None:
    packed = pack(recorded(v2.Resize((24, 20)), [pixels(k) for k in range(4)]), fuse=True)
    (launch,) = packed.launches
    assert launch.name == "fast_resample"
    assert len(launch.takes) == 1 and launch.numbers is not None and launch.numbers.shape == (4, 4)
