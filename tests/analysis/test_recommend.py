"""Every rule on sessions where it must fire and where it must not; texts and order of the recommendations."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipediag.analysis import Diagnosis, diagnose_session
from pipediag.analysis.diagnosis import Recommendation
from pipediag.analysis.numbers.loop_and_workers import OF_THE_WORKERS
from pipediag.analysis.recommend import LOSS, cheaper
from pipediag.analysis.recommend.fallback import ways_to_leave_a_core
from pipediag.analysis.recommend.lines import what_helps
from pipediag.analysis.summary import summarise
from pipediag.analysis.thresholds import GATE, WORTH
from pipediag.session import (
    RUNGS,
    Account,
    Alternative,
    BatchFacts,
    Files,
    HotLine,
    Inside,
    Leaf,
    Link,
    OtherStart,
    Padding,
    Place,
    Prefix,
    Remedy,
    Session,
    Startup,
    Tail,
)

from ..golden import advised, agrees
from ..made import (
    FLAT,
    blocks,
    but,
    climbing,
    inside,
    job,
    lacking,
    leaf,
    make,
    then_tried,
    torchvisions,
    waits,
    without,
)

#: 50 ms of compute; the workers give a batch every 120 ms and take 400 ms to make one.
STARVED = {**climbing(host=0.5, worker=0.5, sample=0.5), "raw": 120.0, "warm": 120.0, "baseline": 120.0}
BUSY = {"worker_ms": 400.0, "worker_cpu": 1.0, "process_cpu": 1.0}
#: A loop that is limited by copying, 20 of 71 ms.
COPYING = {**climbing(host=20.0), "supply": 30.0}


def starved(within: Inside | None = None, seen: Mapping[str, float] = BUSY, **more: Any) -> Session:
    """A loop that waits for its workers; their chain is ``within``."""
    found = inside(4.0, 4.0, load=2.0) if within is None else within
    return make(STARVED, noise=0.0, evidence={"baseline": dict(seen)}, inside=found, **more)


def chain(*names: str, each: float = 0.0, load: float = 2.0, **more: Any) -> Session:
    """A starved loop with torchvision's transforms, which take 8 ms a sample together unless ``each`` is given."""
    return starved(torchvisions(inside(*[each or 8.0 / len(names)] * len(names), load=load), *names, **more))


def advice(session: Session) -> dict[str, Recommendation]:
    """Return the recommendations by id; check the texts of every rule on the way."""
    diagnosis = diagnose_session(session)
    json.dumps(diagnosis.to_dict(), allow_nan=False)
    for one in diagnosis.recommendations:
        assert one.evidence and all(any(c.isdigit() for c in text) for text in one.evidence[:1]), one
        assert one.title and one.how and one.risk
        assert one.gain is None or one.gain.high >= WORTH
    return {one.id: one for one in diagnosis.recommendations}


def sized(**kilobytes: tuple[float, float]) -> Session:
    """A chain of these transforms, with the size of what each gets and gives."""
    session = chain(*kilobytes)
    for link, (got, gives) in zip(session.links, kilobytes.values(), strict=True):
        link.bytes_in, link.bytes_out = 1000.0 * got, 1000.0 * gives
    return session


def of_pictures(name: str) -> Session:
    found = torchvisions(inside(4.0, 2.0, 2.0, load=2.0), name, "ToTensor", given="picture", new=False)
    return starved(torchvisions(found, "Normalize", new=False, first=2))


def collated(**sizes: float) -> Session:
    found = torchvisions(inside(1.0, 1.0, load=6.0), "RandomCrop", "ToDtype")
    return but(
        make(STARVED, noise=0.0, evidence={"baseline": BUSY, "sample": {"worker_ms": 160.0}}, inside=found), **sizes
    )


def offloaded(ratio: float, rounds: int = 6, **more: Any) -> Session:
    session = chain("RandomCrop", "ColorJitter", "Normalize")
    moved = [Place(link.name, link.where) for link in session.links[1:]]
    return then_tried(session, "remedied", ratio, rounds, remedy=Remedy(device="cuda:0", moved=moved, **more))


def reordered(*names: str, kept: float = 0.1) -> Session:
    session, last = chain(*names), len(names) - 1
    return but(session, **{f"links__{last}__bytes_in": 1e6, f"links__{last}__bytes_out": 1e6 * kept})


def stored(*names: str) -> Session:
    session = but(chain(*names, given="picture"), links__0__bytes_in=1e6)
    return but(session, **{f"links__{n}__bytes_out": 2e5 for n in range(len(names))})


def with_cost(*costs: float, origin: str = "aug", lines: Sequence[HotLine] = (), **more: Any) -> Session:
    """Transforms on pictures, each at a line of its own."""
    session = starved(inside(*costs, load=2.0, lines=list(lines)), **more)
    for link in session.links:
        but(link, origin=origin, given="picture")
    return session


def stock(*names: str) -> Session:
    session = with_cost(*[7.0 / len(names)] * len(names), origin="torchvision.transforms.transforms")
    return but(session, **{f"links__{n}__name": name for n, name in enumerate(names)})


def instead(*tried: Alternative) -> Session:
    return but(stock("ColorJitter"), alternatives=list(tried))


def cacheable(*names: str, memory: int = 64) -> Session:
    session = chain(*names, each=4.0, load=6.0, given="picture")
    sizes = {f"links__{n}__{key}": 1e5 for n in range(len(names)) for key in ("bytes_in", "bytes_out")}
    return but(session, environment={"cores": 16, "memory_gib": memory}, **sizes)


def cached(ratio: float) -> Session:
    return then_tried(cacheable("RandomCrop"), "loaded-once", ratio, remedy=Remedy(device="cuda:0"))


def collating(ms: float, **facts: Any) -> Session:
    seen = {"baseline": dict(BUSY), "sample": {"worker_ms": ms}}
    return but(make(STARVED, noise=0.0, evidence=seen, inside=inside(4.0, 4.0), leaves=[leaf()]), **facts)


def copying(*leaves: Leaf, host: float = 20.0, **facts: Any) -> Session:
    ladder = {**climbing(host=host), "supply": 30.0}
    return but(make(ladder, noise=0.0, leaves=leaves or [leaf()]), **facts)


def handed_over(ratio: float) -> Session:
    session = copying(remedy=Remedy(why_not="nothing moves"))
    return then_tried(session, "hand-off", ratio, remedy=Remedy(device="cuda:0"))


def pinned(non_blocking: bool) -> Session:
    return copying(leaf(pinned=True, non_blocking=non_blocking), loader__pin_memory=True)


INTEGERS: dict[str, Any] = {"dtype": "int64", "itemsize": 8, "low": 0.0, "whole_numbers": True}


def integers(**held: Any) -> Session:
    return copying(leaf("[1]", **{**INTEGERS, **held}))


def cold(storage_ms: float = 40.0, files: Files | None = None, blocked: float = 0.4) -> Session:
    seen = {"baseline": {**BUSY, "disk_read_mb": 12.5, "worker_blocked": blocked}}
    return make(climbing(baseline=storage_ms), noise=0.0, evidence=seen, inside=inside(1.0, 1.0, load=8.0, files=files))


DECODING = HotLine(
    "data.py:7",
    "image = Image.open(path).convert('RGB')",
    0.6,
    calls={"PIL.Image.Image.convert": 0.6, "PIL.ImageFile.ImageFile.load": 0.6},
)


def decoding(*lines: HotLine, **facts: Any) -> Session:
    found = inside(1.0, 1.0, load=8.0, lines=list(lines), files=Files(1.0, 90_000.0, {".jpg": 32}))
    return but(starved(found), links__0__bytes_in=1e6, links__0__bytes_out=1.5e5, **facts)


def drafted(ms_instead: float) -> Session:
    return decoding(DECODING, alternatives=[Alternative("load", "", "draft", 8, 4.0, ms_instead, 1.5)])


def reading(function: str, share: float = 0.4) -> Session:
    """What a line says is not what it does: that is what was seen to run below it."""
    text = "x = self.decode_jpeg(Image.open(path).convert('RGB'))"
    return decoding(HotLine("data.py:7", text, 0.9, calls={function: share} if function else {}))


def by_lines(*lines: HotLine, collate_ms: float = 1.0) -> Session:
    return starved(inside(load=8.0, lines=list(lines)), {**BUSY, "collate_ms": collate_ms})


SPLITS = HotLine("data.py:61", "ids = split(text)", 0.9, "split", "pad", "collate", calls={"re.split": 0.8})


def alike(same: bool | None, memory: float = 16.0, steps: bool = True) -> Session:
    found = inside(1.0, load=8.0, sizes=[[1e5, 9.0]] * 4, same_twice=same)
    session = starved(found, environment={"cores": 16, "memory_gib": memory})
    for window in session.windows if not steps else []:
        window.optimizer_steps = 0
    return session


def irregular(supply: float = 30.0, workers: int = 4, **seen: float) -> Session:
    """Loop and loader are fast enough alone, but slower together."""
    ladder = {**climbing(), "baseline": 70.0, "supply": supply}
    return make(ladder, noise=0.0, workers=workers, evidence={"baseline": {**BUSY, "worker_ms": 120.0, **seen}})


STARTED = [Startup(5.0, ready=4.0)] * 2


def other_loader(
    kept: float = 1.6, workers: int = 2, persistent: bool = False, every: int = 20, **seen: float
) -> Session:
    """A loader that is started every 20 steps of 100 ms and takes 2 s: 100 ms a step."""
    starts = [OtherStart("eval.py:7", every * n, 2.0, kept, workers, persistent) for n in range(5)]
    return but(make(FLAT, noise=0.0, evidence=dict.fromkeys(RUNGS, seen)), other_starts=starts)


def crowded(
    queued: float = 0.4, own: int = 1, cores: int = 8, used: float = 1.2, process: float = 1.0, **threads: int
) -> Session:
    seen = {**BUSY, "worker_queued": queued, "worker_cpu": used, "process_cpu": process}
    lines = [HotLine("data.py:7", "image = imread(path)", 0.2, calls={"cv2.imread": 0.2})]
    found = inside(4.0, 4.0, threads=threads or {"torch": 1, "opencv": 8}, lines=lines)
    return starved(found, seen, environment={"cores": cores, "threads": {"torch": own}})


def unlike_its_text(**facts: Any) -> Session:
    """A line that names OpenCV without calling it, as other libraries import it, too."""
    return but(crowded(), inside__lines=[HotLine("cv2_data.py:7", "x = self.cv2.imread", 0.9)], **facts)


def in_the_way(supply: float) -> Session:
    seen = {"baseline": {**BUSY, "worker_ms": 100.0, "wait_ms": 5.8}}
    return make({**climbing(raw=30.0), "supply": supply}, noise=0.0, workers=8, evidence=seen)


PREFIX = Prefix(["encoder"], 30.0, 20.0, where="train.py:8")


def frozen(**changes: Any) -> Session:
    return but(make({**FLAT, "supply": 40.0}, noise=0.0), prefix=replace(PREFIX, **changes))


def well_fed(**seen: float) -> Session:
    return make({**FLAT, "supply": 20.0}, noise=0.0, evidence={"device": seen})


def changed(late: dict[str, Any], others: dict[str, Any] | None = None, **more: Any) -> Session:
    """A job of four ranks with these facts of the late rank 2 and of the others."""
    session = job(4, **more)
    for rank in session.ranks:
        but(rank, **(late if rank.rank == 2 else others or {}))
    return session


#: Sessions in which a rule must fire; golden/recommend.txt holds all that is said then.
ADVISED: dict[str, dict[str, Session]] = {
    "offload": {
        "torchvision's own": chain("RandomResizedCrop", "ColorJitter"),
        "the end of the chain: the user's own stays, with everything before it": but(
            starved(torchvisions(inside(4.0, 2.0, 2.0, load=2.0), "RandomCrop", "Mine", "Normalize")),
            links__1__origin="aug",
        ),
        "what surely moves": chain("RandomAffine", "Normalize"),
        "what holds others may stay: the interval covers both cases": chain("RandomApply", "Normalize"),
        "so does a function": chain("Lambda", "Normalize"),
        "and a choice": chain("RandomChoice", "Normalize"),
        "what chooses its functions takes long to be recorded": chain("RandAugment", "Normalize"),
        "pictures": of_pictures("RandomAffine"),
        "pictures, by a policy": of_pictures("RandAugment"),
        "what a first cut leaves is sent": sized(RandomCrop=(150, 75), ToDtype=(75, 600)),
        "what the crop keeps is not known": sized(RandomCrop=(150, 0), ToDtype=(0, 600)),
        "what works in place does not matter before a cut": sized(ToDtype=(200, 1200), RandomCrop=(1200, 600)),
        "pixels from elsewhere in the image": sized(RandomHorizontalFlip=(200, 1200), RandomCrop=(1200, 600)),
        "pixels beyond what is kept": sized(GaussianBlur=(200, 1200), CenterCrop=(1200, 600)),
        "no cut": sized(ToDtype=(200, 600), Normalize=(600, 600)),
        "collating takes long": collated(),
        "collating has less to do": collated(links__0__bytes_in=150_000.0, links__1__bytes_out=600_000.0),
        "work on the device is fast": but(chain("RandomCrop", "ToDtype"), batch=BatchFacts()),
        "work on the device is slow": but(chain("RandomCrop", "ToDtype"), batch=BatchFacts(device_copy_ms=10.0)),
        "measured": offloaded(2.0),
    },
    "reorder": {
        "a cut behind what works on all of it": reordered("GaussianBlur", "RandomCrop"),
        "before all that can follow": reordered("ToImage", "ColorJitter", "CenterCrop"),
    },
    "precompute": {
        "leading and deterministic; reading gets cheaper with it": stored(
            "Resize", "CenterCrop", "RandomHorizontalFlip", "ColorJitter"
        ),
    },
    "rewrite": {
        "the user's own; without it the loop limits": with_cost(
            0.1, 7.0, lines=[HotLine("aug.py:24", "for y in range(h):", 0.6), HotLine("x.py:1", "", 0.1)]
        ),
        "code that a transform calls: the line to change is there": with_cost(
            0.1, 7.0, lines=[HotLine("ops.py:7", "y = np.sort(x)", 0.6, "np.sort", "smooth", "transform")]
        ),
    },
    "cheaper": {
        "a library's": stock("ColorJitter"),
        "one that the table does not know": stock("FiveCrop"),
        "two views of a sample: each call gains too little": but(
            stock("ColorJitter", "ColorJitter"), links__1__where="aug.py:10"
        ),
        "several": stock("ColorJitter", "Resize"),
        "tried, and no gain": instead(Alternative("ColorJitter", "aug.py:10", "hue", 8, 5.0, 4.9, 2.6)),
    },
    "instead": {
        "tried in a worker, the best of its own": instead(
            Alternative("ColorJitter", "aug.py:10", "hue", 8, 5.0, 3.0, 2.6),
            Alternative("ColorJitter", "aug.py:10", "tensor", 8, 5.0, 4.0, 0.4),
            Alternative("ColorJitter", "aug.py:99", "tensor", 8, 5.0, 0.1, 0.4),
        ),
    },
    "cache": {
        "what is loaded": cacheable("Resize", "RandomCrop"),
        "in files where memory is short": cacheable("RandomCrop", memory=4),
        "measured": cached(1.5),
        "samples that are always the same": alike(True),
    },
    "collate": {"a function of the user's own": collating(200.0)},
    "overlap-copies": {
        "they can overlap the step": copying(batch__copy_ms=19.0),
        "measured as the hand-off alone": handed_over(1.5),
    },
    "pin-memory": {
        "from pageable memory": copying(leaf(non_blocking=False), batch__copy_ms=20.0, batch__pinned_copy_ms=5.0),
        "how fast it would be was not measured": copying(),
        "pinned in vain": pinned(False),
    },
    "unread": {"a tensor that nothing reads": copying(leaf(), leaf("['extra']", nbytes=3 << 20, read=False))},
    "uint8": {
        "whole numbers": copying(leaf(levels=256, whole_numbers=True, low=0.0, high=255.0)),
        "bytes divided": copying(leaf(levels=256, bytes_over_255=True, low=0.0, high=1.0)),
        "normalised bytes": copying(leaf(levels=256, low=-2.1, high=2.6)),
    },
    "low-precision": {"cast on the device": copying(leaf(turned_into="bfloat16"), batch__autocast="bfloat16")},
    "pack": {
        "labels": integers(high=18.0),
        "a mask": integers(high=1.0),
        "one-hot": integers(high=1.0, one_hot=20),
        "bools": integers(high=1.0, dtype="bool", itemsize=1),
        "a mask of floats": copying(leaf(low=0.0, high=1.0, whole_numbers=True, levels=2)),
    },
    "padding": {
        "beyond the longest sample; the model may work on it as well": copying(leaf(padding=Padding(0.0, 0.5, 0.25))),
        "samples of unlike length": copying(leaf(padding=Padding(0.0, 0.5))),
    },
    "hand-off": {
        "it costs": make({**climbing(worker=20.0), "supply": 30.0}, noise=0.0, leaves=[leaf(), leaf("[1]")]),
        "a small batch": make(
            {**climbing(worker=20.0), "supply": 30.0}, noise=0.0, leaves=[leaf(nbytes=8192), leaf("[1]", nbytes=256)]
        ),
    },
    "storage": {
        "as measured with warm files": cold(),
        "small files": cold(files=Files(1.0, 110_000.0, {".jpg": 32})),
        "large files": cold(files=Files(2.0, 5e7, {".npy": 64})),
        "at most what is possible: on a busy host a rung with workers may be faster than the loop without them": make(
            {**climbing(baseline=40.0), "device": 70.0, "host": 70.0, "worker": 70.0}, noise=0.0
        ),
    },
    "decode": {
        "told by the lines; then the loop limits": decoding(DECODING),
        "by the files: Pillow's decoder is no line of anybody's": decoding(links__0__given="picture"),
        "only the decoders' part of a line": decoding(
            replace(DECODING, share=1.0, calls={"PIL.ImageFile.ImageFile.load": 0.24})
        ),
        "by OpenCV": reading("cv2.imread"),
        "by torchvision": reading("torchvision.io.image.read_image"),
        "by imageio": reading("imageio.v3.imread"),
    },
    "draft": {"tried": drafted(2.0)},
    "line": {
        "each with what helps where it calls a library": by_lines(
            HotLine("data.py:7", "r = json.load(f)", 0.6, "json.load", "D.get", "load", calls={"json.load": 0.58}),
            HotLine("data.py:9", "for p in r:", 0.4, "for p in r:", "D.get", "load"),
        ),
        "a loop in Python is one piece of work": by_lines(
            *(HotLine(f"data.py:{n}", "v = max(v)", 0.3, "max", "D.features", "load") for n in (7, 8, 9)),
            HotLine("data.py:12", "", 0.1, "x[i]", "D.other", "load"),
        ),
        "a call of which nothing is known, as of a method that is no Python code": by_lines(
            HotLine("data.py:7", "x = self.reader.read()", 1.0, "self.reader.read", "D.get", "load")
        ),
        "of the collate function": by_lines(SPLITS, collate_ms=300.0),
    },
    "once": {
        "samples that are always the same": alike(True),
        "more than memory holds": alike(True, memory=4.0),
    },
    "num-workers": {
        "as many as the loop needs": starved(),
        "as many as there are cores for": starved(environment={"cores": 8}),
        "none so far": make(
            without(STARVED, "worker"), noise=0.0, workers=0, absent=["worker"], inside=inside(4.0, 4.0),
            evidence={"baseline": {**BUSY, "worker_ms": 69.0}},
        ),
        "on every rank: they sleep, and a single process would be told to start more": job(4, None),
    },
    "prefetch-factor": {
        "fast enough on average": but(irregular(stalled_ms=15.0, cores_busy=14.0), tail=Tail(400, 3.0, 60.0)),
        "without a slow batch": irregular(),
    },
    "persistent-workers": {
        "they start in every epoch": make(
            FLAT, noise=0.0, length=100, startups=[Startup(5.0, ready=4.0, shutdown=1.0)] * 3
        ),
    },
    "other-loaders": {
        "its workers are kept": other_loader(),
        "they are kept already": other_loader(persistent=True),
        "it has none": other_loader(workers=0, kept=0.0),
        "the loop would wait for its own workers meanwhile, 140 ms for a batch": other_loader(worker_ms=560.0),
    },
    "threads": {
        "workers wait for a core": crowded(),
        "of OpenCV, which a library calls": unlike_its_text(links__0__origin="albumentations.augmentations.blur"),
        "of the training process": crowded(own=8, process=6.0, torch=1),
        "the loop is slowed": make(
            {**climbing(raw=30.0), "supply": 55.0}, noise=0.0, evidence=waits(5.8, worker_cpu=2.5),
            inside=inside(4.0, threads={"torch": 8}), environment={"cores": 8},
        ),
    },
    "fewer-workers": {"they are in the way": in_the_way(supply=12.5)},
    "more-cores": {"fewer than are needed": starved(environment={"cores": 5})},
    "frozen-prefix": {
        "the longer part": frozen(),
        "the shorter part": frozen(ms=20.0, rest_ms=30.0),
        "several modules": frozen(modules=["vae", "text"]),
        "the first layers of a model": frozen(modules=["model.stem", "model.body"], around="model", where=""),
        "under autocast": but(frozen(), batch=BatchFacts(autocast="bfloat16")),
    },
    "model": {
        "an idle device": well_fed(gpu_utilization=0.5),
        "a busy device": well_fed(gpu_utilization=0.99),
        "nothing was seen of it": well_fed(),
        "without autocast": but(well_fed(), batch=BatchFacts(autocast="")),
    },
    "late-rank": {
        "its data if nothing else differs: the stage whose time exceeds that of the others most": job(4),
        "observed": but(job(4), rank_trials=[]),
        "its host if that differs": changed({"host": "far"}),
        "fewer cores": changed({"cores": 4.0, "host": "far", "affinity": "0-3"}),
        "other storage": changed({"storage": "nfs"}, {"storage": "ext4"}),
        "fewer workers": changed({"workers": 2, "worker_ms": 214.4}),
        "fewer workers, but no cores for more": changed({"workers": 2, "worker_ms": 214.4}, cores=12),
    },
}  # fmt: skip

#: Sessions in which there is nothing to gain, or none that is known.
NOTHING: dict[str, Session] = {
    "not starved": make(climbing(raw=1.0), noise=0.0),
    "transforms are one cost: each costs less than loading, all together cost more": make(
        climbing(raw=1.0), noise=0.0, evidence=waits(1.6, worker_ms=240.0, collate_ms=0.0),
        inside=inside(1.0, 1.0, 1.0, load=1.5),
    ),
    "cached batches seem slower: no cost is named": make(
        {"device": 130.0, "worker": 130.0, "baseline": 100.0}, noise=0.0
    ),
    "hand-off by its name": make({"device": 50.0, "worker": 51.0, "baseline": 51.0}, noise=0.0),
    "the time was over": but(make({}, observed=blocks(9, 100.0, 8.0, noise=0.02)), ended="budget"),
    "only observed": make({}, observed=blocks(9, 100.0, 1.0, noise=0.02)),
    "too little was measured": Session(),
    "undecided": make(climbing(raw=1.6), rounds=3, noise=0.03),
    "starved a little, for reasons unknown": make(climbing(raw=4.5), noise=0.0),
    "there is something": starved(),
}  # fmt: skip


def test_what_is_advised() -> None:
    lines = []
    for id, sessions in ADVISED.items():
        for name, session in sessions.items():
            assert id in advice(session), (id, name)
            found = [one for one in diagnose_session(session).recommendations if one.id == id]
            lines += [f"{id}: {name}", *(line for one in found for line in advised(one)), ""]
    for name, session in NOTHING.items():
        lines += [f"nothing to gain: {name}", f"    {diagnose_session(session).nothing_to_gain}".rstrip(), ""]
    agrees(Path(__file__).parent / "golden" / "recommend.txt", "\n".join(lines))


@pytest.mark.parametrize("name", ADVISED["frozen-prefix"])
def test_the_lines_to_paste_are_python(name: str) -> None:
    how = advice(ADVISED["frozen-prefix"][name])["frozen-prefix"].how
    compile(how.partition("\n")[2], "lines", "exec")


@pytest.mark.parametrize(
    "function, how",
    {
        "shapely.ops.unary_union": "call it less often, or on less data",  # no loop in Python
        "scipy.ndimage._interpolation.rotate": "OpenCV's function of the same kind",
        "": "whole arrays in place of Python loops",
        "queue.Queue.get": "more threads or processes that make them",
        "multiprocessing.queues.Queue.get": "more threads or processes that make them",
        "multiprocessing.synchronize.SemLock.__enter__": "hold it only around what must not run twice at once",
        "time.sleep": "it waits and hardly uses the CPU",
        "urllib.request.urlopen": "a local copy of the data",
        "urllib.parse.urlparse": "call it less often",
        "_strptime._strptime": "parse once",
    }.items(),
)
def test_what_helps_with_what_a_line_calls(function: str, how: str) -> None:
    text, name = ("x = f(y)", "f") if function else ("for y in x:", "for y in x:")
    line = HotLine("aug.py:24", text, 0.6, name, "B", "transform", calls={function: 0.6} if function else {})
    assert how in advice(with_cost(0.1, 7.0, lines=[line]))["rewrite"].how


@pytest.mark.parametrize("names, told", [(("RandAugment", "RandomCrop"), True), (("RandomCrop", "RandAugment"), False)])
def test_behind_a_crop_only_if_one_follows(names: tuple[str, str], told: bool) -> None:
    links = torchvisions(inside(1.0, 1.0), *names).links
    policy = next(link for link in links if link.name == "RandAugment")
    assert ("after the crop" in [one.what for one in cheaper.alternatives(policy, links)]) == told


def test_rows_of_tensors() -> None:
    line = HotLine("torch/utils/data/dataset.py:206", "", 0.6, function="TensorDataset.__getitem__", library=True)
    assert "batch_size=None, sampler=BatchSampler" in what_helps(line, on_cpu=True)[1]


def test_the_table_of_alternatives() -> None:
    keys = [one.key for one in cheaper.ALTERNATIVES if one.key]
    assert len(keys) == len(set(keys)) and all(cheaper.by_key(key) is not None for key in keys)
    for one in (*cheaper.ALTERNATIVES, cheaper.DRAFT):
        assert one.what and one.how and one.what[0].islower()
    assert cheaper.by_key("") is None
    assert cheaper.to_try(Link("ColorJitter", origin="torchvision.transforms.v2._color", given="tensor")) == ["hue"]
    assert cheaper.to_try(Link("ColorJitter", origin="mine", given="tensor")) == []
    of_torchaudio = cheaper.alternatives(Link("Spec", origin="torchaudio.transforms", given="tensor"))
    assert of_torchaudio[0].what == "on the device"


class TestContention:
    """Workers take CPU time from the training process: fewer of them or fewer threads, else less work for them."""

    def session(self, workers: int, own: int) -> Session:
        ladder = {"device": 50.0, "host": 50.0, "worker": 50.0, "baseline": 90.0}
        more: dict[str, Any] = {"environment": {"cores": 2, "threads": {"torch": own}}, "workers": workers}
        found = torchvisions(inside(5.0, 1.0, load=4.0), "RandomResizedCrop", "Normalize")
        return make(ladder, noise=0.0, inside=found, evidence=waits(0.5, 0.4, worker_ms=50.0 * workers), **more)

    @pytest.mark.parametrize("workers, own", [(2, 1), (1, 2)])
    def test_a_core_can_be_left(self, workers: int, own: int) -> None:
        found = advice(self.session(workers, own))
        assert found["stage"].title == "Leave the training process a core of its own"
        assert ("num_workers=1" in found["stage"].how) == (workers > 1)
        assert ("set_num_threads" in found["stage"].how) == (own > 1)

    def test_there_is_one_worker_with_one_thread(self) -> None:
        found = diagnose_session(self.session(1, 1))
        assert found.verdict.bottleneck == "contention"
        titles = [one.title for one in found.recommendations]
        assert "Leave the training process a core of its own" not in titles
        assert "Make RandomResizedCrop cheaper" in titles, titles


#: Sessions in which a rule must not fire, and why.
NOT: dict[str, dict[str, Session]] = {
    "offload": {
        "own": starved(inside(4.0, 4.0, load=2.0)),
        "stay": starved(torchvisions(inside(4.0, 4.0), "AugMix", "JPEG")),
        "old policies": starved(torchvisions(inside(4.0, 4.0), "RandAugment", "AutoAugment", new=False)),
        "cheap": starved(torchvisions(inside(0.01, 0.01, load=9.0), "RandomCrop", "Normalize")),
        "on a CPU": starved(torchvisions(inside(4.0, 4.0), "RandomCrop", "Normalize"), device="cpu"),
        "order unknown": but(
            starved(torchvisions(inside(4.0, 4.0, unsplit="they vary"), "Mine", "Normalize", new=False)),
            links__0__origin="aug",
        ),
        "the chain ends in the user's own": but(chain("RandomCrop", "Mine"), links__1__origin="aug"),
        "a stream": but(chain("RandomCrop", "Normalize"), loader__iterable=True),
        "tried and of no use": offloaded(1.0),
        "tried and nothing moved": offloaded(2.0, rounds=0, why_not="its batches differ from the workers'"),
    },
    "reorder": {
        "keeps nearly all": reordered("GaussianBlur", "RandomCrop", kept=0.95),
        "other geometry": reordered("RandomAffine", "RandomCrop"),
        "resizing changes the blur": reordered("GaussianBlur", "Resize"),
        "in order": reordered("RandomCrop", "GaussianBlur"),
        "sizes unknown": starved(torchvisions(inside(4.0, 4.0), "GaussianBlur", "RandomCrop")),
        "the user's own": but(reordered("GaussianBlur", "RandomCrop"), links__0__origin="aug"),
    },
    "precompute": {
        "behind what is drawn": stored("RandomResizedCrop", "Normalize"),
        "behind a drawn crop": stored("RandomCrop", "Resize"),
        "the user's own": but(stored("Resize", "CenterCrop"), links__0__origin="aug"),
    },
    "rewrite": {"cheap": with_cost(0.02, 0.05)},
    "cheaper": {"another way was tried, and gains": ADVISED["instead"]["tried in a worker, the best of its own"]},
    "instead": {
        "no gain": ADVISED["cheaper"]["tried, and no gain"],
        "by another version": instead(Alternative("ColorJitter", "aug.py:10", "new", 8, 5.0, 1.0)),
    },
    "cache": {
        "an evaluation loads once anyway": alike(True, steps=False),
        "nothing can be kept": but(cacheable("Resize", "RandomCrop"), loader__uncached="it saves its place"),
        "a trial kept nothing": but(cacheable("RandomCrop"), loaded_once=Remedy(why_not="no known call was made")),
        "a trial gained nothing": cached(1.0),
        "reading back takes as long": but(
            cacheable("RandomCrop"), inside__load__wall_ms=0.05, inside__whole__wall_ms=4.05
        ),
    },
    "collate": {
        "its lines are known": ADVISED["line"]["of the collate function"],
        "cheap": collating(10.0),
        "torch's": collating(200.0, loader__collate=Place("torch's default_collate")),
    },
    "overlap-copies": {
        "of no use": handed_over(1.0),
        "they cost nothing": copying(host=0.0),
        "the workers limit": make({**climbing(host=20.0), "raw": 150.0, "warm": 150.0, "baseline": 150.0}, noise=0.0),
    },
    "pin-memory": {
        "all is done": pinned(True),
        "a collate function has pinned it": copying(leaf(pinned=True)),
        "they cost nothing": copying(host=0.0),
    },
    "unread": {
        "read": copying(leaf(), leaf("[1]", read=True)),
        "unknown": copying(leaf(), leaf("[1]", read=None)),
        "not copied": copying(leaf(), leaf("[1]", copied=False, read=None)),
        "small": copying(leaf(), leaf("[1]", nbytes=256, read=False)),
    },
    "uint8": {
        "a mask": ADVISED["pack"]["a mask of floats"],
        "many values": copying(leaf(low=0.0, high=1.0)),
        "bytes already": copying(
            leaf(levels=200, dtype="uint8", itemsize=1, low=0.0, high=255.0, whole_numbers=True)
        ),
        "not copied": copying(leaf(levels=9, low=0.0, high=8.0, whole_numbers=True, copied=False, read=None)),
    },
    "low-precision": {
        "read as it is": copying(leaf(turned_into=None)),
        "larger": copying(leaf(turned_into="float64")),
        "arrives so already": copying(leaf(turned_into="bfloat16", arrives="bfloat16")),
        "holds bytes": copying(leaf(turned_into="bfloat16", levels=256)),
        "of that size": copying(leaf(turned_into="bfloat16", dtype="float16", itemsize=2, arrives="float16")),
    },
    "pack": {
        "many classes": integers(high=1000.0),
        "negative": integers(low=-100.0, high=18.0),
        "unknown": integers(low=None, high=None),
        "small": copying(leaf(), leaf("[1]", **INTEGERS, high=18.0, nbytes=512)),
    },
    "padding": {"none": copying(leaf()), "little": copying(leaf(padding=Padding(0.0, 0.01)))},
    "hand-off": {"cheap": copying()},
    "storage": {
        "workers are never blocked": cold(blocked=0.001),
        "all is in the page cache": cold(0.0),
        "the loader alone is fast": make({**climbing(baseline=40.0), "supply": 2.0}, noise=0.0),
    },
    "draft": {"it gains little": drafted(4.5)},
    "decode": {
        "a draft was tried": drafted(2.0),
        "files of no pictures": decoding(),
        "only its text": reading(""),
        "a header is read": reading("PIL.Image.open", 0.9),
        "it may have been decoded before": reading("PIL.Image.Image.convert", 0.9),
        "no picture": reading("json.load", 0.9),
    },
    "line": {
        "costs little": by_lines(HotLine("data.py:7", "x", 0.04, "x", "D.get", "load")),
        "decoding has its own": by_lines(replace(DECODING, stage="load")),
    },
    "once": {
        "they differ": alike(False),
        "unknown": alike(None),
        "an evaluation makes them once anyway": alike(True, steps=False),
    },
    "num-workers": {
        "no cores for more on any rank": job(4, None, cores=12),
        "no cores left": starved(environment={"cores": 5}),
        "cores unknown": starved(environment={"python": "3"}),
        "not starved": make({**FLAT, "supply": 40.0}, evidence={"baseline": BUSY}),
        "work unknown": make(STARVED, noise=0.0),
        "its dataset starts workers": but(deepcopy(ADVISED["num-workers"]["none so far"]), loader__nests=True),
    },
    "prefetch-factor": {
        "not certain": lacking(irregular(supply=65.0), "supply", after=1),
        "too slow": irregular(supply=69.0),
        "they take each other's cores": irregular(stalled_ms=15.0, cores_busy=15.0),
        "no workers": irregular(supply=20.0, workers=0),
    },
    "persistent-workers": {
        "kept already": make(FLAT, length=100, startups=STARTED, persistent=True),
        "long epochs": make(FLAT, length=100_000, startups=STARTED),
        "unknown length": make(FLAT, length=None, startups=STARTED),
        "unknown": make(FLAT, length=100, startups=[]),
        "no workers": make(FLAT, length=100, startups=STARTED, workers=0),
        "seen once": make(FLAT, length=100, startups=STARTED[:1]),
        "parts unknown": make(FLAT, length=100, startups=[5.0, 5.0]),
    },
    "other-loaders": {"seldom": other_loader(every=2000)},
    "late-rank": {"they are alike": job(4, None)},
    "threads": {
        "OpenCV is not called": unlike_its_text(),
        "nobody waits": crowded(queued=0.01),
        "none too many": crowded(torch=1),
        "room for all": crowded(cores=64),
        "one thread runs": crowded(used=0.6),
        "few of its own run": crowded(own=8, process=2.0, torch=1),
    },
    "fewer-workers": {"all are needed": in_the_way(supply=50.0), "they are late": starved()},
    "more-cores": {
        "enough": starved(environment={"cores": 16}),
        "unknown": starved(environment={"python": "3"}),
        "it is not the CPU": starved(seen={**BUSY, "worker_blocked": 0.5}, environment={"cores": 5}),
        "not starved": make(FLAT, evidence={"baseline": BUSY}, environment={"cores": 2}),
        "trained on the CPU": starved(environment={"cores": 5}, device="cpu"),
    },
    "frozen-prefix": {
        "none": but(frozen(), prefix=None),
        "short": frozen(ms=0.1),
        "nothing": frozen(ms=0.0),
        "all": frozen(rest_ms=0.0),
        "no modules": frozen(modules=[]),
        "weights change": frozen(why_not="weights change"),
        "the workers limit": but(starved(), prefix=PREFIX),
    },
    "model": {"the loop starves": starved()},
}  # fmt: skip


@pytest.mark.parametrize(
    "id, session", [pytest.param(id, one, id=f"{id}: {why}") for id, some in NOT.items() for why, one in some.items()]
)
def test_not_advised(id: str, session: Session) -> None:
    assert id not in advice(session)


class TestOrder:
    """The largest gain comes first; changes that are not worthwhile are left out."""

    def gains(self, diagnosis: Diagnosis) -> list[float]:
        """The gains; of a bound, that of half of what it takes off a step."""
        told = [(one.gain, one.at_most) for one in diagnosis.recommendations]
        return [(2 / (1 + 1 / gain.value) if most else gain.value) if gain else -math.inf for gain, most in told]

    def test_by_predicted_gain(self) -> None:
        found = torchvisions(inside(4.0, 1.0, 1.0, load=4.0), "Resize", "RandomCrop", "Normalize")
        gains = self.gains(diagnose_session(starved(found, environment={"cores": 8})))
        assert len(gains) >= 3
        assert gains == sorted(gains, reverse=True)

    def test_what_the_ceiling_limits_alike_keeps_the_order_of_the_rules(self) -> None:
        found = torchvisions(inside(4.0, 4.0, load=0.1), "RandomCrop", "Normalize")
        session = make({**climbing(host=0.0, worker=0.0), "raw": 60.0, "warm": 60.0, "baseline": 60.0}, noise=0.0)
        session.inside = found
        for window in session.windows_of("baseline"):
            window.evidence = dict(BUSY, worker_ms=220.0)
        ids = list(advice(session))
        assert ids[:2] == ["num-workers", "offload"]

    def test_below_the_gate_is_left_out(self) -> None:
        """The whole input pipeline costs less than a worthwhile change would gain."""
        within = torchvisions(inside(4.0, 4.0), "RandomCrop", "Normalize")
        session = make(climbing(raw=1.0), noise=0.0, evidence={"baseline": BUSY}, inside=within)
        assert set(advice(session)) == {"model"}

    @given(
        st.dictionaries(st.sampled_from((*RUNGS, "supply")), st.floats(0.5, 300), min_size=3),
        st.integers(1, 4),
        st.integers(0, 8),
        st.integers(0, 20),
    )
    def test_of_anything(self, ladder: dict[str, float], rounds: int, workers: int, seed: int) -> None:
        """For any measurement: recommendations in order, or the reason why there are none."""
        within = torchvisions(inside(4.0, 1.0, 2.0), "Resize", "RandomApply", "Normalize")
        leaves = [leaf(levels=256, low=0.0, high=1.0), leaf("[1]", read=False, padding=Padding(0.0, 0.5))]
        more: dict[str, Any] = {"evidence": {"baseline": BUSY}, "inside": within, "leaves": leaves, "startups": [3.0]}
        session = make(ladder, rounds=rounds, noise=0.05, seed=seed, workers=workers, **more)
        diagnosis = diagnose_session(session)
        gains = self.gains(diagnosis)
        assert all(round(a, 2) >= round(b, 2) for a, b in itertools.pairwise(gains))
        assert set(advice(session)) == {one.id for one in diagnosis.recommendations}
        treats_input = any(one.stage != "compute" for one in diagnosis.recommendations)
        assert bool(diagnosis.nothing_to_gain) is not treats_input


class TestSomethingToDo:
    """A certain cost never stays without advice, and nothing is advised whose gain may be none."""

    @given(
        costs=st.dictionaries(st.sampled_from(RUNGS[1:]), st.floats(0.0, 120.0), max_size=5),
        links=st.lists(st.floats(0.01, 9.0), max_size=4),
        stock_=st.booleans(),
        workers=st.integers(0, 8),
        cores=st.sampled_from((1, 2, 16)),
        device=st.sampled_from(("cpu", "cuda")),
        waited=st.none() | st.floats(0.0, 1.0),
        worker=st.floats(0.1, 900.0),
        seed=st.integers(0, 9),
    )
    def test_about_the_costliest_stage(
        self,
        costs: dict[str, float],
        links: list[float],
        stock_: bool,
        workers: int,
        cores: int,
        device: str,
        waited: float | None,
        worker: float,
        seed: int,
    ) -> None:
        ladder = climbing(**costs)
        found = inside(*links, load=1.0)
        if stock_:
            torchvisions(found, *("ColorJitter", "RandomApply", "ToTensor", "Normalize"), given="picture", new=False)
        seen = {"worker_ms": worker, "worker_cpu": 0.8, "worker_queued": 0.1, "process_cpu": 0.9, "collate_ms": 0.05}
        seen |= {"wait_ms": waited * ladder["baseline"]} if waited is not None else {}
        ladder = without(ladder, *["host"] * (device == "cpu"), *["worker"] * (not workers))
        more: dict[str, Any] = {"workers": workers, "device": device, "inside": found, "environment": {"cores": cores}}
        session = make(ladder, noise=0.003, seed=seed, evidence={"baseline": seen}, **more)
        diagnosis = diagnose_session(session)
        for one in diagnosis.recommendations:
            assert one.gain is None or one.gain.low > 1, one
            assert one.how and one.evidence
        starved, named = diagnosis.verdict.starved, diagnosis.verdict.bottleneck
        if starved is not None and starved.low >= LOSS and named not in ("inconclusive", "none", "startup"):
            answers = {named}
            if named == "contention" and not ways_to_leave_a_core(session):  # less work for the workers is left
                answers.update(OF_THE_WORKERS)
            assert answers & {one.stage for one in diagnosis.recommendations}

    def test_observed_only(self) -> None:
        session = make({}, observed=blocks(9, 100.0, 50.0, noise=0.02))
        diagnosis = diagnose_session(session)
        assert [one.stage for one in diagnosis.recommendations] == [diagnosis.verdict.bottleneck]

    def test_what_the_table_says_would_pay(self) -> None:
        """Wherever the loop would be much faster without a transform, there is advice that names it."""
        found = torchvisions(inside(2.0, 5.0, 1.0, load=3.0), "Resize", "ColorJitter", "Normalize", new=False)
        session = make(STARVED, noise=0.0, inside=found, evidence=waits(69.0, worker_ms=400.0, collate_ms=10.0))
        diagnosis = diagnose_session(session)
        told = " ".join(one.title for one in diagnosis.recommendations)
        paying = [
            piece.links[0]
            for piece in diagnosis.waterfall
            if piece.links and piece.without is not None and piece.without.steps_per_s > 1.1 * 1000 / 120
        ]
        assert paying == ["ColorJitter", "Resize"]
        assert all(name in told for name in paying)

    def test_a_gain_that_may_be_none(self) -> None:
        """A GPU that is busy with the moved transforms."""
        found = torchvisions(inside(1.0, 1.0, load=8.0), "RandomCrop", "Normalize")
        session = starved(found)
        session.batch = BatchFacts(device_copy_ms=60.0)
        assert "offload" not in advice(session)
        session.batch = BatchFacts(device_copy_ms=0.1)
        assert "offload" in advice(session)


def test_no_gain_is_known_of_a_loop_that_was_only_observed() -> None:
    session = make({}, observed=blocks(9, 100.0, 50.0, noise=0.02))
    (one,) = diagnose_session(session).recommendations
    assert one.predicted is None and one.evidence[0].endswith("since the loop was not fed from a cache")
    over = diagnose_session(NOTHING["the time was over"])
    assert "Give a longer budget, and" in over.verdict.sentence


def test_worth_is_the_gate() -> None:
    assert pytest.approx(GATE) == 1 - 1 / WORTH


class TestKnown:
    """The names follow what docs/transforms.md says of each transform."""

    def table(self, heading: str) -> dict[str, tuple[str, str]]:
        text = (Path(__file__).parents[2] / "docs" / "transforms.md").read_text(encoding="utf-8")
        section = text.partition(f"### {heading}\n")[2].partition("\n### ")[0]
        rows = [line.split("|")[1:4] for line in section.splitlines() if line.startswith("| `")]
        return {name.strip().strip("`"): (tensors.strip(), pictures.strip()) for name, tensors, pictures in rows}

    @pytest.mark.parametrize(
        "heading, origin",
        [
            ("torchvision.transforms.v2", "torchvision.transforms.v2._geometry"),
            ("torchvision.transforms", "torchvision.transforms.transforms"),
        ],
    )
    def test_as_documented(self, heading: str, origin: str) -> None:
        table = self.table(heading)
        assert len(table) > 30
        for name, answers in table.items():
            for kind, answer in zip(("tensor", "picture"), answers, strict=True):
                link = Link(name, origin=origin, given=kind)
                if name in cheaper.HOLDERS:
                    assert cheaper.moves(link) is None
                elif answer == "stays":
                    assert cheaper.moves(link) is False, (name, kind)

    def test_what_moves_is_documented_to_move(self) -> None:
        table = self.table("torchvision.transforms.v2")
        moving = [
            name for name in table if cheaper.moves(Link(name, origin="torchvision.transforms.v2.x", given="tensor"))
        ]
        assert len(moving) > 30
        assert all(table[name][0] == "moves" for name in moving)

    @pytest.mark.parametrize(
        "name, origin, given, moves",
        [
            ("RandAugment", "timm.data.auto_augment", "picture", True),
            ("AutoAugment", "timm.data.auto_augment", "picture", True),
            ("RandomResizedCropAndInterpolation", "timm.data.auto_augment", "picture", True),
            ("RandomErasing", "timm.data.auto_augment", "picture", True),
            ("AugMixAugment", "timm.data.auto_augment", "picture", False),
            ("Normalize", "albumentations.transforms", "tensor", False),
            ("Normalize", "torchvision.transforms.v2._misc", "dict", None),
        ],
    )
    def test_others(self, name: str, origin: str, given: str, moves: bool | None) -> None:
        assert cheaper.moves(Link(name, origin=origin, given=given)) is moves


def test_a_late_ranks_gain_is_that_of_the_job_without_it() -> None:
    one, straggler = advice(job(4))["late-rank"], diagnose_session(job(4)).straggler
    assert straggler is not None and one.predicted == straggler.gain and one.measured is None


#: What costs the time: the rung that adds it, or what else does.
SIDES = ("host", "worker", "sample", "raw", "warm", "baseline", "contention", "startup", "mixed")
KINDS = ("stock", "own", "unknown", "nothing seen")


def session_of(
    side: str, kind: str, loss: float, workers: int, full: bool, device: str, rounds: int, told: bool
) -> Session:
    """A loop whose data costs ``loss`` of each step.

    In its workers a library's transforms were seen, the user's own, or samples that cannot be divided.
    """
    cost = 50.0 * loss / (1 - loss)
    mixed = {"contention": {"baseline": cost}, "mixed": dict.fromkeys(RUNGS[1:], cost / 6)}
    absent = [] if workers else ["host", "worker"]
    ladder = without(climbing(**mixed.get(side, {side: cost})) if side != "startup" else FLAT, *absent)
    base, busy, accounts = ladder["baseline"], 8.0 if full else 3.0, {}
    seen = {"worker_ms": 3.8 * base, "worker_cpu": 0.9, "process_cpu": 0.9, "cores_used": busy, "cores_busy": busy}
    if side == "contention" and workers:
        seen |= {"wait_ms": 0.1, "worker_ms": 2.0 * base}
        accounts = dict.fromkeys(RUNGS, Account(cpu_ms=50.0)) | {"baseline": Account(cpu_ms=50.0, queue_ms=cost)}
    found = None if kind == "nothing seen" else inside(4.0, 3.0, load=3.0)
    if kind == "unknown":
        found = inside(load=10.0, unsplit="the dataset has no transforms that could be found")
    elif kind == "stock":
        found = torchvisions(inside(4.0, 3.0, load=3.0), "ColorJitter", "RandomResizedCrop", given="picture", new=False)
    more: dict[str, Any] = {"environment": {"cores": 8}, "workers": workers, "absent": absent, "device": device}
    if side == "startup":
        more |= {"startups": [Startup(1.0 * cost, launch=0.1 * cost, ready=0.8 * cost)] * 3, "length": 500}
    evidence = {"baseline": seen} if told else {}
    session = make(ladder, noise=0.0, rounds=rounds, evidence=evidence, accounts=accounts, inside=found, **more)
    if kind == "nothing seen":
        but(session, loader__transform=None, loader__dataset_code=Place("Photos.__getitem__", ""))
    return but(session, loader__pin_memory=True)


@given(
    st.sampled_from(SIDES),
    st.sampled_from(KINDS),
    st.floats(0.1, 0.95),
    st.sampled_from([0, 1, 4]),
    st.booleans(),
    st.sampled_from(["cpu", "cuda"]),
    st.sampled_from([1, 3]),
    st.booleans(),
)
def test_there_is_something_to_do(
    side: str, kind: str, loss: float, workers: int, full: bool, device: str, rounds: int, told: bool
) -> None:
    diagnosis = diagnose_session(session_of(side, kind, loss, workers, full, device, rounds, told))
    for one in diagnosis.recommendations:
        assert one.gain is None or one.gain.low > 1, one
    verdict = diagnosis.verdict
    if verdict.bottleneck in ("none", "inconclusive") or verdict.starved is None or verdict.starved.value < LOSS:
        return
    assert [one for one in diagnosis.recommendations if one.stage != "compute"] and not diagnosis.nothing_to_gain
    assert summarise(diagnosis).actions, "on the screen too"


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("workers", [0, 4])
def test_these_loops_starve(side: str, workers: int) -> None:
    """The sessions above are what they are meant to be."""
    if not workers and side in ("host", "worker", "contention", "startup"):
        return
    found = diagnose_session(session_of(side, "own", 0.5, workers, False, "cuda", 3, True)).verdict
    expected = {"raw": "transform", "contention": "contention", "startup": "startup"}
    assert found.bottleneck == expected.get(side, found.bottleneck) and found.bottleneck not in ("none", "inconclusive")


@pytest.mark.parametrize("workers", [0, 4])
def test_what_was_only_observed(workers: int) -> None:
    found = diagnose_session(make({}, workers=workers, observed=blocks(9, 100.0, 15.0, 60.0)))
    assert found.verdict.level == "observed" and summarise(found).actions
