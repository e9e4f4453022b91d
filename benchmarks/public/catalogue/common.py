"""What several entries of the catalogue share."""

from __future__ import annotations

from ...recipes.catalogue import Place
from ..kinds import Edit, Patch

SMALL = "benchmarks.public.small_models"
#: A copy of transformers whose history is small enough to fetch; its examples are the original's.
HF, HF_COMMIT = "yunkchen/transformers", "1618d44b9295361607ec74d7be860ba886aac039"


def transformers(at: Place, *more: str) -> list[str]:
    rest = "--do_train --remove_unused_columns False --report_to none --save_strategy no --num_train_epochs 50"
    return [*more, "--output_dir", f"{at.work}/out", *rest.split(), "--dataloader_num_workers", str(at.workers)]


def made_once(file: str, name: str, advice: str = "^once") -> Edit:
    """Return the edit for "Make the samples once, before training" of the data set ``name``.

    The first hundred samples stand for all of them: the rest takes minutes to make, and costs the same to serve.
    """
    made = f"""

def _made_once():
    begin, make = {name}.__init__, {name}.__getitem__

    def __init__(self, *args, **kwargs):
        begin(self, *args, **kwargs)
        self.made = [make(self, number) for number in range(min(len(self), 100))]

    {name}.__init__, {name}.__getitem__ = __init__, lambda self, number: self.made[number % len(self.made)]


_made_once()
"""
    return Edit(advice, (Patch(file, "", made),), note="a list of samples, made in __init__")
