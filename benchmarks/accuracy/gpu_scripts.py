"""Write the scripts that need a GPU: costs of the copy to it, of its steps, and of the workers that feed it."""

from __future__ import annotations

from textwrap import indent

from . import timing
from .cases import Case, Plant

#: Approximate rate of copies from pageable memory, and time of a small copy: they determine the size of the plants. The
#: truth is measured.
BYTES_PER_MS, MS_PER_COPY = 8e6, 0.01
#: Approximate time of a 4096 x 4096 product in float32.
MS_PER_PRODUCT = 2.5
#: The planted transform's name in a report.
LINK = "Smooth"

TRANSFORM = '''
class Smooth:
    """Keep labels away from 0 and 1."""

    def __call__(self, labels):
        {cost}
        return labels * 0.9 + 0.01


class Widen:
    def __call__(self, labels):
        return labels * 1.0


class Chain:
    def __init__(self, steps):
        self.steps = steps

    def __call__(self, labels):
        for step in self.steps:
            labels = step(labels)
        return labels
'''


def write(case: Case, kept: tuple[Plant, ...], cached: bool) -> str:
    """Return the body of a script; ``case.gpu`` names its form.

    ``resident``, ``uint8``, ``many``: whole batches are ready in pageable memory, as one float32 tensor, one uint8
    tensor, or hundreds of small tensors; without the transfer plant they are on the GPU. ``pinned``, ``workers``,
    ``launches``, ``item``: samples come from workers through pinned memory; the step consists of matrix products, many
    tiny kernels, or ends in a synchronization.
    """
    transform = _plant(kept, "transform")
    parts = [
        TRANSFORM.replace("{cost}\n        ", f"{_cost(case, transform)}\n        " if transform else ""),
        _samples(case, kept) if case.workers else _batches(case, kept),
        _main(case, cached),
    ]
    return "\n".join(parts)


def _plant(kept: tuple[Plant, ...], stage: str) -> Plant | None:
    return next((p for p in kept if p.stage == stage), None)


def _cost(case: Case, plant: Plant) -> str:
    calls = case.batch if case.workers else 1
    return f"time.sleep({case.work_ms(plant) / 1000 / calls:.5f})"


def _batches(case: Case, kept: tuple[Plant, ...]) -> str:
    """Return a dataset whose items are whole batches."""
    size = next(p.size for p in case.plants if p.stage == "transfer") * case.step_ms
    place = "" if _plant(kept, "transfer") else ", device='cuda'"
    if case.gpu == "many":
        made = f"{{f'field{{i}}': torch.rand(64, 8{place}) for i in range({round(size / MS_PER_COPY)})}}"
    elif case.gpu == "uint8":
        made = f"torch.randint(0, 255, ({_count(size, 1)}, 3, 64, 64), dtype=torch.uint8{place})"
    else:
        made = f"torch.rand({_count(size, 4)}, 3, 64, 64{place})"
    lines = [
        "def __init__(self, transform):",
        f"    self.images = {made}",
        "    self.labels = torch.rand(32)",
        "    self.transform = transform",
        "",
        "def __len__(self):",
        "    return 1_000_000",
        "",
        "def __getitem__(self, index):",
        "    return self.images, self.transform(self.labels)",
    ]
    return "\nclass Images(Dataset):\n" + indent("\n".join(lines), "    ") + "\n"


def _count(size_ms: float, item_bytes: int) -> int:
    return max(32, round(size_ms * BYTES_PER_MS / (3 * 64 * 64 * item_bytes)))


def _samples(case: Case, kept: tuple[Plant, ...]) -> str:
    load = _plant(kept, "load")
    lines = [
        "def __init__(self, transform):",
        "    self.images = torch.rand(32, 3, 64, 64)",
        "    self.transform = transform",
        "",
        "def __len__(self):",
        "    return 1_000_000",
        "",
        "def __getitem__(self, index):",
        *([f"    {_cost(case, load)}"] if load else []),
        "    return self.images[index % 32].clone(), self.transform(torch.rand(1))",
    ]
    return "\nclass Images(Dataset):\n" + indent("\n".join(lines), "    ") + "\n"


def _main(case: Case, cached: bool) -> str:
    options = (
        f"batch_size={case.batch}, num_workers={case.workers}, pin_memory=True" if case.workers else "batch_size=None"
    )
    copy = "to(device, non_blocking=True)" if case.workers else "to(device)"
    if case.gpu == "many":
        moved = [f"fields = {{name: field.{copy} for name, field in images.items()}}", "images = fields['field0'][:32]"]
    else:
        moved = [f"images = images.{copy}[:32].float().flatten(1)"]
    products = max(1, round(case.step_ms / MS_PER_PRODUCT))
    work = {
        "launches": [f"for _ in range({round(case.step_ms * 150)}):", "    images = images * 1.0001"],
    }.get(case.gpu, [f"for _ in range({products}):", "    hidden = hidden @ weights"])
    inputs = 8 if case.gpu == "many" else 3 * 64 * 64
    setup = [
        "torch.manual_seed(0)",
        "device = torch.device('cuda')",
        f"loader = DataLoader(Images(Chain([Widen(), Smooth()])), {options})",
        *(
            ["loader = [[part.to(device) for part in batch] for _, batch in zip(range(4), loader)] * 100_000"]
            if cached
            else []
        ),
        f"model = nn.Linear({inputs}, 1).to(device)",
        "optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)",
        "weights = torch.rand(4096, 4096, device=device) / 4096",
        timing.BEFORE_LOOP,
        "for epoch in range(100_000):",
        f"    {timing.BEFORE_EPOCH}",
        "    for images, labels in loader:",
    ]
    body = [
        timing.AFTER_NEXT,
        *moved,
        f"labels = labels.{copy}.view(-1)[:len(images)]",
        "hidden = weights",
        *work,
        "loss = (model(images).view(-1) - labels).pow(2).mean()",
        "optimizer.zero_grad()",
        "loss.backward()",
        "optimizer.step()",
        *(["total = loss.item()"] if case.gpu == "item" else []),
        timing.AFTER_STEP,
    ]
    return "\n".join([*setup, *(f"        {line}" for line in body)]) + "\n"
