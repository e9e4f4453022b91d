"""Settle chosen parts: what does not go together, or would not be deterministic, gives way to what does."""

from __future__ import annotations

from .calls import OF_FLOATS
from .datasets import WITHIN, calls_of
from .loops import ENDS_WITH_ERROR, OPEN_ENDED, SIMPLE
from .parts import BYTES, CHOICES, CODE, FILES, OF_BYTES, OF_PICTURES, ONLY_V2, STREAMS, WITH_BOXES
from .stages import Parts, kind_of, stages_of
from .states import CURRICULUM, STATES

#: Loops that copy their loader, and so its dataset.
_COPYING = ("copied", "pickled")
#: Loops that step in a function of their own, or fetch in a thread that an edit would race with.
_ELSEWHERE = ("mapped", "fetched")
#: Collate functions that take pictures as one tensor of four dimensions.
_OF_IMAGES = ("mixup", "channels", *OF_PICTURES)
#: Calls that give several images, or tensors of more than three dimensions.
_SEVERAL = ("stacked", "stacks", "clip", "video")
#: Calls of a transform that give no single tensor in the dataset.
_NO_TENSOR = ("views", "mask", "collate", "wrapped", "frames", "raw")
#: Calls whose transform has the stages in a list of its own.
_LISTED = ("compose", "own", "views", "joint", "wrapped", "threaded", "branch", "remembered", "stacked", "retried")


def settled(parts: Parts) -> Parts:
    """Return the parts with what does not go together replaced. Settled parts stay as they are."""
    p = dict(parts)
    of_samples = (_load, _call, _images, _code, _order, _copies, _state, _stages)
    for settle in (*of_samples, _workers, _loop, _curriculum, _offloads):
        settle(p)
    return p


def _load(p: Parts) -> None:
    """A script that waits for its data is a plain one: large JPEGs, one worker, long epochs."""
    if p["load"] == "light":
        return
    p.update(source="jpeg", workers="1", lasting="persistent", context="", rebuilt="", gathered="", words="")
    p.update(beside="one", loader="DataLoader", loop=p["loop"] if p["loop"] in SIMPLE else "plain")
    p["sampler"] = p["sampler"] if p["sampler"] != "unbatched" else "shuffle"
    p["call"] = p["call"] if p["call"] not in ("boxes", "mask", "collate", "wrapped", "remembered") else "compose"
    p["opened"] = p["opened"] if p["opened"] not in (*BYTES, "cached") else "open"
    for name in ("pil", "picture_calls"):
        p[name] = ("resize", *(one for one in p[name] if one != "resize"))[:3]


def _call(p: Parts) -> None:
    """How the transform is called, and the form of samples and batches."""
    if p["source"] in STREAMS:
        p.update(fetch="item", sampler="unbatched" if p["flow"] == "batched" else "none")
        p["gathered"] = "chain" if p["gathered"] and p["flow"] != "endless" else ""
        if p["flow"] == "endless":
            p.update(loop="islice", beside="one")
        p["call"] = "compose" if p["call"] in ("joint", "wrapped") else p["call"]
    else:
        p["flow"], p["gathered"] = "", p["gathered"] if p["gathered"] != "chain" else "concat"
    if p["call"] == "raw" and p["sampler"] == "unbatched":
        p["call"] = "code"
    if p["call"] == "raw" and p["collate"] not in OF_PICTURES:
        p["collate"] = "pictures"
    if p["call"] in ("collate", "wrapped"):
        p["sample"] = "pair"
    if p["call"] == "collate" or p["sampler"] == "unbatched":
        p["collate"] = "default"
    if p["call"] == "collate" and p["sampler"] == "unbatched":
        p["call"] = "compose"
    if p["call"] in _NO_TENSOR:
        p["habit"] = p["habit"] if p["habit"] in ("seeded", "logged", "timed", "restored", *WITHIN) else ""
    if p["call"] not in _LISTED and p["habit"] == "adjusted":
        p["habit"] = ""
    # The pixels of an array that is mapped read-only cannot be written to; nor can what inference mode marks.
    if p["source"] == "memmap" and p["habit"] == "overwritten":
        p["habit"] = ""
    if p["habit"] == "inferred" and "inplace" in (p["collate"], p["loop"]):
        p["habit"] = ""
    if p["collate"] not in ("default", "function", "object", "inplace", "closure"):
        p["sample"] = "pair"
        p["call"] = "compose" if p["call"] in ("views", "mask") and p["collate"] != "lists" else p["call"]
        p["call"] = "code" if p["call"] == "frames" and p["collate"] != "lists" else p["call"]
    if p["collate"] in _OF_IMAGES and p["call"] in _SEVERAL:
        p["call"] = "compose" if p["call"] == "stacked" else "code"


def _images(p: Parts) -> None:
    """What is opened, and into which tensors it is converted."""
    if p["source"] not in FILES or (p["opened"] in BYTES and p["source"] in ("gifs", "npz")):
        p["opened"] = "open"
    if p["source"] == "npz" or (p["opened"] == "draft" and p["source"] != "jpeg"):
        p["opened"] = p["opened"] if p["opened"] in ("helper", "imported") else "open"
    if p["call"] in ("boxes", "mask"):
        p.update(library="v2", where="before", convert=p["convert"] if p["convert"] in ("pil", "image") else "tensor")
        if kind_of(p) == "u8" and p["source"] != "tensor":
            p["opened"] = "open"
    if p["convert"] == "bytes" and (p["loop"] == "inplace" or p["collate"] == "mixup" or kind_of(p) == "f32"):
        p["convert"] = "tensor"


def _code(p: Parts) -> None:
    """What plain code does with images."""
    if p["call"] in CODE and p["habit"] == "calls":
        p["habit"] = ""
    pictures, tensors = [*p["picture_calls"]], [*p["tensor_calls"]]
    if p["call"] not in CODE and p["habit"] != "calls":
        pictures, tensors = [], []
    if kind_of(p) != "pil":
        pictures = []
    if kind_of(p) == "pil" and p["call"] == "raw":
        tensors = []
    if kind_of(p) != "f32" and (p["convert"] == "bytes" or p["call"] == "raw"):
        tensors = [one for one in tensors if one not in OF_FLOATS]
    if p["context"] == "spawn" or p["loop"] in _COPYING:
        pictures, tensors = ([one for one in some if one != "own-torch"] for some in (pictures, tensors))
    if "crop" in pictures or "crop" in p["pil"]:  # nothing is left to crop
        tensors = [one for one in tensors if one != "crop"]
    # Few functions take half precision.
    p["picture_calls"], p["tensor_calls"] = tuple(pictures), tuple(sorted(tensors, key="half".__eq__))
    if p["shift"] == "multiplied" and (p["where"] == "before" or p["call"] in ("collate", "wrapped", "raw")):
        p["shift"] = "brightened"


def _stages(p: Parts) -> None:
    """The stages of the transform."""
    if p["call"] in CODE:
        p["pil"] = p["ten"] = ()
        return
    pil, ten = ([*p["pil"]] if kind_of(p) == "pil" else []), [*p["ten"]]
    if p["library"] == "v1":
        pil, ten = ([one for one in some if one not in ONLY_V2] for some in (pil, ten))
    if p["convert"] == "bytes":
        ten = [one for one in ten if one in OF_BYTES]
    if p["call"] in ("boxes", "mask"):
        pil, ten = ([one for one in some if one in WITH_BOXES] for some in (pil, ten))
        ten = ten or ["flip"]
    # Pixels that share memory cannot be written to, and crops are several images.
    expanded = "expanded" in ten and p["loop"] != "inplace" and p["where"] == "before"
    crops = [one for one in ten if one in ("crops", "crops10") and p["collate"] not in _OF_IMAGES][:1]
    ten = [one for one in ten if one not in ("expanded", "crops", "crops10")]
    if p["context"] == "spawn" or p["loop"] in _COPYING:
        pil, ten = ([one for one in some if one not in ("generator", "lambda")] for some in (pil, ten))
    p["pil"], p["ten"] = tuple(pil), (*ten, *(["expanded"] if expanded else []), *crops)


def _order(p: Parts) -> None:
    """What the loaders are over, and in which order."""
    if p["sampler"] == "unbatched":
        p.update(last="keep")
    if p["source"] in STREAMS and p["beside"] in ("splits", "three"):
        p["beside"] = "after"
    if p["beside"] in ("samplers", "three") and p["loop"] not in SIMPLE:
        p["beside"] = "after"
    if p["loop"] in ("skip", "try", *ENDS_WITH_ERROR):  # the second loader would fail outside of what handles it
        p["beside"] = "one"
    if p["beside"] in ("splits", "three"):
        p["gathered"] = ""
        p["sampler"] = p["sampler"] if p["sampler"] in ("none", "shuffle", "unbatched") else "shuffle"
    if p["beside"] == "sanity":
        p["rebuilt"] = ""
    if p["sampler"] in ("stateful", "drawn", "ranks") and p["loop"] in ("twice", "lookahead"):
        p["loop"] = "plain"
    if p["generator"] == "own" and p["sampler"] not in ("shuffle", "none"):
        p["generator"] = "none"
    if p["generator"] == "both" and p["sampler"] != "shuffle":
        p["generator"] = "none"


def _copies(p: Parts) -> None:
    """What is pickled or copied holds only what can be."""
    if p["context"] == "spawn" and p["workers"] != "0":
        p.update(workers="1", lasting="persistent", form="main", rebuilt="", beside="one")
        p["loop"] = p["loop"] if p["loop"] in (*SIMPLE, "exit") else "plain"
        p["state"] = tuple(one for one in p["state"] if one not in ("own", "function"))
    if p["loop"] in _COPYING:
        p.update(lasting="", rebuilt="", generator="none", loader="DataLoader")
        p["sampler"] = "shuffle" if p["sampler"] == "seeded" else p["sampler"]
        p["source"] = "array" if p["source"] == "handle" else p["source"]
    if p["context"] == "spawn" or p["loop"] in _COPYING:
        p["state"] = tuple(one for one in p["state"] if STATES[one].copied)
        p["collate"] = "default" if p["collate"] == "closure" else p["collate"]


def _state(p: Parts) -> None:
    if not p["state"]:
        p.update(where="before", shift=CHOICES["shift"][0])


def _workers(p: Parts) -> None:
    """What the workers are asked for."""
    if p["words"] == "in_order=False" and p["workers"] != "1":  # which of several workers is faster differs
        p["words"] = ""
    if p["workers"] == "0":
        p.update(lasting="", context="", prefetch="", init="", words="" if "timeout" in p["words"] else p["words"])
    if p["rebuilt"]:
        p["lasting"] = ""
    if p["source"] in STREAMS and p["loader"] == "Shortened":
        p["loader"] = "DataLoader"
    if p["loader"] == "Noting":  # its iterators cannot be reset
        p["lasting"] = ""
    if p["loop"] == "fetched" and p["loader"] in ("Counting", "Noting"):  # what they print, another thread prints
        p["loader"] = "DataLoader"


def _loop(p: Parts) -> None:
    """What the loop does."""
    if p["source"] in STREAMS and p["loop"] in ("deleted", "next"):
        p["loop"] = "plain"
    if p["loop"] == "fetched" and p["beside"] == "validation":  # the thread and the evaluation would draw in turns
        p["loop"] = "plain"
    # How far a worker has got is a matter of time.
    if "seen" in p["state"]:
        p.update(beside="one", workers=p["workers"] if p["workers"] in "01" else "1")
    if _is_shared(p) and p["workers"] != "0":
        p["loop"] = "plain" if p["loop"] in (*OPEN_ENDED, "skip") else p["loop"]
        p["loader"] = "DataLoader"
    if p["loop"] == "twice" and p["lasting"]:
        p["loop"] = "plain"
    if p["flow"] == "endless" and p["loop"] != "islice":
        p["flow"] = ""
    if p["optimizer"] == "closure" and p["loop"] == "accumulate":
        p["optimizer"] = "sgd"
    p["error"] = "corrupt" if p["loop"] in ("skip", "error", "try") else ""
    if p["loop"] != "patch":
        p["patched"] = CHOICES["patched"][0]


def _curriculum(p: Parts) -> None:
    """What the loop edits, and when."""
    stages, call, dynamic = stages_of(p), p["call"], not p["rebuilt"] and p["loop"] not in _COPYING
    fitting = {
        "indices": p["sampler"] == "subset",
        "epoch": p["sampler"] in ("own", "ranks"),
        "grow": p["sampler"] in ("none", "shuffle") and p["generator"] == "none" and _is_over_all(p),
        "constant": any("FACTOR" in one.change for one in calls_of(p)),
        "transform": call not in ("item", "collate", "two", "function", *CODE),
        "note": call not in ("item", "two", *CODE),
        "appended": call in _LISTED,
        "weights": p["sampler"] == "weighted" and dynamic,
        "collate": p["collate"] == "default" and call != "collate" and p["sampler"] != "unbatched" and dynamic,
        "workers": p["workers"] != "0" and not p["lasting"] and not p["words"] and "seen" not in p["state"] and dynamic,
    }
    p["curriculum"] = tuple(
        one
        for one in p["curriculum"]
        if fitting.get(one, not CURRICULUM[one][0] or (CURRICULUM[one][0] in stages and call != "item"))
    )
    edited = any(STATES[one].edit for one in p["state"]) or p["curriculum"]
    raced = (_is_shared(p) and p["workers"] != "0") or p["loop"] in _ELSEWHERE
    if p["edits"] == "inside" and (raced or not edited):
        p["edits"] = "between"


def _offloads(p: Parts) -> None:
    """Whether the script may offload its loader, which is then of another class."""
    if p["loop"] in _COPYING or p["rebuilt"] or p["loader"] == "Shortened" or p["loop"] == "peek":
        p["offloads"] = ""
    if {"collate", "workers", "weights"} & {*p["curriculum"]}:
        p["offloads"] = ""
    if p["offloads"]:
        p["asked"] = ""


def _is_shared(p: Parts) -> bool:
    """Return whether workers that run see what the loop edits."""
    return any(STATES[one].shared for one in p["state"])


def _is_over_all(p: Parts) -> bool:
    """Return whether the first loader is over the dataset itself."""
    return not p["gathered"] and p["beside"] not in ("splits", "three")
