"""Write the small made-up data that the public scripts read, each in the layout of the data set that it stands for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from ...recipes import data as recipes_data
from . import of_others, of_pictures

WRITERS: dict[str, Callable[[Path], None]] = {
    write.__name__: write
    for write in (
        of_pictures.nuclei,
        of_pictures.yolo,
        of_pictures.clips,
        of_pictures.drives,
        of_pictures.words,
        of_pictures.boxes,
        of_pictures.captions,
        of_pictures.sharp,
        of_pictures.poses,
        of_pictures.cars,
        of_pictures.flowers,
        of_others.speakers,
        of_others.commands,
        of_others.readings,
        of_others.pairs,
        of_others.clouds,
        of_others.volumes,
        of_others.crystals,
        of_others.clicks,
        of_others.meters,
        of_others.tiny,
    )
}


def prepare(folder: Path, kinds: Iterable[str]) -> dict[str, float]:
    """Write the missing kinds; return the seconds that each took. Kinds of the recipes are written by them."""
    folder.mkdir(parents=True, exist_ok=True)
    took = {}
    for kind in sorted(kinds):
        done = folder / f".{kind}"
        if done.exists():
            continue
        began = time.perf_counter()
        if kind in WRITERS:
            WRITERS[kind](folder)
        else:
            recipes_data.WRITERS[kind](folder, False)
        done.touch()
        took[kind] = round(time.perf_counter() - began, 1)
    return took
