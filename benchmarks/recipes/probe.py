"""Run a training script as ``__main__`` and time its loop, plainly and with parts of its input removed.

``python probe.py SCRIPT ARGUMENTS``, with a JSON object in the environment: ``out`` (the file for the result),
``phases``, ``seconds`` (of each phase), and optionally ``batches`` (how many are repeated). The probe uses no code of
pipediag. It times the loop from optimizer step to optimizer step, with the device synchronised at both ends of a
stretch, and leaves out the beginning of an epoch and the validation. One process runs all phases in succession. The
phases that show starvation run three times, in turn (``plain:2`` is the second time):

========  ============================================================================================
plain     the script as it is
sample    each worker repeats one batch of finished samples: collating and sending remain
no-load   ``PIL.Image.open`` returns decoded pictures: transforms remain, without reading and decoding
host      a few repeated batches; the workers are idle
alone     no training: one thread makes samples, timed by their parts
device    the batches of ``host``, already on the GPU
========  ============================================================================================
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import random
import runpy
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VARIABLE = "RECIPES_PROBE"
PLAIN, SAMPLE, NO_LOAD = 0, 1, 2
FLAGS = {"sample": SAMPLE, "no-load": NO_LOAD}
#: Number of batches kept for ``host`` and ``device``, and of decoded pictures kept per process for ``no-load``.
BATCHES, PICTURES = 3, 16
#: Seconds and steps before the timing of a phase begins.
SETTLE_SECONDS, SETTLE_STEPS = 2.0, 4

shared = mmap.mmap(-1, 2)  # the workers' phase, and whether they used a kept picture; inherited by fork


class Probe:
    """The state of the measurement in the training process."""

    def __init__(self, out: str, phases: list[str], seconds: float, batches: int = BATCHES) -> None:
        self.out, self.phases, self.seconds, self.most = Path(out), list(phases), seconds, batches
        self.result: dict[str, Any] = {"phases": {}, "startups": []}
        self.phase = self.phases.pop(0)
        self.key = ""  # the loader that trains
        self.drawn: tuple[str, Any] = ("", None)  # the loader of the latest batch
        self.optimizer: int | None = None
        self.batches: list[Any] = []
        self.moved: list[Any] = []
        self.turn = 0
        self.workers = 0
        self._enter()

    def _enter(self) -> None:
        self.began, self.settled, self.steps, self.spent = time.perf_counter(), 0, 0, 0.0
        self.waited = 0.0  # seconds in next() while the clock runs
        self.open: float | None = None
        self.last = self.began
        shared[0] = FLAGS.get(self.phase, PLAIN)

    @property
    def replaying(self) -> bool:
        return self.phase.partition(":")[0] in ("host", "device")

    def stepped(self, optimizer: Any) -> None:
        """Count an optimizer step."""
        key, loader = self.drawn
        if self.optimizer is None:
            self.optimizer = id(optimizer)
        if id(optimizer) != self.optimizer:
            return
        if not self.key and loader is not None:
            self.key, self.workers = key, loader.num_workers
            size = loader.batch_size or 0
            self.result.update(workers=self.workers, batch=size, length=_length(loader), loader=key)
        now = time.perf_counter()
        if self.spent == 0 and self.open is None and not self._ready(now):
            self.settled += 1
            return
        if self.open is None:
            _synchronize()
            self.open = self.last = time.perf_counter()
            return
        self.steps, self.last = self.steps + 1, now
        whole = self.steps % max(1, self.workers) == 0 or now - self.began > 4 * self.seconds
        if self.spent + now - self.open >= self.seconds and whole:
            self.pause(synchronize=True)
            self._finish()

    def _ready(self, now: float) -> bool:
        rounds = 1 if self.replaying else 3
        enough = self.settled >= max(SETTLE_STEPS, rounds * self.workers) or now - self.began > 3 * self.seconds
        return enough and now - self.began >= SETTLE_SECONDS

    def pause(self, synchronize: bool = False) -> None:
        """Stop the clock: the loop does something other than training."""
        if self.open is not None:
            if synchronize:
                _synchronize()
                self.last = time.perf_counter()
            self.spent += self.last - self.open
            self.open = None

    def _finish(self) -> None:
        entry = {"steps": self.steps, "seconds": self.spent, "rate": self.steps / self.spent, "waited": self.waited}
        self.result["phases"][self.phase] = entry
        if self.phase == "no-load":
            entry["used"] = bool(shared[1])
        self.save()
        loader = self.drawn[1]
        while self.phases:
            self.phase = self.phases.pop(0)
            if self.phase == "alone":
                if loader is not None:
                    self.result["alone"] = alone(loader)
                    self.save()
            elif (self.phase != "device" or _cuda()) and (self.batches or not self.replaying):
                self._enter()
                return
        self.result["complete"] = True
        self.save()
        os._exit(0)

    def save(self) -> None:
        self.out.write_text(json.dumps(self.result))

    def replay(self) -> Any:
        """Return the next cached batch, on the device if the phase requires it."""
        if self.phase == "device" and len(self.moved) < len(self.batches):
            self.moved = [_to_device(batch) for batch in self.batches]
        kept = self.moved if self.phase == "device" else self.batches
        self.turn += 1
        return _copied(kept[self.turn % len(kept)])


def _cuda() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def _synchronize() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _length(loader: Any) -> int:
    try:
        return len(loader)
    except TypeError:
        return 0


def _key(loader: Any) -> str:
    dataset = loader.dataset
    size = len(dataset) if hasattr(dataset, "__len__") else -1
    return f"{type(dataset).__name__}:{size}:{loader.batch_size}:{type(loader.sampler).__name__}"


def _copied(value: Any) -> Any:
    """Copy the containers, but share the tensors."""
    if type(value) in (list, tuple):
        return type(value)([_copied(item) for item in value])
    return {key: _copied(item) for key, item in value.items()} if type(value) is dict else value


def _to_device(value: Any) -> Any:
    if hasattr(value, "to"):
        return value.to("cuda")
    if isinstance(value, dict):
        return {key: _to_device(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)([_to_device(item) for item in value])
    return value


def install(probe: Probe) -> None:
    """Hook torch and PIL without changing the script's behaviour."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook
    from torch.utils.data import DataLoader
    from torch.utils.data import dataloader as module

    register_optimizer_step_post_hook(lambda optimizer, args, kwargs: probe.stepped(optimizer))
    made, following, process = DataLoader.__iter__, module._BaseDataLoaderIter.__next__, os.getpid()

    def begun(loader: Any) -> Any:
        if os.getpid() != process:
            return made(loader)
        probe.pause()
        if probe.replaying and _key(loader) == probe.key:
            probe.drawn = (probe.key, loader)
            return replayed(loader)
        began = time.perf_counter()
        iterator = made(loader)
        iterator.probe_loader, iterator.probe_began, iterator.probe_count = loader, began, 0
        return iterator

    def replayed(loader: Any) -> Iterator[Any]:
        iterator = None
        for _ in range(_length(loader)) if _length(loader) else itertools.count():
            if iterator is None and not probe.replaying:  # the phase has ended in the middle of the epoch
                iterator = begun(loader)
            if iterator is None:
                yield probe.replay()
                continue
            try:
                batch = next(iterator)
            except StopIteration:
                break
            yield batch
        probe.pause(synchronize=True)

    def drawn(iterator: Any) -> Any:
        loader = getattr(iterator, "probe_loader", None)
        if loader is None or os.getpid() != process:
            return following(iterator)
        trains = bool(probe.key) and _key(loader) == probe.key
        iterator.probe_count += 1
        if trains and probe.replaying:
            # a loader with a length of its own draws all its epochs from one iterator
            ends = type(loader).__len__ is DataLoader.__len__
            if ends and _length(loader) and iterator.probe_count > _length(loader):
                probe.pause(synchronize=True)
                raise StopIteration
            return probe.replay()
        if not trains:
            probe.pause()
        asked = time.perf_counter()
        try:
            batch = following(iterator)
        except StopIteration:
            probe.pause(synchronize=True)
            raise
        if trains and probe.open is not None:
            probe.waited += time.perf_counter() - asked
        if iterator.probe_count == 1:
            started = time.perf_counter() - iterator.probe_began
            probe.result["startups"] = [*probe.result["startups"], [_key(loader), round(started, 4)]][-20:]
        elif trains and probe.phase == "plain" and len(probe.batches) < probe.most:
            probe.batches.append(_copied(batch))
        probe.drawn = (_key(loader), loader)
        if "drew" not in probe.result:
            probe.result["drew"] = True
            probe.save()
        return batch

    DataLoader.__iter__ = begun
    module._BaseDataLoaderIter.__next__ = drawn
    _hook_fetchers(torch)
    _hook_pictures()


def _hook_fetchers(torch: Any) -> None:
    fetching = torch.utils.data._utils.fetch
    original = fetching._MapDatasetFetcher.fetch

    def fetch(self: Any, indices: Any) -> Any:
        if not self.auto_collation:
            return original(self, indices)
        kept = getattr(self, "probe_samples", None)
        if shared[0] == SAMPLE and kept:
            return self.collate_fn([_copied(kept[number % len(kept)]) for number in range(len(indices))])
        if kept is not None:
            return original(self, indices)
        if getattr(self.dataset, "__getitems__", None):
            samples = self.dataset.__getitems__(indices)
        else:
            samples = [self.dataset[index] for index in indices]
        self.probe_samples = [_copied(sample) for sample in samples]
        return self.collate_fn(samples)

    fetching._MapDatasetFetcher.fetch = fetch


def _hook_pictures() -> None:
    from PIL import Image

    original, kept = Image.open, {}  # type: ignore[var-annotated]

    def opened(source: Any, *more: Any, **named: Any) -> Any:
        name = getattr(source, "name", source)
        suffix = Path(name).suffix if isinstance(name, (str, Path)) else ""
        pool = kept.setdefault(suffix, [])
        if shared[0] == NO_LOAD and pool:
            shared[1] = 1
            return random.choice(pool).copy()
        image = original(source, *more, **named)
        if len(pool) < PICTURES:
            pool.append(image.copy())
        return image

    Image.open = opened  # type: ignore[assignment]


class Timed:
    """A transform that sums up its own time and otherwise acts like the original."""

    def __init__(self, inner: Any, spent: dict[str, float]) -> None:
        self.__dict__.update(inner=inner, spent=spent)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return self.inner(*args, **kwargs)
        finally:
            name = getattr(self.inner, "__name__", type(self.inner).__name__)
            self.spent[name] = self.spent.get(name, 0.0) + time.perf_counter() - began

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def _wrap(value: Any, spent: dict[str, float], seen: set[int], depth: int = 0) -> bool:
    """Wrap the transforms below ``value``; return whether there were any."""
    if id(value) in seen or depth > 5 or isinstance(value, (str, bytes, int, float, type)):
        return False
    seen.add(id(value))
    found = False
    chain = getattr(value, "transforms", None)
    if isinstance(chain, list):
        for number, member in enumerate(chain):
            if not _wrap(member, spent, seen, depth + 1):
                chain[number] = Timed(member, spent)
        return True
    for name, inner in list(getattr(value, "__dict__", {}).items()):
        if isinstance(inner, list) and inner and hasattr(inner[0], "transforms"):
            for one in inner:
                found |= _wrap(one, spent, seen, depth + 1)
        elif hasattr(inner, "__dict__"):
            below = _wrap(inner, spent, seen, depth + 1)
            if not below and callable(inner) and "transf" in name and not isinstance(value, type(os)):
                setattr(value, name, Timed(inner, spent))
                below = True
            found |= below
    return found


def alone(loader: Any, least: int = 8, most: int = 96, seconds: float = 6.0) -> dict[str, Any]:
    """Return milliseconds per sample in one thread: in total, per transform, and for collating."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        if isinstance(loader.dataset, torch.utils.data.IterableDataset) or loader.batch_sampler is None:
            return {}
        spent: dict[str, float] = {}
        indices = next(iter(loader.batch_sampler))
        for index in indices[:4]:
            loader.dataset[index]
        _wrap(loader.dataset, spent, set())
        samples, began = [], time.perf_counter()
        for index in itertools.islice(itertools.cycle(indices), most):
            samples.append(loader.dataset[index])
            if len(samples) >= least and time.perf_counter() - began > seconds:
                break
        total = time.perf_counter() - began
        batches = max(1, min(10, 2000 // len(indices)))
        collating = 0.0
        for _ in range(batches + 1):
            batch = [_copied(samples[number % len(samples)]) for number in range(len(indices))]
            begun = time.perf_counter()
            loader.collate_fn(batch)
            collating = collating + time.perf_counter() - begun if _ else 0.0
        per = 1000.0 / len(samples)
        parts = {name: round(value * per, 4) for name, value in sorted(spent.items(), key=lambda item: -item[1])}
        collate = 1000.0 * collating / batches / len(indices)
        return {"sample_ms": total * per, "transforms_ms": parts, "collate_ms": collate, "samples": len(samples)}
    finally:
        torch.set_num_threads(threads)


def main(kind: type[Probe] = Probe) -> None:
    asked = json.loads(os.environ.pop(VARIABLE))
    script, sys.argv = sys.argv[1], sys.argv[1:]
    sys.path[0] = str(Path(script).resolve().parent)
    probe = kind(**asked)
    install(probe)
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        probe.result["ended"] = True
        if probe.steps and probe.phase not in probe.result["phases"]:
            probe.pause()
            if probe.spent:
                entry = {"steps": probe.steps, "seconds": probe.spent, "rate": probe.steps / probe.spent, "cut": True}
                probe.result["phases"][probe.phase] = entry
        probe.save()


if __name__ == "__main__":
    main()
