"""Rules for lines of code in loading and collating: what each would gain, and what is known to help there.

What a line does is told by the functions that were seen to run below it, never by its text.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...session import HotLine, Place
from ..diagnosis import Recommendation
from ..forecast.whatif import Change
from ..numbers.hot_lines import mostly, of_stage, short
from ..numbers.work import Work, saving
from ..sentences import percent
from ..thresholds import WORTH
from .loading import decodes
from .view import ALL, View, at_line, share_text

#: Largest number of lines of a stage for which something is recommended.
_NAMED = 3


@dataclass(frozen=True)
class Way:
    """What is known to help where a library's functions take the time.

    Attributes:
        functions: beginnings of their full names.
        how: what to write instead.
        risk: what changes with it; empty if nothing does.
    """

    functions: tuple[str, ...]
    how: str
    risk: str = ""


_STORED = "what is stored must be made again when the data changes"
#: The first that fits counts: functions that are special come before their libraries.
WAYS = (
    Way(
        ("pandas.io.", "pyarrow.csv", "csv.", "openpyxl."),
        "read the table once, in __init__, or store it as arrays (.npy, Parquet)",
        _STORED,
    ),
    Way(
        ("pandas.",),
        "the columns as arrays, made once in __init__ (frame[columns].to_numpy()), and a row of them here",
    ),
    Way(("h5py._hl.files",), "open the file once in each worker, at its first sample, and keep it open"),
    Way(
        ("h5py._hl.dataset",),
        "chunks of one sample without gzip (h5repack, or chunks=(1, ...) and compression='lzf'); several rows in one "
        "read by __getitems__",
        _STORED,
    ),
    Way(("zarr.",), "chunks of one sample, a faster codec (blosc, zstd); several rows in one read", _STORED),
    Way(
        ("zipfile.", "gzip.", "zlib.", "bz2.", "lzma.", "_compression.", "tarfile."),
        "files without compression, or with zstd or lz4; an archive opened once in each worker",
        _STORED,
    ),
    Way(
        ("json.", "yaml.", "xml.", "ast.", "simplejson."),
        "parse once and store arrays (.npy); a faster parser (orjson, lxml) if that is not possible",
        _STORED,
    ),
    Way(
        ("pickle.", "_pickle.", "torch.serialization."),
        "one memory-mapped array for many samples (numpy.load(..., mmap_mode='r'), torch.load(..., mmap=True))",
        _STORED,
    ),
    Way(
        ("numpy.lib._npyio", "numpy.lib.npyio", "numpy.lib.format"),
        ".npy in place of .npz, and numpy.load(..., mmap_mode='r')",
        _STORED,
    ),
    Way(
        ("soxr.", "resampy.", "torchaudio.functional.functional.resample", "librosa.core.audio.resample"),
        "store the sounds at the rate that training uses",
        _STORED,
    ),
    Way(
        ("soundfile.", "_soundfile", "audioread.", "torchaudio._torchcodec", "torchaudio.backend"),
        "read only the part that is used (frames=, start=); WAV in place of FLAC or MP3",
        _STORED,
    ),
    Way(
        ("torch.functional.stft", "torch.fft", "torchaudio.", "librosa.feature", "librosa.core.spectrum"),
        "send the samples as they are, and compute this for the whole batch in the training loop, on its device",
        "the device does it in addition to the step",
    ),
    Way(
        ("scipy.signal", "numpy.fft", "scipy.fft"),
        "torch.fft for the whole batch in the training loop, on its device; or for the whole batch in the collate "
        "function",
        "the device does it in addition to the step",
    ),
    Way(
        ("scipy.ndimage", "skimage.", "cv2."),
        "on a smaller array: after the crop, or resized first; OpenCV is faster than scipy and scikit-image; for the "
        "whole batch on the device (kornia, torchvision)",
        "other pixels",
    ),
    Way(
        ("re.", "nltk.", "spacy.", "transformers.tokenization", "tokenizers.", "sentencepiece.", "tiktoken."),
        "make token ids once and store them (datasets.map); a compiled tokenizer, with the whole batch in one call",
        _STORED,
    ),
    Way(
        ("torch.tensor", "torch.as_tensor"),
        "one tensor or array for all samples, made once, and a row of it here; torch.from_numpy copies nothing",
    ),
    Way(("copy.",), "copy only what is changed afterwards"),
)


def cheaper(view: View) -> list[Recommendation]:
    """Recommend making each line cheaper whose work costs the loop a worthwhile gain, costliest first."""
    work, found = view.work, list[Recommendation]()
    if work is None:
        return []
    for stage, whole in (("load", work.load), ("collate", work.collate)):
        lines = of_stage(view.inside, stage)
        total = sum(line.share for line in lines)
        for line in lines[:_NAMED]:
            ms = whole * line.share / total
            known = any(map(decodes, mostly(line))) or line.name.startswith("other lines of ")
            if not known and view.whatif.faster(Change(work=saving(ms))).value >= WORTH:
                found.append(_cheaper(view, work, line, stage, ms))
    return found


def _cheaper(view: View, work: Work, line: HotLine, stage: str, ms: float) -> Recommendation:
    calls = mostly(line)
    way = next((way for way in WAYS if any(name.startswith(way.functions) for name in calls)), None)
    evidence = [f"{line.where} takes {view.per_sample(ms)}, {share_text(ms, work.run)} of a worker's time: {ALL}"]
    if line.text:
        evidence.append(f"its hottest line: {line.text}")
    evidence += [f"{percent(line.calls[name] / line.share)} of it in {short(name)}" for name in calls[-1:]]
    how, risk = "whole arrays in place of Python loops, numba or a compiled operation", ""
    if way is not None:
        how, risk = way.how, way.risk
    elif calls:
        how = "call it less often: on smaller data, once for the whole batch, or once for all epochs"
    place = Place(
        line.name, line.where, line.library, view.loader.dataset_code.made if view.loader.dataset_code else ""
    )
    return view.made(
        "line",
        f"Make {line.name} cheaper",
        stage,
        Change(work=saving(ms)),
        evidence,
        f"{at_line(place)}{how}",
        risk or "another implementation has to give the same results",
        at_most=True,
    )
