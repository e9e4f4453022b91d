"""Choose the parts of scripts at random, and plainer ones for a script that fails. The same seed chooses the same."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Collection

from .loops import ENDS_WITH_ERROR
from .parts import CHOICES, CODE, MOVING, RARE, SEVERAL, STAYING, STAYING_CALLS, STREAMS
from .settling import settled
from .stages import Parts, stages_of

#: Stages that call torchvision's functions or Pillow's methods.
_LIBRARY = re.compile(r"T\.(?!Lambda)|Turn|Mirror|Enhance|Tilt|Ops|Points|Warp")
#: Share of the scripts in which no choice hinders a move, and what has to stay in the workers comes first.
_MOVING = 0.65
#: Share of what has to stay in the workers that these scripts get.
_STAYING = 0.3


def invent(seed: int, number: int, without: frozenset[str] = frozenset()) -> Parts:
    """Return the parts of the script with this number; ``without`` leaves out options."""
    rng = random.Random(f"{seed} {number}")
    moving = rng.random() < _MOVING
    parts: Parts = {}
    for name, options in CHOICES.items():
        likely = MOVING.get(name, options) if moving else options
        parts[name] = rng.choice([one for one in likely if one not in without] or [options[0]])
    for name in ("state", "pil", "ten", "picture_calls", "tensor_calls"):
        parts[name] = _some(rng, name, [option for option in SEVERAL[name][1] if option not in without])
    for (name, option), share in RARE.items():
        if parts[name] == option and rng.random() >= share:
            parts[name] = CHOICES[name][0]
    if moving:
        for name, staying in (("ten", STAYING), ("tensor_calls", STAYING_CALLS)):
            left = [one for one in parts[name] if one not in staying or rng.random() < _STAYING]
            parts[name] = tuple(sorted(left, key=lambda one, staying=staying: one not in staying))
        if parts["source"] in STREAMS:
            parts["offloads"] = "offload"
    edits = tuple(one for one in SEVERAL["curriculum"][1] if one not in without)
    parts["curriculum"] = _some(rng, "curriculum", [*settled({**parts, "curriculum": edits})["curriculum"]])
    return settled(parts)


def _some(rng: random.Random, name: str, options: list[str]) -> tuple[str, ...]:
    return tuple(rng.sample(options, min(len(options), rng.randint(0, SEVERAL[name][0]))))


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


def has(parts: Parts, options: Collection[str]) -> bool:
    """Return whether one of these options was chosen."""
    return any(one in options for chosen in parts.values() for one in ([chosen] if isinstance(chosen, str) else chosen))


def traits(parts: Parts) -> set[str]:
    """Return what is known of a script before it runs.

    ``library`` if a transform of torchvision or Pillow works on samples that can be recorded, ``plain-code`` if calls
    of the script's own code may be recorded, ``meant`` if it is to end with an error.
    """
    found = {"library"} if parts["source"] not in STREAMS and any(map(_LIBRARY.match, stages_of(parts))) else set()
    found |= {"plain-code"} if parts["call"] in (*CODE, "item") or parts["habit"] == "calls" else set()
    return found | ({"meant"} if parts["loop"] in ENDS_WITH_ERROR else set())
