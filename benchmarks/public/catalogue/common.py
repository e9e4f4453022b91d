"""What several entries of the catalogue share."""

from __future__ import annotations

from ...recipes.catalogue import Place

SMALL = "benchmarks.public.small_models"
#: A copy of transformers whose history is small enough to fetch; its examples are the original's.
HF, HF_COMMIT = "yunkchen/transformers", "1618d44b9295361607ec74d7be860ba886aac039"


def transformers(at: Place, *more: str) -> list[str]:
    rest = "--do_train --remove_unused_columns False --report_to none --save_strategy no --num_train_epochs 50"
    return [*more, "--output_dir", f"{at.work}/out", *rest.split(), "--dataloader_num_workers", str(at.workers)]
