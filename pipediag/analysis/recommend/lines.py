"""Rules for lines of code in loading and collating: what each would gain, and what is known to help there.

What a line does is told by the functions that were seen to run below it, never by its text.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...session import HotLine, Place
from ..diagnosis import Recommendation
from ..numbers.hot_lines import OTHERS, familiar, is_python, mostly, of_stage, waits
from ..numbers.loop_and_workers import Work, saving
from ..thresholds import WORTH
from ..waterfall import functions_measured, measured_without
from ..whatif import Change
from ..words import number
from .view import ALL, View, at_line, share_text

#: What changes with another implementation of which nothing more is known.
SAME_RESULTS = "another implementation has to give the same results"
#: Functions that decode pictures, by the module that they are in. Image.open alone reads only a header.
_DECODERS = (
    ("PIL.ImageFile.", {"load"}),
    ("torchvision.io.", {f"decode_{kind}" for kind in ("image", "jpeg", "png", "webp", "gif")} | {"read_image"}),
    ("torchcodec.", {"decode_image", "decode_jpeg", "decode_png"}),
    ("cv2.", {"imread", "imdecode", "imreadmulti"}),
    *((f"{package}.", {"imread"}) for package in ("imageio", "skimage", "matplotlib", "tifffile")),
    *((f"{package}.", {"decode_jpeg", "decode"}) for package in ("simplejpeg", "turbojpeg", "jpeg4py")),
)
#: What helps where no library's functions take the time.
LOOPS = "whole arrays in place of Python loops, numba or a compiled operation"
_STORED = "what is stored must be made again when the data changes"
_SPECTRA = (
    *("torch.functional.stft", "torch.fft", "torchaudio.functional", "torchaudio.transforms"),
    *("librosa.feature", "librosa.core.spectrum"),
)
#: Largest number of lines of a stage for which something is recommended.
_NAMED = 3
#: Packages that fetch data over a network.
_REMOTE = (
    *("requests", "urllib.request", "urllib3", "http.client", "httpx", "aiohttp", "socket", "ssl", "boto3"),
    *("botocore", "s3fs", "gcsfs", "huggingface_hub", "google.cloud", "azure", "paramiko"),
)
#: What helps where a library's functions take the time of which nothing else is known.
_FEWER = (
    "call it less often, or on less data (float32, smaller arrays, the whole batch at once); numba for a loop around it"
)


@dataclass(frozen=True)
class Way:
    """What is known to help where a library's functions take the time."""

    functions: tuple[str, ...]  # beginnings of their full names
    how: str  # what to write instead
    risk: str = ""  # what changes with it; empty if nothing does
    moves: bool = False  # True if it moves the work to the device of the training, which must not be the CPU then


#: What helps where pictures are decoded.
DECODING = Way(
    (),
    "smaller files: images stored at about the size that training uses; torchvision.io.decode_jpeg and Image.draft() "
    "before convert() decode faster",
    "other decoders and other sizes give slightly other pixels",
)
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
        ("sqlite3.", "sqlalchemy.", "psycopg", "pymysql.", "pymongo.", "redis.", "lmdb."),
        "many samples in one query; one connection for each worker, kept open",
    ),
    Way(
        tuple(f"{package}." for package in _REMOTE),
        "a local copy of the data; several requests at once, by threads or more workers, over a connection that stays "
        "open",
        "a copy must be kept up to date",
    ),
    Way(
        ("subprocess.", "os.system", "os.popen"),
        "a library that does it in the worker, or the program run once for all samples, with its results stored",
        _STORED,
    ),
    Way(
        ("time.sleep", "select.", "_thread."),
        "it waits and hardly uses the CPU: several at once, by threads or more workers",
    ),
    Way(
        ("json.", "yaml.", "xml.", "ast.", "simplejson.", "_strptime.", "dateutil."),
        "parse once and store arrays (.npy); a faster parser (orjson, lxml) if that is not possible",
        _STORED,
    ),
    Way(
        ("pickle.", "_pickle.", "torch.serialization."),
        "one memory-mapped array for many samples (numpy.load(..., mmap_mode='r'), torch.load(..., mmap=True))",
        _STORED,
    ),
    Way(
        tuple(
            f"numpy.lib.{module}.{name}"
            for module in ("_npyio_impl", "npyio")
            for name in ("loadtxt", "genfromtxt", "fromregex", "_read")
        ),
        "parse the text once, store it as .npy, and numpy.load(..., mmap_mode='r') here",
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
        _SPECTRA,
        "send the samples as they are, and compute this for the whole batch in the training loop, on its device",
        "the device does it in addition to the step",
        moves=True,
    ),
    Way(
        ("scipy.signal", "numpy.fft", "scipy.fft"),
        "torch.fft for the whole batch in the training loop, on its device; or for the whole batch in the collate "
        "function",
        "the device does it in addition to the step",
        moves=True,
    ),
    Way(
        (*_SPECTRA, "scipy.signal", "numpy.fft", "scipy.fft"),
        "once for each sample, and the result stored, if nothing before it is random; fewer frames or bands",
        _STORED,
    ),
    Way(
        ("scipy.ndimage", "skimage."),
        "OpenCV's function of the same kind; on a smaller array: after the crop, or resized first",
        "other pixels",
    ),
    Way(
        ("PIL.Image.Image.resize", "PIL.Image.resize", "PIL.Image.Image.thumbnail", "cv2.resize"),
        "pictures stored or made at that size; a cheaper filter (BILINEAR), or Pillow's reducing_gap=2.0",
        "other pixels",
    ),
    Way(
        ("cv2.", "PIL.", "torchvision.transforms."),
        "on a smaller picture: after the crop, or resized first",
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
#: What helps where a line waits for other threads or processes that cannot be seen.
_OTHERS_MAKE = Way(
    ("multiprocessing.",), "more threads or processes that make them, each of them with less work, or a longer queue"
)
#: What helps where workers wait for each other at a lock, by what enters it.
_LOCKS = ("multiprocessing.synchronize.SemLock", "multiprocessing.managers.AcquirerProxy", "fcntl.", "filelock.")
_LOCKED = Way(
    _LOCKS,
    "hold it only around what must not run twice at once, and decode or convert after it; if it guards a file or a "
    "connection, open one in each worker, which then needs no lock",
    "what the lock guards may not bear two workers at once",
)
#: What helps where torch takes single rows of tensors.
_ROWS = Way(
    (),
    "the rows of a batch at once: DataLoader(dataset, batch_size=None, sampler=BatchSampler(RandomSampler(dataset), "
    "batch_size, drop_last=False))",
)


def way_for(line: HotLine, on_cpu: bool) -> Way | None:
    """Return what is known to help for what a line mostly does, or None; ``on_cpu`` if the training runs there."""
    names = mostly(line)
    if any(map(decodes, names)):
        return DECODING
    if line.library and line.function == "TensorDataset.__getitem__":
        return _ROWS
    between = [name for name in names if name.startswith((*_OTHERS_MAKE.functions, *_LOCKS))]
    if between and between[0].startswith(_LOCKS):  # that of a queue is inside the queue's own functions
        return _LOCKED
    if between or waits(line):
        return _OTHERS_MAKE
    ways = (way for way in WAYS if not (on_cpu and way.moves))
    return next((way for way in ways if any(name.startswith(way.functions) for name in names)), None)


def decodes(function: str) -> bool:
    """Return whether a function of a library decodes pictures, by its full name."""
    return any(function.startswith(module) and function.rpartition(".")[2] in names for module, names in _DECODERS)


def cheaper_ways(view: View) -> list[Recommendation]:
    """Recommend making each line cheaper whose work costs the loop a worthwhile gain, costliest first.

    Lines of one function that only run Python code are one piece of work: of a loop, no line is the one to change.
    """
    work, found = view.work, list[Recommendation]()
    if work is None:
        return []
    for stage, whole in (("load", work.load), ("collate", work.collate)):
        lines = of_stage(view.inside, stage, functions_measured(view.ladder))
        total, pieces = sum(line.share for line in lines), dict[str, list[HotLine]]()
        for line in lines:
            key = line.function if is_python(line) else line.where
            pieces.setdefault(key, []).append(line)
        costs = [(whole * sum(line.share for line in piece) / total, piece[0]) for piece in pieces.values()]
        for ms, line in sorted(costs, key=lambda cost: cost[0], reverse=True)[:_NAMED]:
            known = any(map(decodes, mostly(line))) or line.name.startswith(OTHERS)
            if not known and view.whatif.faster(Change(work=saving(ms))).value >= WORTH:
                found.append(_cheaper(view, work, line, stage, ms))
    return found


def what_helps(line: HotLine, on_cpu: bool) -> tuple[str, str, str]:
    """Return title, instruction and risk of making a line cheaper; ``on_cpu`` if the training runs there."""
    python, way = is_python(line), way_for(line, on_cpu)
    title = f"Make {(python and line.function) or line.name} cheaper"
    if way is _OTHERS_MAKE:
        title = f"Have ready sooner what {line.name} waits for"
    if way is _LOCKED:
        title = f"Wait less for the lock: {line.name}"
    if way is not None:
        return title, way.how, way.risk or SAME_RESULTS
    return title, f"{LOOPS}; or once, and the result stored, if nothing is random" if python else _FEWER, SAME_RESULTS


def _cheaper(view: View, work: Work, line: HotLine, stage: str, ms: float) -> Recommendation:
    title, how, risk = what_helps(line, view.on_cpu)
    piece = line.function if is_python(line) else line.where
    evidence = [f"{piece} takes {view.per_sample(ms)}, {share_text(ms, work.run)} of a worker's time: {ALL}"]
    if line.text:
        evidence.append(f"its hottest line: {line.text}")
    if does := familiar(line):
        evidence.append(f"most of it in {does}")
    dataset = view.loader.dataset_code
    place = Place(line.name, line.where, line.library, dataset.made if dataset is not None else "")
    left_out = measured_without(view.ladder, stage, place, ms / work.run)
    if left_out is not None:
        evidence.append(f"measured: {number(1000 * left_out.value / view.whatif.base)} steps/s with its results cached")
    change = Change(work=saving(ms)) if left_out is None else left_out
    return view.made("line", title, stage, change, evidence, f"{at_line(place)}{how}", risk, at_most=True)
