"""Measure what OpenCV's part of a loader costs a training, and what moving it off the CPU could bring at most.

    python -m benchmarks.cv2_cost train.py --data coco.yaml      # a script that uses ultralytics or albumentations
    python -m benchmarks.cv2_cost --forms plain:8 cut:8 -- train.py --batch 64

The script runs unmodified. What it iterates its training loader for is one endless epoch, in which one form of the
loader follows another (``FORM:WORKERS``), each for some seconds and for whole rounds of its workers. The forms:

- ``device``: some batches that stay on the device: the ceiling.
- ``plain``: the script's own pipeline.
- ``cut``: a crop of the same shape in place of warp and colour, of flips, and with albumentations of resizing and
  normalising: a bound for moving them.
- ``bare``: ultralytics' mosaic and change of layout go as well; decoding and labels are left.
- ``canvas``: as ``cut``, but workers hand over the whole mosaic, which a warp on the device needs.
- ``undecoded``: the script's own pipeline on one picture that is decoded once.
- ``handoff``: each worker serves the items that it made first: collating and handing over are left.
- ``stages``: the script's own pipeline, with clocks around its parts in the workers and around pinning.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing.queues
import runpy
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info
from torch.utils.data._utils import pin_memory

from benchmarks.common import RESULTS, save

FORMS = (
    *("device:8", "plain:8", "cut:8", "bare:8", "canvas:8", "handoff:8", "undecoded:8"),
    *("plain:4", "cut:4", "plain:15", "cut:15", "plain:8", "stages:8", "stages:1"),
)
STAGES = (
    *("read and decode", "mosaic", "warp", "resize", "colour", "flip", "border", "normalise", "layout", "the rest"),
    *("collate", "pickle", "items"),
)
#: OpenCV's functions by stage, wherever a library calls them.
KERNELS = {
    "warp": ("warpAffine", "warpPerspective", "remap"),
    "resize": ("resize",),
    "colour": ("cvtColor", "LUT"),
    "flip": ("flip",),
    "border": ("copyMakeBorder",),
}
#: albumentations' transforms by stage.
TRANSFORMS = {
    "resize": ("RandomResizedCrop", "RandomCrop", "Resize", "RandomScale", "PadIfNeeded"),
    "warp": ("Affine", "ShiftScaleRotate", "Perspective"),
    "colour": ("HueSaturationValue", "RandomBrightnessContrast", "ColorJitter"),
    "flip": ("HorizontalFlip", "VerticalFlip"),
    "normalise": ("Normalize",),
    "layout": ("ToTensorV2",),
}
#: Seconds by worker and stage; the last row is the training process's.
TOTALS = torch.zeros(65, len(STAGES), dtype=torch.float64).share_memory_()

_ITERATOR_OF = DataLoader._get_iterator
#: Number of batches that stay on the device.
_KEPT = 8

#: Owner, name and new value of an attribute.
Change = tuple[Any, str, Any]


def row() -> torch.Tensor:
    worker = get_worker_info()
    return TOTALS[-1 if worker is None else worker.id]


class Clocks:
    """Adds up exclusive seconds by stage: what a timed call runs that is timed itself is taken off."""

    def __init__(self) -> None:
        self._open = threading.local()

    def timed(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        column = STAGES.index(stage)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            inside = self._open.__dict__.setdefault("inside", [])
            inside.append(0.0)
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                took = time.perf_counter() - began
                row()[column] += took - inside.pop()
                if inside:
                    inside[-1] += took

        return call

    def changes(self, stage: str, owner: Any, *names: str) -> list[Change]:
        return [(owner, name, self.timed(stage, getattr(owner, name))) for name in names]


@contextmanager
def changed(changes: Sequence[Change]) -> Iterator[None]:
    before = [(owner, name, vars(owner)[name]) for owner, name, _ in changes]
    for owner, name, value in changes:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in reversed(before):
            setattr(owner, name, value)


class Ultralytics:
    """What makes the forms of ultralytics' detection pipeline."""

    def __init__(self) -> None:
        from ultralytics.data import augment, base
        from ultralytics.models.yolo.detect import DetectionTrainer

        self.augment, self.base, self.trainer = augment, base, DetectionTrainer

    def cut(self) -> list[Change]:
        def crop(self: Any, labels: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
            image, (width, height) = labels["img"], params["size"]
            top, left = (image.shape[0] - height) // 2, (image.shape[1] - width) // 2
            return labels | {"img": image[top : top + height, left : left + width], "resized_shape": (height, width)}

        return self._without_kernels(crop)

    def bare(self) -> list[Change]:
        def first(self: Any, labels: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
            size = 2 * self.imgsz  # as large as the mosaic, without copying anything
            return labels | {"img": np.lib.stride_tricks.as_strided(labels["img"], (size, size, 3), (0, 3, 1))}

        def crop(self: Any, labels: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
            width, height = params["size"]
            return labels | {"img": labels["img"][:height, :width], "resized_shape": (height, width)}

        return [*self._without_kernels(crop), (self.augment.Mosaic, "apply_image", first), self._without_layout()]

    def canvas(self) -> list[Change]:
        whole = self.trainer.preprocess_batch

        def uncropped(self: Any, labels: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
            width, height = params["size"]
            return labels | {"resized_shape": (height, width)}

        def cropped(self: Any, batch: dict[str, Any]) -> dict[str, Any]:
            images, size = batch["img"].to(self.device, non_blocking=True), self.args.imgsz
            return dict(whole(self, {**batch, "img": images[:, :, :size, :size]}))

        return [
            *self._without_kernels(uncropped),
            self._without_layout(),
            (self.trainer, "preprocess_batch", cropped),
        ]

    def undecoded(self) -> list[Change]:
        kept: list[np.ndarray] = []
        real = self.base.imread

        def read(*args: Any, **options: Any) -> np.ndarray:
            if not kept:
                kept.append(real(*args, **options))
            return kept[0].copy()

        return [(self.base, "imread", read)]

    def stages(self, clocks: Clocks) -> list[Change]:
        augment = self.augment
        return [
            *clocks.changes("read and decode", self.base, "imread"),
            *clocks.changes("mosaic", augment.Mosaic, "apply_image"),
            *clocks.changes("colour", augment.RandomHSV, "apply_image"),
            *clocks.changes("flip", augment.RandomFlip, "apply_image"),
            *clocks.changes("layout", augment.Format, "_format_img"),
        ]

    def _without_kernels(self, warp: Callable[..., Any]) -> list[Change]:
        def same(self: Any, labels: dict[str, Any], params: Any = None) -> dict[str, Any]:
            return labels

        others = (self.augment.RandomHSV, self.augment.RandomFlip)
        return [(self.augment.RandomPerspective, "apply_image", warp), *((one, "apply_image", same) for one in others)]

    def _without_layout(self) -> Change:
        def reshaped(self: Any, image: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(np.ascontiguousarray(image).reshape(image.shape[2], *image.shape[:2]))

        return self.augment.Format, "_format_img", reshaped


class Albumentations:
    """What makes the forms of a pipeline that reads with ``cv2.imread`` and transforms ``image`` and ``mask``."""

    def __init__(self, height: int, width: int) -> None:
        import albumentations

        self.album, self.height, self.width = albumentations, height, width

    def cut(self) -> list[Change]:
        rows, columns = slice(0, self.height), slice(0, self.width)

        def crop(self: Any, *, image: np.ndarray, mask: np.ndarray) -> dict[str, torch.Tensor]:
            pixels = torch.from_numpy(image[rows, columns]).permute(2, 0, 1)
            return {"image": pixels, "mask": torch.from_numpy(mask[rows, columns])}

        return [(self.album.Compose, "__call__", crop)]

    def undecoded(self) -> list[Change]:
        kept: dict[int, np.ndarray] = {}
        real = cv2.imread

        def read(path: str, flags: int = cv2.IMREAD_COLOR) -> np.ndarray:
            if flags not in kept:
                kept[flags] = real(path, flags)
            return kept[flags]

        return [(cv2, "imread", read)]

    def stages(self, clocks: Clocks) -> list[Change]:
        owner = self.album.BasicTransform
        plain = owner.apply_with_params
        timed = {name: clocks.timed(stage, plain) for stage, names in TRANSFORMS.items() for name in names}

        def apply(self: Any, *args: Any, **kwargs: Any) -> Any:
            return timed.get(type(self).__name__, plain)(self, *args, **kwargs)

        return [*clocks.changes("read and decode", cv2, "imread"), (owner, "apply_with_params", apply)]


class Served(Dataset[Any]):
    """The items of another data set, each got by a function of it and the index."""

    def __init__(self, dataset: Any, item: Callable[[Any, int], Any]) -> None:
        self._dataset, self._item = dataset, item

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        return self._item(self._dataset, index)


def first_items(number: int) -> Callable[[Any, int], Any]:
    kept: list[Any] = []

    def item(dataset: Any, index: int) -> Any:
        if len(kept) < number:
            kept.append(dataset[index])
        one = kept[index % len(kept)]
        if isinstance(one, dict):  # ultralytics' collate function adds to these in place
            one = one | {"batch_idx": torch.zeros_like(one["batch_idx"])}
        return one

    return item


class Endless(Sampler[int]):
    def __init__(self, length: int) -> None:
        self._length = length

    def __iter__(self) -> Iterator[int]:
        while True:
            yield from torch.randperm(self._length).tolist()


class Pickler:
    """What a queue pickles with, and a clock: it also copies tensors to shared memory that are not there yet."""

    def __init__(self, clocks: Clocks) -> None:
        real = multiprocessing.queues._ForkingPickler  # type: ignore[attr-defined]
        self.dumps, self.loads = clocks.timed("pickle", real.dumps), real.loads


class Pinning:
    """Pins a batch as torch does, and adds up the seconds."""

    def __init__(self) -> None:
        self._real, self._depth = pin_memory.pin_memory, 0
        self.seconds, self.batches = 0.0, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._depth += 1  # it calls itself for the parts of a batch
        began = time.perf_counter()
        try:
            return self._real(*args, **kwargs)
        finally:
            self._depth -= 1
            if not self._depth:
                self.seconds += time.perf_counter() - began
                self.batches += 1


def tensors(batch: Any) -> Iterator[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        yield batch
    for part in batch.values() if isinstance(batch, dict) else batch if isinstance(batch, (list, tuple)) else ():
        yield from tensors(part)


def on_device(batch: Any, device: torch.device) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {key: on_device(value, device) for key, value in batch.items()}
    return [on_device(value, device) for value in batch] if isinstance(batch, (list, tuple)) else batch


class Measurement:
    """Gives the script's first loader its batches, form by form, and saves each form's pace."""

    def __init__(self, name: str, forms: Sequence[str], seconds: float, warm: float, out: Path) -> None:
        self._name, self._forms, self._seconds, self._warm, self._out = name, forms, seconds, warm, out
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._rows: list[dict[str, Any]] = []
        self._begun = False
        self._pinning = Pinning()

    def iterator_of(self, loader: DataLoader[Any]) -> Any:
        if self._begun:
            return _ITERATOR_OF(loader)
        self._begun = True
        return self._batches(loader)

    def _batches(self, loader: DataLoader[Any]) -> Iterator[Any]:
        """Yield the batches of every form in turn, and end the script after the last."""
        library = type(loader.dataset).__module__.startswith("ultralytics.")
        parts = Ultralytics() if library else Albumentations(*self._size(loader))
        for form, _, workers in (one.partition(":") for one in self._forms):
            yield from self._form(form, int(workers), loader, parts)
        self._compare()
        raise SystemExit(0)

    def _size(self, loader: DataLoader[Any]) -> tuple[int, int]:
        height, width = next(tensors(loader.dataset[0])).shape[-2:]
        return height, width

    def _form(self, form: str, workers: int, loader: DataLoader[Any], parts: Any) -> Iterator[Any]:
        clocks = Clocks()
        dataset, collate, changes = loader.dataset, loader.collate_fn, list[Change]()
        if form in ("cut", "bare", "canvas", "undecoded"):
            changes = getattr(parts, form)()
        elif form == "handoff":
            dataset = Served(dataset, first_items(loader.batch_size or 1))
        elif form == "stages":
            item = clocks.timed("the rest", lambda items, index: items[index])

            def counted(items: Any, index: int) -> Any:
                row()[-1] += 1
                return item(items, index)

            dataset, collate = Served(dataset, counted), clocks.timed("collate", collate)
            kernels = [clocks.changes(stage, cv2, *names) for stage, names in KERNELS.items()]
            changes = [*parts.stages(clocks), *(change for found in kernels for change in found)]
            changes.append((multiprocessing.queues, "_ForkingPickler", Pickler(clocks)))
            changes.append((pin_memory, "pin_memory", self._pinning))
        with changed(changes):
            made: DataLoader[Any] = DataLoader(
                dataset,
                loader.batch_size,
                sampler=Endless(len(dataset)),  # type: ignore[arg-type]
                num_workers=workers,
                collate_fn=collate,
                pin_memory=loader.pin_memory,
                prefetch_factor=1 if form == "canvas" else loader.prefetch_factor,
                worker_init_fn=loader.worker_init_fn,
                drop_last=True,
            )
            iterator: Any = _ITERATOR_OF(made)
            try:
                if form == "device":
                    kept = [on_device(next(iterator), self._device) for _ in range(_KEPT)]
                    iterator._shutdown_workers()
                    yield from self._timed(form, 0, again(kept))
                else:
                    yield from self._timed(form, workers, iterator)
            finally:
                iterator._shutdown_workers()
        if form == "stages":
            self._add_stages()

    def _timed(self, form: str, workers: int, iterator: Iterator[Any]) -> Iterator[Any]:
        """Yield batches until the window is over; it begins after two rounds of the workers and lasts whole rounds."""
        given, first, waited, began = 0, None, 0.0, time.perf_counter()
        while True:
            asked = time.perf_counter()
            batch = next(iterator)
            now = time.perf_counter()
            waited += now - asked
            if first is None and given >= 2 * workers and now - began >= self._warm:
                self._synchronize()
                TOTALS.zero_()  # first calls take longer
                self._pinning.seconds, self._pinning.batches = 0.0, 0
                first, waited, began = given, 0.0, time.perf_counter()
            elif first is not None and now - began >= self._seconds and (given - first) % max(1, workers) == 0:
                break
            given += 1
            yield batch
        self._synchronize()
        steps, took = given - first, time.perf_counter() - began
        found = {
            "form": form,
            "workers": workers,
            "steps_per_s": round(steps / took, 3),
            "step_ms": round(1000 * took / steps, 2),
            "waited_ms": round(1000 * waited / steps, 2),
            "steps": steps,
            "batch_bytes": sum(one.nbytes for one in tensors(batch)),
        }
        self._rows.append(found)
        self._save()
        print(
            f"\n{form:9} {workers:3} workers  {found['steps_per_s']:8.2f} steps/s  {found['step_ms']:8.1f} ms a step, "
            f"{found['waited_ms']:.1f} of it waiting; {found['batch_bytes'] / 1e6:.1f} MB a batch, {steps} steps",
            flush=True,
        )

    def _add_stages(self) -> None:
        *seconds, items = TOTALS[:-1].sum(0).tolist()
        found = {
            name: round(1000 * total / items, 4) for name, total in zip(STAGES[:-1], seconds, strict=True) if total
        }
        self._rows[-1]["ms_per_item"] = found
        if self._pinning.batches:
            self._rows[-1]["pinning_ms_per_batch"] = round(1000 * self._pinning.seconds / self._pinning.batches, 2)
        self._save()
        print("ms of a worker per item:", ", ".join(f"{name} {ms:.3f}" for name, ms in found.items()), flush=True)
        print("ms of pinning per batch:", self._rows[-1].get("pinning_ms_per_batch"), flush=True)

    def _compare(self) -> None:
        """Print the gain of each form over the plain pipeline with as many workers."""
        paces: dict[tuple[str, int], list[float]] = {}
        for found in self._rows:
            paces.setdefault((found["form"], found["workers"]), []).append(found["steps_per_s"])
        means = {key: sum(values) / len(values) for key, values in paces.items()}
        ceiling = means.get(("device", 0))
        for (form, workers), pace in means.items():
            if ("plain", workers) in means and form not in ("plain", "stages"):
                print(f"{form} with {workers} workers: {pace / means['plain', workers]:.2f}x of plain", flush=True)
            elif form == "plain" and ceiling is not None:
                print(f"plain with {workers} workers: {pace / ceiling:.0%} of the ceiling", flush=True)

    def _save(self) -> None:
        facts = {"opencv": cv2.__version__, "arguments": sys.argv[1:], "rows": self._rows}
        save(f"cv2_cost_{self._name}", facts, self._out)

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()


def again(batches: Sequence[Any]) -> Iterator[Any]:
    """Yield batches again and again; of a dict a copy, since loops change theirs in place."""
    while True:
        yield from (dict(batch) if isinstance(batch, dict) else batch for batch in batches)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forms", nargs="+", default=FORMS, metavar="FORM:WORKERS")
    parser.add_argument("--seconds", type=float, default=3.0, help="at least, for each form")
    parser.add_argument("--warm", type=float, default=1.5, help="seconds before, at least")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("script", type=Path)
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    measurement = Measurement(args.script.stem, args.forms, args.seconds, args.warm, args.out.resolve())
    sys.argv = [str(args.script), *args.arguments]
    sys.path.insert(0, str(args.script.resolve().parent))
    with changed([(DataLoader, "_get_iterator", lambda loader: measurement.iterator_of(loader))]):
        runpy.run_path(str(args.script), run_name="__main__")


if __name__ == "__main__":
    main()
