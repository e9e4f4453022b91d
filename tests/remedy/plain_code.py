"""Loaders as people write them without transform objects on a dataset: a function for each, which makes its loader."""

from __future__ import annotations

import random
from collections import UserDict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import PIL.Image
import torch
import torchvision.transforms as v1
import torchvision.transforms.functional as F1
import torchvision.transforms.v2.functional as F2
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.functional import hflip, normalize, pil_to_tensor, to_tensor
from torchvision.transforms.v2.functional import to_image

from .sameness import draws, picture, picture_of_any_size, pixels

MEAN, STD = [0.48, 0.45, 0.4], [0.23, 0.22, 0.25]
Item = Callable[[int], Any]
#: By the kind and the name of each script, what makes its loader for a number of workers.
SCRIPTS: dict[tuple[str, str], Callable[[int], DataLoader[Any]]] = {}


class Items(Dataset[Any]):
    """A dataset whose ``__getitem__`` is this function."""

    def __init__(self, item: Item, length: int = 12) -> None:
        self.load = item
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return (*self.load(index), draws()[0])


def per_item(item: Item) -> Item:
    """Add a script whose dataset makes its items with this function."""
    SCRIPTS["item", item.__name__] = lambda workers: DataLoader(Items(item), 4, num_workers=workers)
    return item


def script(kind: str) -> Callable[[Any], Any]:
    def add(make: Callable[[int], DataLoader[Any]]) -> Callable[[int], DataLoader[Any]]:
        SCRIPTS[kind, make.__name__] = make
        return make

    return add


# ---- calls in __getitem__


@per_item
def flip_and_crop_v1(index: int) -> Any:
    image = picture(index)
    if random.random() < 0.5:
        image = F1.hflip(image)
    top, left, height, width = v1.RandomCrop.get_params(image, (24, 32))
    image = F1.crop(image, top, left, height, width)
    return F1.normalize(F1.to_tensor(image), MEAN, STD), index


@per_item
def flip_and_resize_v2(index: int) -> Any:
    image = pixels(index)
    if torch.rand(()) < 0.5:
        image = F2.horizontal_flip(image)
    image = F2.resize(image, [24, 24], antialias=True)
    image = F2.to_dtype(image, torch.float32, scale=True)
    return F2.normalize(image, MEAN, STD), index


@per_item
def flipped_by_chance(index: int) -> Any:
    """The only call that is recorded is left out for some samples."""
    image = pixels(index)[:, :9, :9]
    return (F2.horizontal_flip(image) if random.random() < 0.5 else image), index


@per_item
def image_and_mask(index: int) -> Any:
    image, mask = picture(index), PIL.Image.fromarray(np.asarray(picture(index))[..., 0] // 32)
    angle = random.uniform(-10, 10)
    image, mask = F1.rotate(image, angle), F1.rotate(mask, angle)
    if random.random() > 0.5:
        image, mask = F1.vflip(image), F1.vflip(mask)
    return F1.to_tensor(image), torch.from_numpy(np.array(mask)).long()


@per_item
def jitter_once_for_frames(index: int) -> Any:
    order, brightness, contrast, saturation, hue = v1.ColorJitter.get_params((0.8, 1.2), (0.8, 1.2), (0.8, 1.2), None)
    frames = []
    for k in range(3):
        frame = picture(3 * index + k)
        for step in order:
            if step == 0 and brightness is not None:
                frame = F1.adjust_brightness(frame, brightness)
            elif step == 1 and contrast is not None:
                frame = F1.adjust_contrast(frame, contrast)
            elif step == 2 and saturation is not None:
                frame = F1.adjust_saturation(frame, saturation)
            elif step == 3 and hue is not None:
                frame = F1.adjust_hue(frame, hue)
        frames.append(F1.to_tensor(frame))
    return {f"frame {k}": frame for k, frame in enumerate(frames)}, index


class Monodepth(Dataset[Any]):
    """A jitter drawn once for an item, given on as a function, and a transform of the dataset's beside it."""

    def __init__(self) -> None:
        self.to_tensor = v1.ToTensor()
        self.resize = v1.Resize((24, 32), interpolation=v1.InterpolationMode.LANCZOS)

    def __len__(self) -> int:
        return 12

    def preprocess(self, inputs: dict[Any, Any], augment: Callable[[Any], Any]) -> None:
        for key in list(inputs):
            frame = self.resize(inputs.pop(key))
            inputs["color", key] = self.to_tensor(frame)
            inputs["color_aug", key] = self.to_tensor(augment(frame))

    def __getitem__(self, index: int) -> Any:
        inputs: dict[Any, Any] = {k: picture(3 * index + k) for k in range(2)}
        if random.random() > 0.5:
            inputs = {k: frame.transpose(PIL.Image.Transpose.FLIP_LEFT_RIGHT) for k, frame in inputs.items()}
        if random.random() > 0.5:
            params = v1.ColorJitter.get_params((0.8, 1.2), (0.8, 1.2), (0.8, 1.2), (-0.1, 0.1))

            def augment(frame: Any) -> Any:
                for step in params[0]:
                    change = (F1.adjust_brightness, F1.adjust_contrast, F1.adjust_saturation, F1.adjust_hue)[step]
                    frame = change(frame, params[1 + int(step)])
                return frame

        else:
            augment = lambda frame: frame  # noqa: E731 - as people write it
        self.preprocess(inputs, augment)
        return inputs


@script("item")
def monodepth(workers: int) -> DataLoader[Any]:
    return DataLoader(Monodepth(), 4, num_workers=workers)


@per_item
def compose_made_in_getitem(index: int) -> Any:
    size = 24
    transform = v1.Compose(
        [v1.RandomResizedCrop(size), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(MEAN, STD)]
    )
    return transform(picture(index)), index


@per_item
def compose_v2_made_in_getitem(index: int) -> Any:
    chain = [v2.ToImage(), v2.RandomResizedCrop(24), v2.ColorJitter(0.3, 0.3), v2.ToDtype(torch.float32, scale=True)]
    return v2.Compose(chain)(picture_of_any_size(index)), index


@per_item
def list_of_frames(index: int) -> Any:
    flips = random.random() < 0.5
    frames = [pixels(4 * index + k) for k in range(4)]
    frames = [F2.resize(frame, [20, 28]) for frame in frames]
    frames = [F2.horizontal_flip(frame) for frame in frames] if flips else frames
    return torch.stack([F2.to_dtype(frame, torch.float32, scale=True) for frame in frames]), index


def clip(index: int) -> Tensor:
    return torch.stack([pixels(4 * index + k) for k in range(4)])


@per_item
def clip_as_stack(index: int) -> Any:
    video = F2.resize(clip(index), [20, 28], antialias=True)
    if random.random() < 0.5:
        video = F2.horizontal_flip(video)
    return F2.normalize(F2.to_dtype(video, torch.float32, scale=True), MEAN, STD), index


CLIPS = v2.Compose([v2.RandomResizedCrop(24), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)])


@per_item
def clip_in_a_compose(index: int) -> Any:
    return CLIPS(clip(index)), index


@per_item
def clip_channels_first(index: int) -> Any:
    video = F2.to_dtype(F2.center_crop(clip(index), [24, 24]), torch.float32, scale=True)
    return video.permute(1, 0, 2, 3), index


@per_item
def video_of_torchvision(index: int) -> Any:
    return CLIPS(tv_tensors.Video(clip(index))), index


@per_item
def pillow_by_hand(index: int) -> Any:
    image = picture(index)
    if random.random() < 0.5:
        image = image.transpose(PIL.Image.Transpose.FLIP_LEFT_RIGHT)
    image = image.resize((32, 24), PIL.Image.Resampling.BILINEAR)
    return F1.normalize(F1.to_tensor(image), MEAN, STD), index


@per_item
def functions_imported_by_name(index: int) -> Any:
    image = picture(index)
    views = normalize(to_tensor(hflip(image)), MEAN, STD), pil_to_tensor(image.resize((9, 8))), to_image(image)
    return (*views, index)


@per_item
def scaled_by_arithmetic(index: int) -> Any:
    image = F2.resize(pixels(index), [24, 32]).float() / 255
    return (image - 0.5) / 0.25, index


@per_item
def multiplied_in_place(index: int) -> Any:
    image = F1.to_tensor(F1.hflip(picture(index)))
    return image.mul_(2).sub_(1), index


@per_item
def numpy_at_the_end(index: int) -> Any:
    image = F1.adjust_brightness(F1.resize(picture(index), [24, 32]), random.uniform(0.8, 1.2))
    array = np.asarray(image, dtype=np.float32) / 255
    return F1.normalize(torch.from_numpy(array).permute(2, 0, 1), MEAN, STD), index


@per_item
def crop_by_slices(index: int) -> Any:
    image = F2.horizontal_flip(pixels(index))
    top, left = random.randint(0, 8), random.randint(0, 8)
    image = image[:, top : top + 24, left : left + 32]
    return F2.to_dtype(image, torch.float32, scale=True), index


@per_item
def branch_on_the_mean(index: int) -> Any:
    image = F2.to_dtype(F2.resize(pixels(index), [24, 32]), torch.float32, scale=True)
    if image.mean() > 0.5:
        image = F2.horizontal_flip(image)
    return F2.normalize(image, MEAN, STD), index


# ---- in the collate function, and on a dict of lists


def loader(workers: int, collate: Callable[[Any], Any], item: Item) -> DataLoader[Any]:
    return DataLoader(Items(item), 4, num_workers=workers, collate_fn=collate)


def raw(index: int) -> Any:
    return picture_of_any_size(index), index


AUGMENT = v1.Compose([v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(MEAN, STD)])


@script("collate")
def transform_in_collate(workers: int) -> DataLoader[Any]:
    def collate(samples: Any) -> Any:
        images = torch.stack([AUGMENT(image) for image, *_ in samples])
        return {"pixel_values": images, "labels": torch.tensor([label for _, label, _ in samples])}

    return loader(workers, collate, raw)


@script("collate")
def batch_normalized_in_collate(workers: int) -> DataLoader[Any]:
    def collate(samples: Any) -> Any:
        images = torch.stack([F2.resize(image, [24, 24]) for image, *_ in samples])
        return F2.normalize(F2.to_dtype(images, torch.float32, scale=True), MEAN, STD)

    return loader(workers, collate, lambda index: (pixels(index), index))


class WithTransform(Dataset[Any]):
    """As datasets of Hugging Face: ``set_transform`` gives a function on a dict of lists, called for each batch."""

    def __init__(self, transform: Callable[[dict[str, list[Any]]], dict[str, Any]]) -> None:
        self._format_kwargs = {"transform": transform}

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        rows = self._format_kwargs["transform"]({"image": [picture_of_any_size(index)], "label": [index]})
        return {name: column[0] for name, column in rows.items()}

    def __getitems__(self, indices: list[int]) -> Any:
        rows = {"image": [picture_of_any_size(index) for index in indices], "label": list(indices)}
        columns = self._format_kwargs["transform"](rows)
        return [{name: column[k] for name, column in columns.items()} for k in range(len(indices))]


@script("collate")
def set_transform(workers: int) -> DataLoader[Any]:
    def transform(rows: dict[str, list[Any]]) -> dict[str, Any]:
        rows["pixel_values"] = [AUGMENT(image.convert("RGB")) for image in rows.pop("image")]
        return rows

    return DataLoader(WithTransform(transform), 4, num_workers=workers)


@script("collate")
def set_transform_to_an_object(workers: int) -> DataLoader[Any]:
    class Transform:
        def __call__(self, rows: dict[str, list[Any]]) -> dict[str, Any]:
            rows["pixel_values"] = [F1.to_tensor(F1.resize(image, [24, 24])) for image in rows.pop("image")]
            return rows

    return DataLoader(WithTransform(Transform()), 4, num_workers=workers)


class BatchFeature(UserDict[str, Any]):
    """What a processor returns, which moves its own tensors."""

    def to(self, device: Any) -> BatchFeature:
        self.data = {name: value.to(device) for name, value in self.data.items()}
        return self


class Processor:
    """The calls of an image processor of transformers with torchvision's backend."""

    def __init__(self, crop: bool = False, pads: bool = False, fused: bool = True, grouping: bool = True) -> None:
        self.crop, self.pads, self.fused, self.grouping = crop, pads, fused, grouping

    def __call__(self, images: list[Any]) -> BatchFeature:
        tensors = [F2.pil_to_tensor(image) if isinstance(image, PIL.Image.Image) else image for image in images]
        stacks, order = self.grouped([tensor.contiguous() for tensor in tensors])
        stacks = {shape: self.resize(stack) for shape, stack in stacks.items()}
        resized = [stacks[shape][k] for shape, k in order]
        stacks, order = self.grouped(resized)
        for shape, stack in stacks.items():
            if self.crop:
                stack = F2.center_crop(stack, [20, 20])
            stack = self.rescale_and_normalize(stack)
            stacks[shape] = self.padded(stack) if self.pads else stack
        return BatchFeature({"pixel_values": torch.stack([stacks[shape][k] for shape, k in order], dim=0)})

    def grouped(self, images: list[Tensor]) -> tuple[dict[Any, Tensor], list[tuple[Any, int]]]:
        if not self.grouping:  # as it does on the CPU
            return {k: image.unsqueeze(0) for k, image in enumerate(images)}, [(k, 0) for k in range(len(images))]
        groups: dict[Any, list[Tensor]] = {}
        order = []
        for image in images:
            group = groups.setdefault(tuple(image.shape[1:]), [])
            order.append((tuple(image.shape[1:]), len(group)))
            group.append(image)
        return {shape: torch.stack(group, dim=0) for shape, group in groups.items()}, order

    def resize(self, images: Tensor) -> Tensor:
        height, width = images.shape[-2:]
        size = [24, min(32, round(24 * width / height))] if self.pads else [24, 24]
        return F2.resize(images, size, interpolation=v2.InterpolationMode.BICUBIC, antialias=True)

    def rescale_and_normalize(self, images: Tensor) -> Tensor:
        if self.fused:
            mean, std = torch.tensor(MEAN) * 255, torch.tensor(STD) * 255
            return F2.normalize(images.to(dtype=torch.float32), mean, std, inplace=images.dtype != torch.float32)
        return F2.normalize((images * (1 / 255)).to(dtype=torch.float32), MEAN, STD)

    @staticmethod
    def padded(images: Tensor) -> Tensor:
        height, width = images.shape[-2:]
        return F2.pad(images, [0, 0, 32 - width, 24 - height], fill=0)


def processing(processor: Processor) -> Callable[[int], DataLoader[Any]]:
    def collate(samples: Any) -> Any:
        batch = processor([image for image, *_ in samples])
        batch["labels"] = torch.tensor([label for _, label, _ in samples])
        return batch

    return lambda workers: loader(workers, collate, raw)


SCRIPTS["collate", "processor"] = processing(Processor())
SCRIPTS["collate", "processor_that_crops"] = processing(Processor(crop=True))
SCRIPTS["collate", "processor_that_pads"] = processing(Processor(pads=True))
SCRIPTS["collate", "processor_without_groups"] = processing(Processor(crop=True, grouping=False))
SCRIPTS["collate", "processor_that_rescales"] = processing(Processor(fused=False))


def patched(workers: int) -> DataLoader[Any]:
    """Patches of pictures of several sizes, one after the other, as for Qwen2-VL."""

    def patches(stack: Tensor, side: int = 4) -> Tensor:
        number, channels, height, width = stack.shape
        grid = stack.reshape(number, channels, height // side, side, width // side, side).permute(0, 2, 4, 1, 3, 5)
        return grid.unsqueeze(4).expand(-1, -1, -1, -1, 2, -1, -1).reshape(number, -1, 2 * channels * side * side)

    def collate(samples: Any) -> Any:
        made = []
        for image, *_ in samples:
            stack = F2.pil_to_tensor(image).contiguous().unsqueeze(0)
            stack = F2.resize(stack, [8, 8 * (1 + stack.shape[-1] % 3)])
            made.append(patches(F2.normalize(stack.to(torch.float32), MEAN, STD, inplace=True))[0])
        return {"pixel_values": torch.cat(made, dim=0), "grid": torch.tensor([len(one) for one in made])}

    return loader(workers, collate, raw)


def tiled(workers: int) -> DataLoader[Any]:
    """Tiles of pictures of several sizes and a small picture, in a batch filled up with zeros, as for Idefics3."""

    def tiles(stack: Tensor, side: int) -> Tensor:
        frames = stack.unfold(2, side, side).unfold(3, side, side).contiguous()
        frames = frames.view(*stack.shape[:2], -1, side, side).permute(0, 2, 1, 3, 4)
        return torch.cat((frames, F2.resize(stack, [side, side]).unsqueeze(1)), dim=1)

    def collate(samples: Any) -> Any:
        rows = []
        for image, *_ in samples:
            stack = F2.pil_to_tensor(image).unsqueeze(0)
            stack = F2.resize(stack, [16, 8 * (2 + stack.shape[-1] % 2)], interpolation=v2.InterpolationMode.LANCZOS)
            parts = [tile.unsqueeze(0).to(torch.float32) for tile in tiles(stack, 8)[0]]
            rows.append([F2.normalize(part, MEAN, STD, inplace=True)[0] for part in parts])
        batch = torch.zeros(len(rows), max(map(len, rows)), 3, 8, 8)
        masks = torch.zeros(len(rows), max(map(len, rows)), 8, 8, dtype=torch.int64)
        for i, row in enumerate(rows):
            for j, tile in enumerate(row):
                batch[i, j], masks[i, j] = tile, torch.ones_like(tile[0], dtype=torch.int64)
        return batch, masks

    return loader(workers, collate, raw)


def padded_to_the_largest(workers: int) -> DataLoader[Any]:
    def collate(samples: Any) -> Any:
        images = [F2.to_dtype(F2.horizontal_flip(F2.pil_to_tensor(image)), torch.float32) for image, *_ in samples]
        height, width = (max(image.shape[side] for image in images) for side in (1, 2))
        batch = torch.full((len(images), 3, height, width), 0.5)
        for image, into in zip(images, batch, strict=True):
            into[:, : image.shape[1], : image.shape[2]].copy_(image)
        return batch

    return loader(workers, collate, raw)


def some_flipped(workers: int) -> DataLoader[Any]:
    """Only some of the images in a batch that is filled up with zeros are recorded."""

    def collate(samples: Any) -> Any:
        images = [F2.horizontal_flip(image) if k % 3 else image for k, (image, *_) in enumerate(samples)]
        batch = torch.zeros((len(images), *torch.tensor([image.shape for image in images]).amax(0)), dtype=torch.uint8)
        for image, into in zip(images, batch, strict=True):
            into[:, : image.shape[1], : image.shape[2]].copy_(image)
        return batch

    return loader(workers, collate, lambda index: (pixels(index)[:, index % 2 :], index))


SCRIPTS["collate", "some_flipped"] = some_flipped
SCRIPTS["collate", "patched"] = patched
SCRIPTS["collate", "tiled"] = tiled
SCRIPTS["collate", "padded_to_the_largest"] = padded_to_the_largest


@script("collate")
def processor_in_set_transform(workers: int) -> DataLoader[Any]:
    processor = Processor(crop=True)

    def transform(rows: dict[str, list[Any]]) -> dict[str, Any]:
        rows["pixel_values"] = processor([image.convert("RGB") for image in rows.pop("image")])["pixel_values"]
        return rows

    return DataLoader(WithTransform(transform), 4, num_workers=workers)


# ---- iterable datasets


class Stream(IterableDataset[Any]):
    """Yields its items in turns with the other workers, each made by a function, and may draw."""

    def __init__(self, item: Item, length: int = 24) -> None:
        self.item = item
        self.length = length

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(first, self.length, step):
            yield (*self.item(index), draws()[0])


@script("stream")
def stream_with_functions(workers: int) -> DataLoader[Any]:
    return DataLoader(Stream(flip_and_resize_v2), 4, num_workers=workers)


class TransformedStream(Stream):
    def __init__(self, transform: Any) -> None:
        super().__init__(lambda index: (transform(picture(index)), index))
        self.transform = transform

    def __iter__(self) -> Iterator[Any]:
        for index in range(12):
            yield self.transform(picture(index)), index


@script("stream")
def stream_with_a_transform(workers: int) -> DataLoader[Any]:
    return DataLoader(TransformedStream(AUGMENT), 4, num_workers=workers)


class Pipeline(IterableDataset[Any]):
    """As webdataset: a chain of stages, each a generator over the one before."""

    def __init__(self, *stages: Callable[[Iterator[Any]], Iterator[Any]]) -> None:
        self.stages = stages

    def __iter__(self) -> Iterator[Any]:
        stream: Iterator[Any] = iter(range(24))
        for stage in self.stages:
            stream = stage(stream)
        return stream

    def mapped(self, function: Callable[[Any], Any]) -> Pipeline:
        return Pipeline(*self.stages, lambda stream: (function(one) for one in stream))

    def shuffled(self, size: int) -> Pipeline:
        def shuffle(stream: Iterator[Any]) -> Iterator[Any]:
            held: list[Any] = []
            for one in stream:
                held.append(one)
                if len(held) >= size:
                    yield held.pop(random.randrange(len(held)))
            yield from held

        return Pipeline(*self.stages, shuffle)

    def batched(self, size: int, collate: Callable[[list[Any]], Any]) -> Pipeline:
        def batch(stream: Iterator[Any]) -> Iterator[Any]:
            held: list[Any] = []
            for one in stream:
                held.append(one)
                if len(held) == size:
                    yield collate(held)
                    held = []

        return Pipeline(*self.stages, batch)


def decoded(index: int) -> dict[str, Any]:
    return {"jpg": picture_of_any_size(index), "cls": index}


@script("stream")
def webdataset(workers: int) -> DataLoader[Any]:
    transforms = {"jpg": AUGMENT, "cls": lambda label: label}
    pipeline = Pipeline().mapped(decoded)
    pipeline = pipeline.mapped(lambda sample: {key: transforms[key](value) for key, value in sample.items()})
    return DataLoader(pipeline.mapped(lambda sample: (sample["jpg"], sample["cls"])), 4, num_workers=workers)


@script("stream")
def webdataset_shuffled(workers: int) -> DataLoader[Any]:
    pipeline = Pipeline().mapped(decoded).shuffled(6)
    return DataLoader(pipeline.mapped(lambda sample: (AUGMENT(sample["jpg"]), sample["cls"])), 4, num_workers=workers)


@script("stream")
def webdataset_batched(workers: int) -> DataLoader[Any]:
    pipeline = Pipeline().mapped(decoded).mapped(lambda sample: (AUGMENT(sample["jpg"]), sample["cls"]))
    collate = torch.utils.data.default_collate
    return DataLoader(pipeline.batched(4, collate), batch_size=None, num_workers=workers)
