"""List the cases: the planted costs, their size relative to the training step, and the pipeline around them."""

from __future__ import annotations

from dataclasses import dataclass

#: Stages from the device outwards: the order in which the costs of several plants are separated.
STAGES = ("transfer", "ipc", "collate", "transform", "load", "storage", "startup", "contention")
#: Plants whose work runs in the training process, whatever the number of workers.
IN_TRAINING_PROCESS = ("transfer", "ipc", "startup")


@dataclass(frozen=True)
class Plant:
    """A cost in one place.

    ``size`` is the cost to *training* that is wanted, in steps. With ``hidden`` it is the loader's time for a batch, in
    steps; the workers hide it while it is below 1. For ``contention`` it is the CPU time that a batch costs the
    workers. ``kind`` is ``sleep`` (latency), ``burn`` (keeps a core busy) or the name of some real work; the size of
    real work is nominal, because the benchmark measures what a plant really costs. ``link`` is the position of a
    planted transform in its chain, from 0.
    """

    stage: str
    size: float
    kind: str = "sleep"
    link: int = 0
    hidden: bool = False

    @property
    def key(self) -> str:
        return f"{self.stage}:{self.link}" if self.stage == "transform" else self.stage


@dataclass(frozen=True)
class Case:
    """One script, its plants, and the correct verdict.

    Attributes:
        label: The verdict class. If several plants have similar sizes, the measured truth decides.
        step: ``sleep``: the device works and the CPU is free; ``burn``: one core is busy; ``two-threads``: two are.
        data: The kind of sample: ``tensor``, ``dict``, ``pil`` (an image that becomes a tensor) or ``pair`` (two
            images transformed together, one of which stays an image in the batch).
        dataset: ``map``, ``iterable``, ``subset``, ``concat``, or ``wrapper`` (a home-made one has the transforms).
        chain: ``tv1``, ``tv2``, ``sequential``, ``own``, ``list`` (of functions), ``method`` or ``none``.
        epoch: Batches in an epoch; 0 for an endless one.
        collate: ``function`` or ``object``, for a planted collate function.
        accepts: Further correct verdicts, if pipediag says that it cannot separate two stages.
    """

    name: str
    label: str
    plants: tuple[Plant, ...] = ()
    step_ms: float = 10.0
    step: str = "sleep"
    workers: int = 2
    batch: int = 8
    data: str = "tensor"
    dataset: str = "map"
    chain: str = "own"
    links: int = 3
    start: str = "fork"
    persistent: bool = False
    epoch: int = 0
    collate: str = "function"
    accepts: tuple[str, ...] = ()
    fast: bool = False
    gpu: str = ""

    @property
    def planted(self) -> tuple[Plant, ...]:
        """The plants, from the device outwards; of two transforms, the one nearest the collate function first."""
        return tuple(sorted(self.plants, key=lambda p: (STAGES.index(p.stage), -p.link)))

    def work_ms(self, plant: Plant) -> float:
        """Return the milliseconds of work per batch that give the plant its cost.

        Workers prepare batches while the device computes. The first plant in the workers must therefore fill that time
        before it costs anything, and each worker has ``workers`` steps' time for a batch.
        """
        spread = max(1, self.workers)
        if plant.stage == "contention":  # the CPU time of all workers together
            return plant.size * self.step_ms
        if plant.hidden:
            return plant.size * self.step_ms * spread
        floor, hiding = 1.0, self.workers > 0
        for other in self.planted:
            inside = other.stage not in IN_TRAINING_PROCESS
            steps = floor + other.size if inside and hiding else other.size
            hiding = hiding and not inside
            floor += other.size
            if other == plant:
                return steps * self.step_ms * (spread if inside else 1)
        raise KeyError(plant)


def _transform(size: float, link: int = 0, kind: str = "sleep", hidden: bool = False) -> Plant:
    return Plant("transform", size, kind, link, hidden)


def _one(name: str, stage: str, size: float, kind: str = "sleep", *, link: int = 0, **pipeline: object) -> Case:
    """Return a case with a single plant, whose stage is the verdict."""
    return Case(name, stage, (Plant(stage, size, kind, link),), **pipeline)  # type: ignore[arg-type]


#: The hand-off of a batch costs the training process about 1.5 ms in any pipeline: hence long steps, or no workers.
NONE = (
    Case("none-trivial", "none", step_ms=30, workers=0, batch=4, fast=True),
    Case("none-burning-step", "none", step="burn", step_ms=30, workers=0, batch=4, chain="tv2"),
    Case("none-burning-step-one-worker", "none", step="burn", step_ms=60, workers=1, batch=4, dataset="subset"),
    Case("none-spawned", "none", start="spawn", data="dict", step_ms=80),
    Case(
        "none-transform-hidden",
        "none",
        (_transform(0.5, 1, hidden=True),),
        chain="tv1",
        step_ms=70,
        workers=1,
        fast=True,
    ),
    Case("none-load-hidden", "none", (Plant("load", 0.3, hidden=True),), workers=3, dataset="concat", step_ms=60),
    Case("none-collate-hidden", "none", (Plant("collate", 0.5, hidden=True),), data="dict", step_ms=80),
    Case("none-storage-hidden", "none", (Plant("storage", 0.4, hidden=True),), step_ms=80),
    Case("none-burn-hidden", "none", (_transform(0.3, 2, "burn", hidden=True),), step_ms=80, workers=1),
    Case(
        "none-iterable-hidden",
        "none",
        (Plant("load", 0.5, hidden=True),),
        dataset="iterable",
        chain="method",
        step_ms=60,
    ),
    Case(
        "none-workers-persist",
        "none",
        (Plant("startup", 1, "init", hidden=True),),
        persistent=True,
        epoch=25,
        step_ms=80,
        workers=1,
    ),
)

TRANSFORM = (
    _one("transform-tv1-3x", "transform", 3, link=1, chain="tv1", fast=True),
    _one("transform-tv2-burn-3x", "transform", 3, "burn", link=4, chain="tv2", links=5, workers=1),
    _one("transform-sequential-5x", "transform", 5, chain="sequential", links=4, workers=0, fast=True),
    _one("transform-own-8-links-2x", "transform", 2, link=4, links=8),
    _one("transform-last-link-burn-1.5x", "transform", 1.5, "burn", link=7, links=8, workers=0),
    _one("transform-method-10x", "transform", 10, chain="method", step_ms=5, fast=True),
    _one("transform-function-list-3x", "transform", 3, link=1, chain="list", workers=4),
    _one("transform-tv1-blur", "transform", 3, "blur", link=1, chain="tv1", workers=0),
    _one("transform-pil-resize-burn", "transform", 3, "resize", link=1, data="pil", workers=1),
    _one("transform-joint-pair-3x", "transform", 3, link=2, links=4, data="pair"),
    _one("transform-in-wrapper-3x", "transform", 3, link=0, dataset="wrapper", chain="tv2", fast=True),
    _one("transform-in-concat-3x", "transform", 3, link=2, dataset="concat", workers=4),
    _one("transform-in-subset-2x", "transform", 2, link=1, links=2, dataset="subset", workers=1, chain="tv1"),
    _one("transform-spawned-3x", "transform", 3, link=1, start="spawn", chain="sequential"),
    _one("transform-forkserver-5x", "transform", 5, link=0, start="forkserver", chain="tv2"),
    _one("transform-1x", "transform", 1, link=1, links=2, workers=0, step_ms=20),
    _one("transform-20x-burn", "transform", 20, "burn", links=1, chain="tv1", workers=1, step_ms=5),
    _one("transform-dict-style-3x", "transform", 3, link=3, links=4, data="dict"),
    _one("transform-beside-burning-step-2x", "transform", 2, "burn", link=1, step="burn", workers=0),
    _one("transform-in-iterable-3x", "transform", 3, link=1, dataset="iterable", accepts=("load",)),
)

LOAD = (
    _one("load-3x", "load", 3, fast=True),
    _one("load-burn-2x", "load", 2, "burn", workers=0, chain="tv2"),
    _one("load-jpeg-burn", "load", 3, "jpeg", data="pil", workers=1),
    _one("load-numpy-burn", "load", 3, "numpy", workers=0, chain="none"),
    _one("load-iterable-3x", "load", 3, dataset="iterable", chain="none", fast=True),
    _one("load-in-subset-5x", "load", 5, dataset="subset", workers=4, step_ms=5),
    _one("load-in-concat-10x", "load", 10, dataset="concat", workers=1, step_ms=5),
    _one("load-spawned-3x", "load", 3, start="spawn"),
    _one("load-20x", "load", 20, workers=0, step_ms=5, chain="method"),
    _one("load-1x", "load", 1, workers=0, step_ms=20),
    _one("load-dict-under-wrapper-3x", "load", 3, data="dict", dataset="wrapper", links=4),
    _one("load-1.5x-4-workers", "load", 1.5, workers=4, step_ms=15),
)

COLLATE = (
    _one("collate-3x", "collate", 3, fast=True),
    _one("collate-object-burn-3x", "collate", 3, "burn", workers=1, collate="object", fast=True),
    _one("collate-padding-burn", "collate", 2, "pad", workers=0, step_ms=5),
    _one("collate-dict-5x", "collate", 5, data="dict", workers=4, step_ms=5),
    _one("collate-1.5x", "collate", 1.5, workers=0, chain="none", step_ms=20),
    _one("collate-iterable-3x", "collate", 3, dataset="iterable"),
    _one("collate-pil-pairs-10x", "collate", 10, data="pair", step_ms=5),
)

STORAGE = (
    _one("storage-3x", "storage", 3, fast=True),
    _one("storage-10x-4-workers", "storage", 10, workers=4, step_ms=5),
    _one("storage-2x", "storage", 2, workers=0, chain="tv1"),
    _one("storage-in-subset-5x", "storage", 5, dataset="subset", workers=1),
    _one("storage-under-wrapper-1.5x", "storage", 1.5, dataset="wrapper", step_ms=15),
    _one("storage-20x", "storage", 20, step_ms=5, data="dict"),
)

IPC = (
    _one("ipc-unpacking-3x", "ipc", 3, fast=True),
    _one("ipc-unpacking-burn-2x", "ipc", 2, "burn", workers=1),
    _one("ipc-small-tensors", "ipc", 2, "tensors", step_ms=5),
    _one("ipc-objects", "ipc", 2, "objects", step_ms=5),
    _one("ipc-small-tensors-spawned", "ipc", 2, "tensors", step_ms=5, start="spawn", chain="none"),
)

STARTUP = (
    _one("startup-init-3x", "startup", 3, "init", epoch=10, fast=True),
    _one("startup-init-burn-2x", "startup", 2, "init-burn", epoch=15, workers=1),
    _one("startup-spawn", "startup", 5, "spawn", start="spawn", epoch=40, workers=1),
    _one("startup-forkserver", "startup", 5, "spawn", start="forkserver", epoch=20, data="dict"),
    _one("startup-opens-on-first-item-3x", "startup", 3, "first", epoch=12, workers=1),
)

#: A step that keeps one core busy, and workers that need almost two cores: either alone fits, both together do not.
CONTENTION = (
    _one("contention-load-4-workers", "contention", 1.8, "load", step="burn", step_ms=20, workers=4),
    _one("contention-transform-3-workers", "contention", 1.8, "link", link=1, step="burn", step_ms=20, workers=3),
    _one("contention-load-6-workers", "contention", 1.8, "load", step="burn", step_ms=20, workers=6, batch=4),
    _one("contention-two-threads", "contention", 0.7, "link", link=1, step="two-threads", step_ms=20, workers=3),
)

PAIRS = (
    Case("pair-transform-load-3x-3x", "transform", (_transform(3, 1), Plant("load", 3)), workers=0),
    Case("pair-transform-load-2-workers", "transform", (_transform(3, 0), Plant("load", 3)), chain="tv1", fast=True),
    Case("pair-two-links-2x-2x", "transform", (_transform(2, 0), _transform(2, 3)), links=4, chain="tv2"),
    Case("pair-two-links-burn-2x-2x", "transform", (_transform(2, 1, "burn"), _transform(2, 2, "burn")), workers=0),
    Case("pair-collate-transform-2x-2x", "collate", (Plant("collate", 2), _transform(2, 1)), workers=1),
    Case("pair-load-5x-transform-1x", "load", (Plant("load", 5), _transform(1, 2)), workers=0, step_ms=5),
    Case("pair-storage-load-3x-3x", "storage", (Plant("storage", 3), Plant("load", 3)), step_ms=5),
    Case("pair-ipc-transform-2x-2x", "ipc", (Plant("ipc", 2), _transform(2, 1))),
)


def _gpu(name: str, label: str, script: str, **pipeline: object) -> Case:
    return Case(name, label, gpu=script, **pipeline)  # type: ignore[arg-type]


#: See ``gpu_scripts`` for what each form does. A transfer's size is that of its batch.
GPU = (
    _gpu("gpu-transfer-float32", "transfer", "resident", plants=(Plant("transfer", 2),), workers=0),
    _gpu("gpu-transfer-many-tensors", "transfer", "many", plants=(Plant("transfer", 2),), workers=0, step_ms=3),
    _gpu("gpu-transfer-1x", "transfer", "resident", plants=(Plant("transfer", 1),), workers=0, step_ms=20),
    _gpu("gpu-small-uint8", "none", "uint8", plants=(Plant("transfer", 0.01, hidden=True),), workers=0, step_ms=40),
    _gpu("gpu-pinned-non-blocking", "none", "pinned", step_ms=40),
    _gpu("gpu-launch-bound", "none", "launches", step_ms=60),
    _gpu("gpu-item-every-step", "none", "item", step_ms=40),
    _gpu("gpu-transform-3x", "transform", "workers", plants=(_transform(3, 1),), workers=2),
    _gpu("gpu-load-2x", "load", "workers", plants=(Plant("load", 2),), workers=4),
    _gpu("gpu-hidden", "none", "workers", plants=(_transform(0.5, 1, hidden=True),), workers=4, step_ms=20),
    _gpu(
        "gpu-pair-transfer-transform", "transform", "resident", plants=(Plant("transfer", 2), _transform(2)), workers=0
    ),
)

CPU = NONE + TRANSFORM + LOAD + COLLATE + STORAGE + IPC + STARTUP + CONTENTION + PAIRS
