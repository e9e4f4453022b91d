"""Rules for reading the data: its storage, its number of files, and decoding."""

from __future__ import annotations

from ...session import LOADED_ONCE, Files, Place
from ..diagnosis import Recommendation
from ..numbers.hot_lines import does
from ..numbers.intervals import least
from ..numbers.loop_and_workers import saving
from ..thresholds import GATE, WORTH
from ..trials.remedy import READ_BACK_MS, outcome
from ..whatif import Change
from ..words import counted, number, percent
from . import cheaper
from .lines import DECODING, decodes
from .transforms import difference
from .view import ALL, View, at_line, bytes_text, measured_first, share_text

_COMPRESSED = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gz", ".xz", ".zst", ".zip", ".npz", ".flac")
#: Files below this size take longer to find and open than to read, on most storage.
_SMALL_FILE = 1 << 20
#: Share of the machine's memory that kept samples may take.
_OF_MEMORY = 0.5
#: Bytes beyond which samples are hardly stored as they are.
_STORED = 200 << 30


def storage(view: View) -> Recommendation | None:
    """Recommend faster storage for data that is read from storage in every epoch."""
    ladder, files = view.ladder, view.inside.files
    if not (ladder.has("baseline") and ladder.has("warm")) or ladder.cost("baseline", "warm").low <= 0:
        return None
    if not view.whatif.waits or view.seen.get("worker_blocked", 1.0) < GATE:  # the rungs differ for another reason
        return None
    evidence = [
        f"a step takes {number(view.whatif.base)} ms, and {number(ladder.ms('warm').value)} ms with a few items "
        "whose files are in the page cache; the prediction assumes all data there"
    ]
    if view.seen.get("disk_read_mb", 0.0) > 0:
        evidence.append(f"{view.seen['disk_read_mb']:.2f} MB a step come from storage")
    if view.seen.get("worker_blocked", 0.0) > 0:
        evidence.append(f"a worker is blocked {percent(view.seen['worker_blocked'])} of its time")
    title, how = (
        "Read from storage that keeps up",
        "read large chunks ahead, by more workers or a larger prefetch_factor",
    )
    if files is not None and files.opened > 0:
        evidence.append(_files_text(files))
        if files.nbytes < _SMALL_FILE:
            title = "Put many samples into one file, on storage that keeps up"
            how = "shards of tar files, LMDB, Parquet or one memory-mapped array in place of a file for each sample"
    return view.made(
        "storage",
        title,
        "storage",
        least(ladder.ratio("baseline", "warm"), view.whatif.ceiling),
        evidence,
        f"a local SSD, or /dev/shm where the data fits into memory; {how}",
        "a copy of the data must be kept up to date; slower storage than memory gains less",
    )


def _files_text(files: Files) -> str:
    endings = ", ".join(filter(None, files.endings))
    told = f"{counted(files.opened, 'file')} of {bytes_text(files.nbytes)} "
    return f"{told}{'is' if files.opened == 1 else 'are'} opened for a sample{f' ({endings})' if endings else ''}"


def decode(view: View) -> Recommendation | None:
    """Recommend less decoding for compressed data that is decoded in every epoch."""
    work, files = view.work, view.inside.files
    lines = [line for line in view.inside.lines if line.stage != "transform" and does(line, decodes)]
    endings = files.endings if files is not None else {}
    given = [link.given for link in view.session.links[:1]] if not view.inside.lines else []
    assumed = given == ["picture"] and any(ending in _COMPRESSED for ending in endings)
    draft = next((one for one in view.session.alternatives if one.name == cheaper.LOADING), None)
    if work is None or not (lines or assumed or draft):
        return None
    loaded, took = view.per_sample(work.load), work.load
    evidence = [
        f"loading takes {loaded}, {share_text(took, work.run)} of a worker's time, and most of it may be decoding"
    ]
    if lines:
        took = min(sum(does(line, decodes) for line in lines) * work.samples, work.load)
        told = "; ".join(f"{line.where} {line.text}".strip() for line in lines[:2])
        evidence = [f"decoding takes {view.per_sample(took)}, {share_text(took, work.run)} of a worker's time ({told})"]
    if files is not None and any(ending in _COMPRESSED for ending in endings):
        evidence.append(_files_text(files))
    smaller = next((link for link in view.session.links if 0 < link.bytes_out < link.bytes_in), None)
    if smaller is not None:
        kept = share_text(smaller.bytes_out, smaller.bytes_in)
        evidence.append(f"{smaller.name} keeps {kept} of what was decoded")
    users = next((Place(line.name, line.where) for line in lines if line.where and not line.library), None)
    where = at_line(users or view.loader.dataset_code)
    less = min(work.load, (draft.ms - draft.ms_instead) * (view.whatif.batch or 1)) if draft is not None else 0.0
    if draft is not None and view.whatif.faster(Change(work=saving(less))).value >= WORTH:
        tried = (
            f"tried in a worker on {counted(draft.inputs, 'file')}: {number(draft.ms)} ms become "
            f"{number(draft.ms_instead)} ms; other pixels, {difference(draft)}"
        )
        return view.made(
            "draft",
            "Decode JPEGs to fewer pixels, other pixels",
            "load",
            Change(work=saving(less)),
            [*evidence, tried],
            f"{where}{cheaper.DRAFT.how}",
            f"other pixels: {cheaper.DRAFT.pixels}",
        )
    on_device = (
        f"; {'--apply --approximate' if view.session.script.argv else 'offload(approximate=True)'} decodes JPEGs that "
        "Pillow opens on the GPU"
        if view.device == "cuda" and any(ending in cheaper.JPEGS for ending in endings)
        else ""
    )
    return view.made(
        "decode",
        "Decode less",
        "load",
        Change(work=saving(took)),
        [*evidence, ALL],
        f"{where}{DECODING.how}{on_device}",
        DECODING.risk,
        at_most=True,
    )


def once(view: View) -> Recommendation | None:
    """Recommend making each sample once, if it is the same whenever it is made. An evaluation takes it once anyway."""
    work, loader, sizes = view.work, view.loader, view.inside.sizes
    if work is None or view.session.evaluates or loader.iterable:
        return None
    if not (view.inside.same_twice and loader.length and loader.batch_size):
        return None
    saved = work.samples - READ_BACK_MS * loader.batch_size
    if not sizes or saved <= 0:
        return None
    each, count = sum(size for size, _ in sizes) / len(sizes), loader.length * loader.batch_size
    memory = float(view.session.environment.get("memory_gib") or 0.0) * 2**30
    fits = count * each <= _OF_MEMORY * memory
    if not fits and count * each > _STORED:
        return None
    how = "a list of all samples, made in __init__ by what __getitem__ does now; __getitem__ returns its items"
    if not fits:
        how = "write all samples to memory-mapped arrays (.npy) by a script of its own; __getitem__ returns their rows"
    return view.made(
        "once",
        f"Make the samples once, before training{'' if fits else ', and store them'}",
        "load",
        Change(work=saving(saved)),
        [
            f"samples take {view.per_sample(work.samples)}, {share_text(work.samples, work.run)} of a worker's time",
            "samples made twice were equal, and no generator of torch, numpy or Python was drawn from meanwhile",
            f"about {count} samples of {bytes_text(each)}: {bytes_text(count * each)} in all",
        ],
        f"{at_line(loader.dataset_code)}{how}",
        f"takes {'memory' if fits else 'disk space'}; wrong if samples are to change from epoch to epoch",
    )


def cache(view: View) -> Recommendation | None:
    """Recommend keeping what library calls read and decode.

    Not if a trial kept nothing, nor for an evaluation, which reads its data once. How much of the loading is such calls
    is not known without a trial.
    """
    work, session, loader = view.work, view.session, view.loader
    tried = outcome(session, LOADED_ONCE)
    if work is None or session.evaluates or not session.links:
        return None
    if loader.uncached or view.inside.unsplit:
        return None
    if tried is not None and (tried.why_not or tried.speedup is None or tried.speedup.low <= 1):
        return None
    saved = work.load - READ_BACK_MS * (view.whatif.batch or 1)
    if saved <= 0:
        return None
    nbytes = session.links[0].bytes_in
    evidence = [f"loading takes {view.per_sample(work.load)}, {share_text(work.load, work.run)} of a worker's time"]
    folder = ""
    if loader.length and loader.batch_size and nbytes > 0:
        whole, memory = loader.length * loader.batch_size * nbytes, float(session.environment.get("memory_gib") or 0.0)
        evidence.append(f"loaded samples have {bytes_text(nbytes)}, {bytes_text(whole)} for an epoch")
        folder = ', folder="..."' if memory and whole > _OF_MEMORY * memory * 2**30 else ""
    where = f"  # before {loader.where}" if loader.where else ""
    return view.made(
        "cache",
        f"Keep what library calls load {'in files' if folder else 'in memory'} after the first epoch",
        "load",
        Change(work=saving(saved)),
        evidence,
        f"loader = pipediag.cache(loader{folder}){where}; it keeps what Pillow, torchvision.io, OpenCV, numpy.load and "
        f"sound libraries return: put @pipediag.pure on functions that parse files themselves{measured_first(session)}",
        f"takes {'disk space' if folder else 'memory'}, and gains nothing in the first epoch",
        tried.speedup if tried is not None else None,
        at_most=tried is None,
    )
