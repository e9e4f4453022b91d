"""Choose the parts of scripts at random, and plainer ones for a script that fails. The same seed chooses the same."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from .compose import ENDS_WITH_ERROR, OPEN_ENDED, Parts, kind_of, stages_of
from .parts import CHOICES, CURRICULUM, FILES, SEVERAL, STATES, WITH_BOXES

#: Stages that call torchvision's functions or Pillow's methods.
_LIBRARY = re.compile(r"T\.(?!Lambda)|Turn|Mirror|Enhance|Tilt")
#: A spawned worker imports torch anew, so only this share of what asks for one gets it.
_SPAWNED = 0.15


def invent(seed: int, number: int, without: frozenset[str] = frozenset()) -> Parts:
    """Return the parts of the script with this number; ``without`` leaves out options."""
    rng = random.Random(f"{seed} {number}")
    parts: Parts = {name: rng.choice([o for o in options if o not in without] or [options[0]])
                    for name, options in CHOICES.items()}  # fmt: skip
    for name, (most, options) in SEVERAL.items():
        allowed = [option for option in options if option not in without]
        chosen = rng.sample(allowed, min(len(allowed), rng.randint(0, most)))
        parts[name] = tuple(chosen)
    if rng.random() >= _SPAWNED and parts["context"] == "spawn":
        parts["context"] = ""
    return settled(parts)


def shrunk(parts: Parts, fails: Callable[[Parts], bool]) -> Parts:
    """Return plainer parts that still fail: each choice by its plainest option, each of several left out."""
    while True:
        for plainer in _plainer(parts):
            if fails(plainer):
                parts = plainer
                break
        else:
            return parts


def _plainer(parts: Parts) -> list[Parts]:
    found: list[Parts] = []
    for name in SEVERAL:
        chosen = parts[name]
        found += [{**parts, name: ()}] if len(chosen) > 1 else []
        found += [{**parts, name: tuple(one for one in chosen if one != left)} for left in chosen]
    found += [{**parts, name: options[0]} for name, options in CHOICES.items() if parts[name] != options[0]]
    plainer = [settled(one) for one in found]
    return [one for one in plainer if one != parts and size(one) < size(parts)]


def size(parts: Parts) -> int:
    """Return how far parts are from the plainest ones."""
    return sum(len(parts[name]) for name in SEVERAL) + sum(
        parts[name] != options[0] for name, options in CHOICES.items()
    )


def traits(parts: Parts) -> set[str]:
    """Return what is known of a script before it runs.

    ``library`` if a transform of torchvision or Pillow works on samples that can be recorded, ``meant`` if it is to end
    with an error.
    """
    found = {"library"} if parts["source"] != "iterable" and any(map(_LIBRARY.match, stages_of(parts))) else set()
    return found | ({"meant"} if parts["loop"] in ENDS_WITH_ERROR else set())


def settled(parts: Parts) -> Parts:
    """Return the parts with what does not go together, or would not be deterministic, replaced by what does."""
    p = dict(parts)
    if p["source"] == "iterable":
        p.update(fetch="item", sampler="none", call="compose" if p["call"] in ("joint", "wrapped") else p["call"])
    if p["source"] not in FILES or (p["opened"] == "torchvision" and p["source"] in ("gifs", "npz")):
        p["opened"] = "open"
    if kind_of(p) != "pil":
        p["pil"] = ()
    if p["source"] == "npz":
        p["opened"] = p["opened"] if p["opened"] in ("helper", "imported") else "open"
    if p["call"] == "boxes":
        p.update(library="v2", convert="pil" if p["convert"] == "pil" else "tensor", where="before")
        p["pil"], p["ten"] = (tuple(one for one in p[name] if one in WITH_BOXES) for name in ("pil", "ten"))
        if kind_of(p) == "u8" and p["source"] != "tensor":
            p["opened"] = "open"
    if "crops" in p["ten"]:
        p["ten"] = (*(one for one in p["ten"] if one != "crops"), "crops")
    if p["call"] in ("collate", "wrapped"):
        p["sample"] = "pair"
    if p["collate"] == "lists":
        p["sample"] = "pair"
    if p["call"] == "collate":
        p["collate"] = "default"
    if p["sampler"] == "unbatched":
        p.update(collate="default", last="keep", call="compose" if p["call"] == "collate" else p["call"])
    if p["source"] == "iterable" and p["loop"] == "deleted":
        p["loop"] = "plain"
    if p["sampler"] in ("stateful", "drawn", "ranks") and p["loop"] in ("twice", "lookahead"):
        p["loop"] = "plain"
    if p["generator"] == "own" and p["sampler"] not in ("shuffle", "none"):
        p["generator"] = "none"
    # Which worker has got how far is a matter of time.
    if "seen" in p["state"]:
        p["workers"] = p["workers"] if p["workers"] in "01" else "1"
        p["loop"] = "plain" if p["loop"] in (*OPEN_ENDED, "skip") else p["loop"]
        p["beside"] = "one"
    if p["beside"] in ("samplers", "three") and p["loop"] not in ("plain", "accumulate", "kept", "inplace"):
        p["beside"] = "after"
    if p["beside"] in ("splits", "three"):
        p["curriculum"] = tuple(one for one in p["curriculum"] if one != "grow")
    if p["source"] == "iterable" and p["beside"] in ("splits", "three"):
        p["beside"] = "after"
    if p["beside"] in ("splits", "three") and p["sampler"] not in ("none", "shuffle", "unbatched"):
        p["sampler"] = "shuffle"
    if p["workers"] == "0":
        p.update(lasting="", context="", prefetch="", init="")
    if p["context"] == "spawn":
        p.update(workers="1", lasting="persistent", form="main", rebuilt="", beside="one")
        p["loop"] = p["loop"] if p["loop"] in ("plain", "accumulate", "kept", "inplace", "exit") else "plain"
        p["state"] = tuple(one for one in p["state"] if one not in ("closure", "own", "function"))
        p["ten"] = tuple(one for one in p["ten"] if one not in ("generator", "lambda"))
        p["pil"] = tuple(one for one in p["pil"] if one != "lambda")
        p["collate"] = "default" if p["collate"] == "closure" else p["collate"]
    if p["rebuilt"]:
        p["lasting"] = ""
    if p["loop"] == "twice" and p["lasting"]:
        p["loop"] = "plain"
    p["error"] = "corrupt" if p["loop"] in ("skip", "error", "try") else ""
    if p["loop"] != "patch":
        p["patched"] = CHOICES["patched"][0]
    stages = stages_of(p)
    fitting = {
        "indices": p["sampler"] == "subset",
        "epoch": p["sampler"] in ("own", "ranks"),
        "grow": p["sampler"] in ("none", "shuffle") and p["generator"] == "none",
        "transform": p["call"] not in ("item", "collate", "two", "function"),
        "note": p["call"] not in ("item", "two"),
    }
    p["curriculum"] = tuple(
        one
        for one in p["curriculum"]
        if fitting.get(one, not CURRICULUM[one][0] or (CURRICULUM[one][0] in stages and p["call"] != "item"))
    )
    edited = any(STATES[one].edit for one in p["state"]) or p["curriculum"]
    shared = any(STATES[one].shared for one in p["state"])
    if p["edits"] == "inside" and (not edited or (shared and p["workers"] != "0")):
        p["edits"] = "between"
    if not p["state"]:
        p["where"] = "before"
    return p
