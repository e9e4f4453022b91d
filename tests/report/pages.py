"""Sessions with something in every part of a page."""

from __future__ import annotations

import base64
import itertools
import math
import random
import struct
import zlib
from typing import Any

from pipediag.session import (
    DECODED,
    REMEDIED,
    Apart,
    Edit,
    HotLine,
    Inside,
    Kept,
    Knobs,
    LoaderSettings,
    Pictured,
    Place,
    Prefix,
    Profile,
    Proof,
    Remedy,
    Rung,
    Session,
    Share,
    Slow,
    Startup,
    Stretch,
    Tail,
    Window,
    settings_rung,
)

from ..made import climbing, cut, inside, job, make

DIFF = """--- train.py
+++ train.py
@@ -8,3 +8,4 @@
 loader = DataLoader(data, batch_size=32)
+loader = pipediag.offload(loader)
 for images, labels in loader:
"""


def png(shade: int, side: int = 24) -> str:
    """A grey picture with a brighter square, in base64."""
    rows = b"".join(
        b"\0" + bytes(min(255, shade + (80 if 6 < x < 18 and 6 < y < 18 else 0)) for x in range(side))
        for y in range(side)
    )

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return base64.b64encode(data).decode()


def stretches(session: Session, steps: int = 10, seed: int = 3) -> list[Stretch]:
    """Single steps for each window, with a pause of settling before each, and some observed steps at the beginning."""
    draw, now, found = random.Random(seed), 0.4, []

    def add(rung: str, round_: int, ms: float, count: int) -> None:
        nonlocal now
        asked, got, ready = [], [], []
        for n in range(count):
            asked.append(now)
            got.append(now + 0.3 * ms / 1000)
            ready.append(max(0, round(4 * (1 - ms / 150) + draw.gauss(0, 1) + (n < 2))))
            now += max(0.1, 1 + draw.gauss(0, 0.15)) * ms / 1000
        found.append(Stretch(rung, round_, 1, asked, got, ready, ended=now))

    add("baseline", 10**6, 120.0, 3 * steps)
    for window in session.windows:
        now += 0.08
        add(window.rung, window.round, window.ms_per_step, steps)
    return found


#: Milliseconds that each link of the chain costs the loop.
COSTS = (1.0, 0.5, 24.0, 0.75, 6.0)


def chain() -> Inside:
    """A worker's view of a chain of transforms, with its hottest lines."""
    found = inside(*(ms / 4 for ms in COSTS), load=2.5, between=0.4, threads={"torch": 1})
    names = ("RandomResizedCrop", "RandomHorizontalFlip", "RandomApply", "ToDtype", "GaussianNoise")
    for link, name in zip(found.links, names, strict=True):
        link.name = name
    found.lines = [
        HotLine("aug.py:34", "noise = rng.normal(0, self.sigma, image.shape)", 0.58),
        HotLine(
            "data.py:9", "image = Image.open(path).convert('RGB')", 0.21, calls={"PIL.ImageFile.ImageFile.load": 0.21}
        ),
        HotLine("", "<method 'decode' of 'ImagingDecoder' objects>", 0.07),
    ]
    return found


def full_session() -> Session:
    """A session in which everything was measured and tried."""
    ladder = climbing(host=2.0, worker=3.0, sample=1.5, raw=sum(COSTS), warm=9.0)
    seen = {"process_cpu": 0.9, "cores_used": 7.6, "cores_busy": 7.9}
    session = make(
        {**cut(ladder, COSTS, 2, 3), "supply": 80.0},
        rounds=4,
        noise=0.01,
        seed=7,
        length=200,
        startups=[Startup(2.5, launch=0.25, ready=1.75, shutdown=0.4)] * 3,
        evidence={"baseline": {"worker_ms": 380.0, "worker_cpu": 0.93, "wait_ms": 42.0, "stalled_ms": 6.5, **seen}},
        environment={"python": "3.11.7", "platform": "Linux", "cpus": 8, "cores": 8, "threads": {"torch": 8}},
        inside=chain(),
    )
    edges = [2.0 * 1.25**n for n in range(21)]
    counts = [round(600 * math.exp(-(((n - 7) / 3) ** 2))) + (n > 15) * 4 for n in range(20)]
    session.tail = Tail(
        sum(counts), 11.0, 47.5, [Slow("4711", 212.0), Slow("17", 96.4), Slow("208", 61.0)], edges, counts
    )
    session.script.argv = ["train.py", "--epochs", "3"]
    session.script.wrote = ["out/model.pt"]
    session.device = {"type": "cuda", "index": 0, "name": "NVIDIA H200"}
    session.caches = {"held_bytes": 420 << 20, "device": 8, "host": 8, "shared": 2}
    _with_trials(session)
    convolution, kernel = Share("convolution_backward", 20.0, 10.0), Share("sgemm_128x64", 3.5, 8.0)
    layer = Share("model.layer4", 1.0, 20.0)
    session.profile = Profile("/x/trace.json", 5, 52.0, 48.0, [convolution], [kernel], [layer])
    session.prefix = Prefix(["encoder"], 5.0, 7.0)
    session.stretches = stretches(session)
    others = job(4)
    session.ranks, session.rank_trials, session.of_rank = others.ranks, others.rank_trials, 2
    session.warn("writes-in-place", "the training loop changes its batches in place", "cached rungs hand out copies")
    session.ended = "settled"
    return session


def _with_trials(session: Session) -> None:
    """Loader settings, and a remedy that pays beside one that was not tried."""
    session.knobs = Knobs([LoaderSettings(8, 2, True, 0.9), LoaderSettings(6, 4, True, 0.7), LoaderSettings(16, 2)])
    pictured = [Pictured(png(60 + 40 * n), png(61 + 40 * n), png(20 * n), n / 2) for n in range(4)]
    session.remedy = Remedy(
        "cuda:0",
        [Place("RandomApply", "aug.py:30"), Place("GaussianNoise", "aug.py:50")],
        [Kept("RandomResizedCrop", "it works on Pillow's pictures")],
        proof=Proof(True, 64, apart=[Apart("RandomApply", 64, 0.004)], elsewhere=[], pictured=pictured),
        memory_bytes=180 << 20,
        edit=Edit(DIFF),
    )
    session.decoded = Remedy("cuda:0", why_not="the files are not JPEGs")
    draw, rounds = random.Random(5), itertools.count(20)
    for _ in range(5):
        _round(session, next(rounds), {"baseline": 96.0, settings_rung(1): 72.0, settings_rung(2): 84.0}, draw)
    for _ in range(6):
        _round(session, next(rounds), {"baseline": 96.0, REMEDIED: 56.0}, draw)
    for rung in (settings_rung(1), settings_rung(2), REMEDIED):
        session.rungs[rung] = Rung(rung)
    session.rungs[DECODED] = Rung(DECODED, False, "the files are not JPEGs")
    session.rungs[settings_rung(3)] = Rung(settings_rung(3), False, "its workers may take 9.0 GiB")


def _round(session: Session, round_: int, ladder: dict[str, float], draw: random.Random) -> None:
    for rung, ms in ladder.items():
        seconds = 10 * ms * (1 + draw.gauss(0, 0.01)) / 1000
        session.windows.append(Window(rung, round_, 10, seconds, 10))


def long_session(windows: int = 10_000, steps: int = 4_000) -> Session:
    """A session with many windows and single steps."""
    session = full_session()
    rungs = [window.rung for window in session.windows[:9]]
    draw = random.Random(2)
    session.windows = [
        Window(rungs[n % 9], n // 9, 10, 0.5 * (1 + draw.gauss(0, 0.05)), 10, evidence={"wait_ms": 12.0})
        for n in range(windows)
    ]
    session.stretches = []
    some = Session(windows=session.windows[:: max(1, windows * 10 // steps)])
    session.stretches = stretches(some)
    return session


#: Markup, the end of a script, escape sequences of terminals, marks that turn text around, half a character.
HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(1)>'\"{{7*7}}&amp;\x1b[31m\u202egnp.exe\u200f\ud800"
)
#: Keys whose values are names that pipediag itself gives.
_OWN = {"rung", "dtype", "type", "level", "band", "code"}


def hostile_session(text: str = HOSTILE) -> Session:
    """The full session with ``text`` in front of each string that comes from outside pipediag."""

    def spoiled(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: spoiled(one, name) for name, one in value.items() if name != "rungs"}
        if isinstance(value, list):
            return [spoiled(one, key) for one in value]
        return text + value if isinstance(value, str) and key not in _OWN else value

    session = full_session()
    data = spoiled(session.to_dict())
    data["rungs"] = session.to_dict()["rungs"]
    data["environment"][text] = text
    made = Session.from_dict(data)
    made.windows.append(Window(text, 99, 10, 1.0))
    made.stretches.append(Stretch(text, 99, 1, [50.0, 51.0], [50.5, 51.5], [0, 1], ended=52.0))
    return made
