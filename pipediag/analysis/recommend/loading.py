"""Rules for reading the data: its storage, its number of files, and decoding."""

from __future__ import annotations

import re

from ...session import Files
from ..diagnosis import Recommendation
from ..intervals import least
from ..sentences import counted, number, percent
from ..thresholds import GATE
from ..whatif import Change
from ..work import saving
from .view import HALVED, View, bytes_text, half_at_best, share_text

#: Lines and functions that decode images.
_DECODING = re.compile(
    r"Image\.open|\.convert\(|ImagingDecoder|imread|imdecode|decode_(jpeg|png|image|webp)|read_image|pil_loader|"
    r"simplejpeg|turbojpeg|to_rgb"
)
_COMPRESSED = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gz", ".xz", ".zst", ".zip", ".npz", ".flac")
_JPEG = (".jpg", ".jpeg")
#: Files below this size take longer to find and open than to read, on most storage.
_SMALL_FILE = 1 << 20


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
    lines = [line for line in view.inside.lines if _DECODING.search(f"{line.where} {line.text}")]
    if work is None or not lines:
        return None
    took = min(1.0, sum(line.share for line in lines)) * work.samples
    evidence = [
        f"decoding takes {view.per_sample(took)}, {share_text(took, work.run)} of a worker's time "
        f"({'; '.join(f'{line.where} {line.text}'.strip() for line in lines[:2])}); {HALVED}"
    ]
    if files is not None and any(ending in _COMPRESSED for ending in files.endings):
        evidence.append(_files_text(files))
    smaller = next((link for link in view.session.links if 0 < link.bytes_out < link.bytes_in), None)
    if smaller is not None:
        kept = share_text(smaller.bytes_out, smaller.bytes_in)
        evidence.append(f"{smaller.name} keeps {kept} of what was decoded")
    tried = view.session.loaded_once
    once = (
        ""
        if tried is not None and tried.why_not
        else "pipediag.cache(loader) decodes once if samples fit into memory; "
    )
    on_device = (
        "; --apply --approximate decodes JPEGs that Pillow opens on the GPU"
        if view.device == "cuda" and any(ending in _JPEG for ending in (files.endings if files is not None else ()))
        else ""
    )
    return view.made(
        "decode",
        "Decode less",
        "load",
        Change(work=half_at_best(saving(took))),
        evidence,
        f"{once}Image.draft() before convert() decodes JPEGs to fewer pixels{on_device}",
        "other decoders and other sizes give slightly other pixels",
    )
