"""Sessions whose screens are kept as golden files: what a user of public training scripts sees."""

from __future__ import annotations

from pipediag.session import Account, Cost, Files, Inside, Link, Part, Place, Session

from ..made import but, climbing, leaf, make, views, waits

_V1 = "torchvision.transforms.transforms"
H100 = {"type": "cuda", "index": 0, "name": "NVIDIA H100"}
_FOLDER = "torchvision/datasets/folder.py:236"


def _of_images(session: Session, argv: list[str], where: str, made: str) -> Session:
    """Let a session be one of a script that trains on an ImageFolder, constructed at the line ``made``."""
    code = Place("ImageFolder.__getitem__", _FOLDER, library=True, made=made)
    loader = {"dataset": "ImageFolder", "batch_size": 64, "where": where, "dataset_code": code}
    but(session.loader, **loader)
    return but(session, script__argv=argv, device=H100, ended="settled")


def _stock(costs: dict[str, float], lines: dict[str, int], load: float) -> Inside:
    """torchvision's transforms on pictures, constructed in these lines of ``train.py``, with their milliseconds."""
    links = [Link(name, f"train.py:{lines[name]}", Cost(ms, ms), "", _V1, "picture") for name, ms in costs.items()]
    whole = sum(costs.values()) + load
    return Inside(32, Cost(whole, whole), Cost(load, load), links=links, files=Files(1.0, 110_000.0, {".JPEG": 32}))


def ten_views() -> Session:
    """Self-supervision with many crops: each transform runs ten times for a sample, and none of the calls is large."""
    costs = {"RandomResizedCrop": 0.9, "RandomHorizontalFlip": 0.1, "RandomApply": 1.9, "RandomGrayscale": 0.2}
    costs |= {"GaussianBlur": 1.1, "ToTensor": 0.25, "Normalize": 0.15}
    lines = {name: 420 + 2 * number for number, name in enumerate(costs)}
    once = _stock(costs, lines, load=5.2)
    for link in once.links:
        if link.name == "RandomApply":
            link.whole = "it decides at random which of its parts run"
            link.parts = [Part("ColorJitter", "train.py:425", _V1, cost=Cost(1.8, 1.8))]
        if link.name == "GaussianBlur":
            link.where, link.origin = "utils.py:40", "utils"
    ladder = {"device": 116.0, "host": 118.0, "worker": 144.0, "baseline": 199.0}
    figures = {"worker_ms": 199.0 * 14, "collate_ms": 180.0, "worker_cpu": 0.86, "cores_used": 12.6, "cores_busy": 12.9}
    session = make(
        ladder,
        rounds=4,
        noise=0.006,
        seed=3,
        workers=14,
        length=312,
        evidence=waits(54.0, 0.8, process_cpu=0.9, **figures),
        environment={"python": "3.12.3", "platform": "Linux", "cpus": 16, "cores": 16},
        inside=views(once, 10),
    )
    return _of_images(session, ["main_dino.py", "--arch", "vit_small"], "main_dino.py:303", "main_dino.py:146")


def stock_transforms() -> Session:
    """An ImageFolder with torchvision's transforms and two workers: 89 % of a step is data."""
    costs = {"RandomResizedCrop": 3.1, "RandomHorizontalFlip": 0.15, "ColorJitter": 8.2, "ToTensor": 0.6}
    costs |= {"Normalize": 0.4}
    lines = {name: 12 + number for number, name in enumerate(costs)}
    ladder = {"device": 44.0, "host": 44.6, "worker": 45.0, "sample": 60.0, "raw": 255.0, "warm": 404.0}
    ladder |= {"baseline": (step := 404.0), "supply": 400.0}
    figures = {"worker_ms": 2 * step, "collate_ms": 12.0, "worker_cpu": 0.98, "cores_used": 2.3, "cores_busy": 2.4}
    session = make(
        ladder,
        rounds=4,
        noise=0.006,
        seed=3,
        workers=2,
        length=400,
        evidence=waits(step - 45.0, 0.3, process_cpu=0.3, **figures),
        environment={"python": "3.12.3", "platform": "Linux", "cpus": 4, "cores": 4},
        inside=_stock(costs, lines, load=6.9),
        leaves=[leaf("[0]", nbytes=64 * 3 * 224 * 224 * 4)],
    )
    return _of_images(session, ["train.py"], "train.py:31", "train.py:20")


def nothing_to_gain() -> Session:
    """A loop whose workers keep up: the model's own step is all there is."""
    session = make(
        {**climbing(host=0.3, worker=0.2), "supply": 21.0},
        rounds=4,
        noise=0.003,
        seed=3,
        workers=8,
        evidence=waits(0.3, 0.2, worker_ms=160.0, collate_ms=9.0, worker_cpu=0.95, cores_used=3.2, cores_busy=3.4),
        environment={"python": "3.12.3", "platform": "Linux", "cpus": 16, "cores": 16},
    )
    return but(session, device=H100, ended="settled")


def foreign_load() -> Session:
    """A model that trains on two cores beside busy processes: its workers hardly compute."""
    ladder = {"device": 60.0, "worker": 62.0, "baseline": 105.0}
    busy = {"cores_busy": 2.0, "cores_used": 0.7}
    seen = {
        "device": busy,
        "worker": {"wait_ms": 1.0, **busy},
        "baseline": {"wait_ms": 3.0, "worker_ms": 16.0, "worker_cpu": 0.5, **busy},
    }
    accounts = {
        "device": Account(cpu_ms=58.0, queue_ms=2.0),
        "worker": Account(cpu_ms=59.0, queue_ms=2.0, waits_ms=1.0),
        "baseline": Account(cpu_ms=59.0, queue_ms=43.0, waits_ms=3.0),
    }
    session = make(
        ladder, rounds=4, noise=0.01, seed=3, workers=2, device="cpu", evidence=seen, accounts=accounts,
        environment={"cpus": 2, "cores": 2},
    )  # fmt: skip
    session.ended = "budget"
    return session


def paused() -> Session:
    """A script that was stopped for 20 s in the middle of a window: that is no part of its steps."""
    session = nothing_to_gain()
    for window in session.windows:
        window.account = Account(cpu_ms=window.ms_per_step)
    session.windows_of("baseline")[1].account = Account(cpu_ms=50.0, left_out_s=20.0)
    return session


SCREENS = {
    "ten-views": ten_views,
    "stock-transforms": stock_transforms,
    "nothing-to-gain": nothing_to_gain,
    "foreign-load": foreign_load,
    "paused": paused,
}
