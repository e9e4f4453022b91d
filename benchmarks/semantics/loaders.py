"""The text that makes a script's datasets, samplers and loaders."""

from __future__ import annotations

from .datasets import HANDED
from .parts import CODE, STREAMS
from .stages import Parts

_COLLATES = {
    "function": "collate_reversed",
    "inplace": "collate_in_place",
    "lists": "collate_listed",
    "object": "Collate()",
    "closure": "counting_collate()",
    "odd": "collate_odd",
    "padded": "collate_padded",
    "detection": "collate_detection",
    "dataclass": "collate_dataclass",
    "mixup": "collate_mixup",
    "mixed": "collate_mixed",
    "mixed-order": "collate_mixed_order",
    "sequence": "collate_sequence",
    "channels": "collate_channels",
    "unbound": "collate_unbound",
    "filtered": "collate_filtered",
    "stack": "collate_stacked",
    "processor": "Processor(True)",
    "rescaling": "Processor(False)",
    "pictures": "collate_pictures",
    "normalized": "collate_normalized",
    "augmented": "collate_augmented",
}
#: Words for the order; ``dataset`` stands for what the loader is over.
_SAMPLERS = {
    "none": "",
    "shuffle": "shuffle=True",
    "subset": "sampler=sampler",
    "weighted": "sampler=WeightedRandomSampler(torch.arange(1.0, N + 1), N)",
    "own": "sampler=sampler",
    "batches": "batch_sampler=BatchSampler(RandomSampler(dataset), 5, False)",
    "unbatched": "batch_size=None",
    "stateful": "sampler=sampler",
    "drawn": "sampler=sampler",
    "ranks": "sampler=sampler",
    "seeded": "sampler=RandomSampler(dataset, generator=torch.Generator().manual_seed(2))",
    "replacement": "sampler=RandomSampler(dataset, replacement=True, num_samples=12)",
}
#: What makes the sampler of that name.
_MADE_SAMPLERS = {
    "subset": "SubsetRandomSampler(list(range(0, N, 2)) + [5, 11, 13])",
    "own": "OwnSampler(N)",
    "stateful": "StatefulSampler(N)",
    "drawn": "DrawnSampler(N)",
    "ranks": "DistributedSampler(dataset, 2, 0)",
}
_GATHERED = {
    "subset": "gathered = Subset(dataset, [*range(9, N), *range(9)])",
    "concat": "gathered = ConcatDataset([dataset, dataset])",
    "chain": "gathered = ChainDataset([dataset, copy.copy(dataset)])",
}
_SPLIT = "train, val = random_split(dataset, [12, 4])"


def over(p: Parts) -> str:
    """Return the name of what the first loader is over."""
    if p["beside"] in ("splits", "three"):
        return "train"
    return "gathered" if p["gathered"] else "dataset"


def datasets_made(p: Parts) -> list[str]:
    handed = "".join(f", {HANDED[one]}={HANDED[one]}" for one in p["state"] if one in HANDED)
    return [
        f"data = Data(N, {'None' if p['call'] in CODE else 'transform'}, args{handed})",
        "data.n = N - 6" if "grow" in p["curriculum"] else "",
        "dataset = Wrapped(data, transform)" if p["call"] == "wrapped" else "dataset = data",
        {"train": _SPLIT, "gathered": _GATHERED.get(str(p["gathered"]), "")}.get(over(p), ""),
    ]


def samplers_made(p: Parts) -> list[str]:
    """Return the lines that make what the loaders are made with."""
    made = _MADE_SAMPLERS.get(str(p["sampler"]), "")
    return [
        f"sampler = {made.replace('dataset', over(p))}" if made else "",
        "generator = torch.Generator().manual_seed(11)" if p["generator"] != "none" else "",
    ]


def loaders_made(p: Parts) -> list[str]:
    beside, first, unbatched = p["beside"], over(p), p["sampler"] == "unbatched"
    order = _SAMPLERS[str(p["sampler"])].replace("dataset", first)
    if p["generator"] == "both":
        order = f"sampler=RandomSampler({first}, generator=generator)"
    loaders = [f"loader = {_loader(p, first, order, p['generator'] != 'none')}"]
    loaders += ["loader = given(loader)"] if p["offloads"] else []
    if beside in ("splits", "three", "validation", "sanity"):
        loaders.append(f"val_loader = {_loader(p, 'val' if first == 'train' else 'dataset', '')}")
    if beside in ("samplers", "after", "three"):
        other = "sampler=SubsetRandomSampler(list(range(1, 12, 2)))" if p["source"] not in STREAMS else ""
        loaders.append(f"other = {_loader(p, first, 'batch_size=None' if unbatched else other)}")
    return loaders


def _loader(p: Parts, dataset: str, order: str, generator: bool = False) -> str:
    """Return the expression that makes a loader; ``order`` are the words that say in which order."""
    sized = not order.startswith("batch_")
    collate = "Transformed(transform)" if p["call"] == "collate" else _COLLATES.get(str(p["collate"]), "")
    words = {
        "batch_size=4": sized,
        order: order,
        f"num_workers={p['workers']}": p["workers"] != "0",
        "persistent_workers=True": p["lasting"],
        f"multiprocessing_context='{p['context']}'": p["context"],
        f"prefetch_factor={p['prefetch']}": p["prefetch"],
        "worker_init_fn=seed_worker": p["init"] == "seeded",
        "worker_init_fn=note_on_dataset": p["init"] == "dataset",
        "drop_last=True": p["last"] == "drop" and sized,
        "generator=generator": generator,
        f"collate_fn={collate}": collate,
        str(p["words"]): p["words"],
    }
    return f"{p['loader']}({', '.join([dataset, *(word for word, holds in words.items() if holds)])})"
