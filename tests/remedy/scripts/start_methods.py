"""Offloads loaders whose workers are spawned or forked by a server, and tells what came of it as JSON."""

import json
import multiprocessing

import torch
from sameness import Images, check_same, loader, moved, pixels, seen
from torchvision.transforms import v2
from torchvision.transforms.v2.functional import _utils as dispatch

from pipediag.remedy import OffloadedLoader, offload


def chain():
    kept = [v2.RandomCrop(24), v2.RandomHorizontalFlip(), v2.RandomRotation(20, fill=[1, 2, 3])]
    return v2.Compose([*kept, v2.ToDtype(torch.float32, scale=True)])


def made(method, plan=None):
    """By the plan, if there is one: finding one takes several processes, and spawning them much time."""
    plain = loader(Images(chain(), pixels), num_workers=1, multiprocessing_context=method)
    return offload(plain, "cpu") if plan is None else OffloadedLoader(plain, plan, torch.device("cpu"))


def outcome(offloaded):
    ours = seen(offloaded)
    theirs = seen(loader(Images(chain(), pixels), num_workers=1))
    check_same(ours, theirs, torch.device("cpu"), level=1 / 255)
    return {"moved": moved(offloaded), "unrecorded": offloaded.unrecorded, "batches": len(ours.batches)}


def main():
    multiprocessing.set_forkserver_preload(["sameness"])  # imports torch once for all workers
    before = {functional: dict(kernels) for functional, kernels in dispatch._KERNEL_REGISTRY.items()}
    by_server = made("forkserver")
    told = {"forkserver": outcome(by_server), "spawn": outcome(made("spawn", by_server.plan))}
    after = dispatch._KERNEL_REGISTRY
    added = {kind for functional in after for kind in set(after[functional]) - set(before.get(functional, {}))}
    kept = after.keys() == before.keys() and all(
        after[functional][kind] is kernel for functional, kernels in before.items() for kind, kernel in kernels.items()
    )
    print(json.dumps({**told, "registry kept": kept, "added": sorted({kind.__module__ for kind in added})}))


if __name__ == "__main__":
    main()
