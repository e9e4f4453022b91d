"""What invented scripts define themselves: each class or function is pasted into the scripts that name it."""

from __future__ import annotations

import copy
import pickle
import queue
import random
import threading
from collections import namedtuple
from dataclasses import dataclass
from functools import cache
from itertools import islice

import numpy as np
import torch
from PIL import Image, ImageChops, ImageEnhance, ImageFilter, ImageOps
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate, get_worker_info
from torchvision.transforms import functional as TF
from torchvision.transforms import v2

from .record import alive, called, saw

FACTOR = 1.0
Sample = namedtuple("Sample", "x y")


def pixels(n):
    return np.random.default_rng(1).integers(0, 256, (n, 12, 14, 3), dtype=np.uint8)


@cache
def opened(path):
    called()
    return Image.open(path).convert("RGB")


def moved(x, level):
    if isinstance(x, Image.Image):
        return ImageChops.offset(x, level, 0)
    return [torch.roll(view, level, -1) for view in x] if isinstance(x, list) else torch.roll(x, level, -1)


def brightened_by(x, level):
    if isinstance(x, list):
        return [TF.adjust_brightness(view, 1 + level / 8) for view in x]
    return TF.adjust_brightness(x, 1 + level / 8)


def multiplied_by(x, level):
    return [view * (1 + level / 4) for view in x] if isinstance(x, list) else x * (1 + level / 4)


# Calls of plain code.


MEANS = torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1)


def written_at_once(x):
    x = x.clone()
    x[..., 0] = 0
    x.numpy()[..., 1] = 1
    return x


#: Parts of an image that lie in its memory.
PARTS = (
    lambda x: x[0],
    lambda x: x.unbind(-3)[-1],
    lambda x: x.reshape(-1)[3:9],
    lambda x: x.transpose(-1, -2)[..., ::2],
    lambda x: x[..., 1:4, 2:7],
    lambda x: x.detach(),
    lambda x: x.narrow(-1, 1, 3),
    lambda x: x[None][0],
    lambda x: x.chunk(2, -1)[0],
)


def written_by_parts(x):
    part, other = random.choice(PARTS)(x), random.choice(PARTS)(x)
    turned = TF.hflip(x)
    if random.random() < 0.5:
        part.float().mean()
    part.copy_(part.flip(-1))
    other.zero_()
    return random.choice((x, turned))


#: What code may do with a tensor that nobody expects, and leaves its shape and dtype as they are.
WITH_TENSORS = (
    lambda x: x.flip(-1).contiguous(),
    lambda x: torch.stack([*x.unbind(-3)][::-1], -3),
    lambda x: x.sort(dim=-1).values,
    lambda x: torch.roll(x, (2, 1), (-1, -2)),
    lambda x: torch.where(x > x.float().mean(), x, x.flip(-2)),
    lambda x: torch.maximum(x, x.flip(-1)),
    lambda x: x.masked_fill(x > x.float().mean(), 0),
    lambda x: torch.from_numpy(np.flip(x.numpy(), -1).copy()),
    lambda x: torch.as_tensor(np.asarray(x)).clone(),
    lambda x: torch.tensor(x.tolist(), dtype=x.dtype),
    lambda x: pickle.loads(pickle.dumps(x)),
    lambda x: copy.deepcopy(x).flip(-1),
    lambda x: torch.func.vmap(lambda row: row.flip(-1))(x),
    lambda x: torch.nn.functional.pad(x, (1, 1))[..., 1:-1],
    lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
    lambda x: torch.nn.functional.avg_pool2d(x.float(), 3, 1, 1).to(x.dtype),
    lambda x: x[..., torch.randperm(x.shape[-1])],
    lambda x: x.gather(-1, torch.zeros(x.shape, dtype=torch.long)),
    lambda x: torch.cat(x.split(3, -1)[::-1], -1),
    lambda x: sum(x.unbind(-3)).unsqueeze(-3).expand_as(x),
    lambda x: x.unfold(-1, 1, 1).squeeze(-1),
    lambda x: x if torch.equal(x, x.clone()) and x.any() else x * 0,
    written_at_once,
    *[written_by_parts] * 4,
)
#: The same with pictures.
WITH_PICTURES = (
    lambda x: x.transpose(Image.Transpose.ROTATE_180),
    lambda x: x.point(lambda value: value // 2),
    lambda x: Image.merge("RGB", x.split()[::-1]),
    lambda x: x.filter(ImageFilter.MedianFilter(3)),
    lambda x: x.convert("L").convert("RGB"),
    lambda x: x.quantize(8).convert("RGB"),
    lambda x: ImageChops.multiply(x, ImageOps.mirror(x)),
    lambda x: Image.composite(x, ImageOps.flip(x), Image.new("L", x.size, 99)),
    lambda x: Image.frombytes(x.mode, x.size, x.tobytes()),
    lambda x: Image.fromarray(255 - np.asarray(x)),
    lambda x: x.reduce(2).resize(x.size),
    lambda x: x if x == x.copy() and x.getextrema() and x.histogram() else x.rotate(90),
    lambda x: ImageOps.expand(x, 1, 7).resize(x.size, box=(1, 1, 9, 9)),
    lambda x: pickle.loads(pickle.dumps(x)),
    lambda x: (turned := x.copy(), turned.paste(turned.crop((0, 0, 4, 4)), (3, 3)))[0],
    lambda x: (dotted := x.copy(), dotted.putpixel((1, 1), (1, 2, 3)))[0],
)


def anything(x, i):
    known = WITH_PICTURES if isinstance(x, Image.Image) else WITH_TENSORS
    return known[(7 * i + random.randrange(1000)) % len(known)](x)


def jittered(x, order, factors):
    for n in order:
        if factors[n] is not None:
            change = (TF.adjust_brightness, TF.adjust_contrast, TF.adjust_saturation, TF.adjust_hue)[n]
            x = change(x, factors[n])
    return x


def solarized(x, threshold):
    floats = isinstance(x, torch.Tensor) and x.is_floating_point()
    return TF.solarize(x, threshold if floats else int(256 * threshold))


def turning(angle):
    def turned(x):
        return TF.rotate(x, angle)

    return turned


def tried(x, i):
    try:
        x = TF.hflip(x)
        if i % 4 == 1:
            raise KeyError(i)
    except KeyError:
        x = TF.vflip(x)
    return x


def pasted(image):
    image = image.copy()
    image.paste((9, 9, 9), (1, 1, 4, 4))
    return image


def thumbnail_of(image):
    image.thumbnail((9, 9))
    return image


def added_to(x, number):
    x += number
    return x


def is_alike(earlier, x):
    return isinstance(earlier, torch.Tensor) and earlier.shape == x.shape


def summed_up(earlier, x):
    return (earlier * 0.5 + x).to(x.dtype) if is_alike(earlier, x) else x


def mask_of(x, seed):
    mask = np.ones(tuple(x.shape[-2:]), np.float32)
    top, left = np.random.default_rng(seed).integers(0, 6, 2)
    mask[top : top + 4, left : left + 4] = 0.0
    return torch.from_numpy(mask).expand_as(x)


def with_box(x):
    if x.ndim == 3:
        x[:, 2:5, 3:6] = 0
    return x


def shuffled(samples, size=5):
    held = []
    for sample in samples:
        held.append(sample)
        if len(held) >= size:
            yield held.pop(random.randrange(len(held)))
    yield from held


def checked(samples):
    for sample in samples:
        called()
        if random.random() < 0.9:
            yield sample


class Pulled:
    def __init__(self, samples):
        self.samples = iter(samples)

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.samples)


def averaged(array):
    found = array.astype(np.float32)
    found[1:-1] = (found[:-2] + found[1:-1] + found[2:]) / 3
    return found.astype(array.dtype)


def looked_up(array, gamma):
    table = (255 * (np.arange(256) / 255) ** gamma).astype(np.uint8)
    return table[np.clip(array * (1 if array.dtype == np.uint8 else 255), 0, 255).astype(np.uint8)]


def turned(array, angle):
    y, x = np.mgrid[: array.shape[0], : array.shape[1]]
    rows = np.clip(np.rint(y * np.cos(angle) - x * np.sin(angle)), 0, len(array) - 1).astype(int)
    return np.ascontiguousarray(array[rows, x])


def boxed(array):
    array[..., 1:4, 2:5] = 0
    return array


def batched(samples, collate, size=4):
    held = []
    for sample in samples:
        held.append(sample)
        if len(held) == size:
            yield collate(held)
            held = []


def adjusted(transform, i):
    transform.sample = i
    for stage in transform.transforms:
        for name, value in (("p", 0.2 * (i % 5)), ("factor", 0.5 + 0.1 * (i % 3)), ("degrees", [0.0, 2.0 * i])):
            if isinstance(getattr(stage, name, None), (float, list)):
                setattr(stage, name, value)


def overwrite(x):
    if isinstance(x, Image.Image):
        x.frombytes(x.tobytes()[::-1])
    else:
        x.copy_(x.flip(-1))


class Followed(TorchFunctionMode):
    calls = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        return func(*args, **(kwargs or {}))


# Transforms of pictures, of tensors, and from one to the other.


class Handed:
    """Its methods are handed on as transforms."""

    def __init__(self):
        self.seen = 0

    def flipped(self, image):
        called()
        self.seen += 1
        return TF.hflip(image) if self.seen % 3 else image

    def brightened(self, image):
        self.seen += 1
        return TF.adjust_brightness(image, 1 + self.seen % 4 / 8)


class Mirror:
    def __call__(self, image):
        return ImageOps.mirror(image) if random.random() < 0.5 else image


class Enhance:
    def __call__(self, image):
        image = ImageEnhance.Brightness(image).enhance(random.uniform(0.5, 1.5))
        return ImageEnhance.Contrast(image).enhance(random.uniform(0.5, 1.5))


class Tilt:
    def __call__(self, image):
        return image.rotate(np.random.uniform(-15, 15), Image.Resampling.BILINEAR)


class Paste:
    def __call__(self, image):
        image = image.copy()
        image.paste((random.randint(0, 255), 0, 0), (2, 2, 5, 5))
        image.putpixel((0, 0), (1, 2, 3))
        return image


class Held:
    """Writes into the picture that it returned before."""

    last = None

    def __call__(self, image):
        if self.last is not None:
            self.last[2, 3] = (1, 2, 3)
        self.last = image.load()
        return image


class Thumbnail:
    def __call__(self, image):
        image.thumbnail((9, 9))
        return image


class Turn:
    def __call__(self, x):
        if random.random() < 0.5:
            x = TF.hflip(x)
        return TF.rotate(x, random.uniform(-20, 20))


class Ops:
    def __call__(self, image):
        image = ImageOps.autocontrast(image) if random.random() < 0.5 else ImageOps.equalize(image)
        return ImageOps.posterize(ImageOps.expand(image, 1).resize(image.size), 5)


class Points:
    def __call__(self, image):
        return image.point([255 - value for value in range(256)] * 3).transpose(Image.Transpose.ROTATE_180)


class Warp:
    def __call__(self, image):
        data = (1, random.uniform(-0.2, 0.2), 0, 0, 1, 0)
        image = image.transform(image.size, Image.Transform.AFFINE, data, Image.Resampling.BILINEAR)
        return image.filter(ImageFilter.SMOOTH)


class Blend:
    def __call__(self, image):
        return Image.blend(image, image.convert("L").convert("RGB"), random.random())


class FlippedArray:
    def __call__(self, image):
        return Image.fromarray(np.ascontiguousarray(np.asarray(image)[:, ::-1]))


class ToArray:
    def __init__(self, strided=False):
        self.strided = strided

    def __call__(self, image):
        x = torch.from_numpy(np.asarray(image, dtype=np.float32) / 255).permute(2, 0, 1)
        return x if self.strided else x.contiguous()


class ToFloat:
    def __call__(self, x):
        return x.float() / 255


class Scale:
    def __init__(self, factor=0.5):
        self.factor = factor

    def __call__(self, x):
        return x * self.factor


class Centre:
    def __call__(self, x):
        x -= x.mean()
        return x


class Noise:
    def __call__(self, x):
        return x + 0.1 * torch.randn_like(x)


class NumpyNoise:
    def __call__(self, x):
        return x + torch.from_numpy(np.random.normal(0, 0.1, x.shape).astype(np.float32))


class Roll:
    def __call__(self, x):
        return torch.roll(x, random.randint(0, 3), -1)


class Cutout:
    def __call__(self, x):
        top = int(torch.randint(0, 5, (1,)))
        x[:, top : top + 3] = 0
        return x


class Counted:
    seen = 0

    def __call__(self, x):
        called()
        self.seen += 1
        return x + self.seen / 64


class Sliced:
    def __call__(self, x):
        return x[:, 1:, :-1]


class Transposed:
    def __call__(self, x):
        return x.transpose(1, 2)


class Expanded:
    def __call__(self, x):
        return x[:1].expand(3, -1, -1)


class Branching:
    def __call__(self, x):
        return x.flip(-1) if x.mean() > 0.5 else x


class MixedWithLast:
    last = None

    def __call__(self, x):
        alike = self.last is not None and self.last.shape == x.shape
        self.last, last = x, self.last
        return (x + last) / 2 if alike else x


def brightened(x):
    return x.clamp(0, 1) ** 0.9


YCBCR = torch.tensor([[0.299, 0.587, 0.114], [-0.169, -0.331, 0.5], [0.5, -0.419, -0.081]])


def ycbcr(x):
    return torch.matmul(YCBCR.to(x.dtype), x.reshape(3, -1)).reshape(x.shape)


class Level:
    def __call__(self, x):
        return x * FACTOR


class Stack:
    def __call__(self, crops):
        return torch.stack(crops)


class OwnGenerator:
    def __init__(self):
        self.random, self.torch = random.Random(3), torch.Generator().manual_seed(4)

    def __call__(self, x):
        return x * self.random.random() + torch.rand(1, generator=self.torch)


# What calls them.


class Chain:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, x):
        for transform in self.transforms:
            x = transform(x)
        return x


class Joint:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, x, y):
        if random.random() < 0.5:
            x, y = TF.hflip(x), y + 1
        for transform in self.transforms:
            x = transform(x)
        return x, y


class Wrapped(Dataset):
    def __init__(self, base, transform):
        self.base, self.transform = base, transform
        alive.add(self)

    def __len__(self):
        return len(self.base)

    def __getitem__(self, i):
        x, y = self.base[i]
        return self.transform(x), y


class Transformed:
    def __init__(self, transform):
        self.transform = transform

    def __call__(self, samples):
        return default_collate([(self.transform(x), y) for x, y in samples])


# Loaders.


class OwnSampler(Sampler):
    def __init__(self, n):
        self.n, self.epoch = n, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(np.random.default_rng(self.epoch).permutation(self.n).tolist())

    def __len__(self):
        return self.n


class StatefulSampler(OwnSampler):
    def __iter__(self):
        self.epoch += 1
        return super().__iter__()


class DrawnSampler(OwnSampler):
    def __iter__(self):
        for i in random.sample(range(self.n), self.n):
            np.random.rand()
            yield i


class Counting(DataLoader):
    def __iter__(self):
        for batch in super().__iter__():
            called()
            saw("counted", batch)
            yield batch


class Noting(DataLoader):
    def _get_iterator(self):
        return map(noted, super()._get_iterator())


def noted(batch):
    called()
    saw("noted", batch)
    return batch


class Shortened(DataLoader):
    def __len__(self):
        return max(1, super().__len__() - 1)

    def __iter__(self):
        return islice(super().__iter__(), len(self))


def shown_batches(loader):
    for n, batch in enumerate(loader):
        called()
        yield batch
        saw("shown", str(n))


def mark(part):
    """Write into all that a batch holds: the dataset may hold it, too."""
    if isinstance(part, torch.Tensor):
        if part.dtype is not torch.bool and part.layout is torch.strided and 0 not in part.stride():
            part.add_(1)
    elif isinstance(part, (list, tuple)):
        for one in part:
            mark(one)
    elif isinstance(part, dict):
        for one in part.values():
            mark(one)
        part["marked"] = 1


def fetched_batches(loader):
    batches = queue.Queue(2)

    def fetch():
        try:
            for batch in loader:
                batches.put(batch)
        finally:  # also after an error of the loader's
            batches.put(None)

    thread = threading.Thread(target=fetch, daemon=True)
    thread.start()
    yield from iter(batches.get, None)
    thread.join()


def note_on_dataset(number):
    get_worker_info().dataset.note = number + 1


def seed_worker(number):
    np.random.seed(torch.initial_seed() % 2**31 + number)
    random.seed(torch.initial_seed() % 2**31)


def collate_reversed(samples):
    called()
    return default_collate(samples[::-1])


def collate_listed(samples):
    return list(samples)


def counting_collate():
    calls = 0

    def collate(samples):
        nonlocal calls
        calls += 1
        return {"samples": default_collate(samples), "calls": calls}

    return collate


class Collate:
    calls = 0

    def __call__(self, samples):
        self.calls += 1
        return {"samples": default_collate(samples), "calls": self.calls}


def first_tensor(x):
    while not isinstance(x, torch.Tensor):
        x = x[0] if isinstance(x, (list, tuple)) else next(iter(x.values()))
    return x


def collate_in_place(samples):
    for n, sample in enumerate(samples):
        first_tensor(sample)[0, 0, 0] = n
    return default_collate(samples)


@dataclass
class Batch:
    x: torch.Tensor
    y: torch.Tensor

    def pin_memory(self):
        return Batch(self.x.pin_memory(), self.y.pin_memory())


def collate_dataclass(samples):
    return Batch(*default_collate(samples))


def collate_odd(samples):
    x, y = default_collate(samples)
    odd = {"none": None, "empty": torch.empty(0, 3), "sparse": torch.eye(3).to_sparse(), "text": ["a", b"b"]}
    return {"x": x, "y": y, **odd, "set": {1, 2}, "turned": x.transpose(-1, -2), "number": np.float64(0.1)}


def collate_padded(samples):
    lengths = [torch.arange(int(y) % 4 + 1) for _, y in samples]
    return *default_collate(samples), torch.nn.utils.rnn.pad_sequence(lengths, batch_first=True)


def collate_detection(samples):
    return tuple(zip(*samples, strict=True))


def collate_mixup(samples):
    mixed = v2.RandomChoice([v2.MixUp(num_classes=256), v2.CutMix(num_classes=256)])
    return mixed(*default_collate(samples))


def collate_mixed(samples):
    x, y = default_collate(samples)
    share = np.random.beta(1.0, 1.0)
    return x * share + x.flip(0) * (1 - share), y


def collate_mixed_order(samples):
    x, y = default_collate(samples)
    share, order = np.random.beta(1.0, 1.0), torch.randperm(len(x))
    return share * x + (1 - share) * x[order], y, y[order]


def collate_sequence(samples):
    rows = [x.movedim(-2, 0)[: 8 + int(y) % 4] for x, y in samples]
    x = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=0.5)
    return x.movedim(1, -2), torch.tensor([int(y) for _, y in samples])


def collate_channels(samples):
    x, y = default_collate(samples)
    return x.contiguous(memory_format=torch.channels_last), y


def collate_unbound(samples):
    x, y = default_collate(samples)
    return [list(x.unbind(0)), y]


def collate_filtered(samples):
    return default_collate([sample for sample in samples if sample[1] % 3 != 2] or samples[:1])


def collate_stacked(samples):
    return torch.stack([x for x, _ in samples]), torch.tensor([y for _, y in samples])


def tensor_of(x):
    return TF.pil_to_tensor(x) if isinstance(x, Image.Image) else x


class Processor:
    """The calls of an image processor that works on stacks of images of one size."""

    def __init__(self, fused):
        self.fused, self.calls = fused, 0

    def __call__(self, samples):
        self.calls += 1
        images = self.each([tensor_of(x).contiguous() for x, _ in samples], self.resized)
        images = self.each(images, self.normalized)
        return {"x": torch.stack(images), "y": torch.tensor([y for _, y in samples]), "calls": self.calls}

    def each(self, images, change):
        groups = {}
        for n, image in enumerate(images):
            groups.setdefault(image.shape[-2:], []).append((n, image))
        made = {}
        for group in groups.values():
            changed = change(torch.stack([image for _, image in group]))
            made |= {n: changed[k] for k, (n, _) in enumerate(group)}
        return [made[n] for n in range(len(images))]

    def resized(self, images):
        return v2.functional.resize(images, [9, 10], interpolation=v2.InterpolationMode.BICUBIC, antialias=True)

    def normalized(self, images):
        images = v2.functional.center_crop(images, [8, 8])
        if self.fused:
            return v2.functional.normalize(images.to(dtype=torch.float32), [120.0, 110.0, 100.0], [60.0, 50.0, 40.0])
        return v2.functional.normalize((images * (1 / 255)).to(dtype=torch.float32), [0.5] * 3, [0.2] * 3)


def collate_pictures(samples):
    images = [TF.resize(tensor_of(x), [9, 9], antialias=True) for x, _ in samples]
    if random.random() < 0.5:
        images = [TF.hflip(image) for image in images]
    return torch.stack([image.float() / 255 for image in images]), torch.tensor([y for _, y in samples])


def collate_normalized(samples):
    x, y = default_collate(samples)
    return v2.functional.normalize(v2.functional.to_dtype(x, torch.float32, scale=True), [0.5] * 3, [0.25] * 3), y


def collate_augmented(samples):
    change = v2.Compose([v2.RandomHorizontalFlip(), v2.ColorJitter(0.3)])
    return default_collate([(change(x) if n % 2 else v2.functional.vflip(x), y) for n, (x, y) in enumerate(samples)])
