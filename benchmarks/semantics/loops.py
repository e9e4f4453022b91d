"""The text of a script's loop: what it makes before, its steps, its epochs, and what it edits in them."""

from __future__ import annotations

from textwrap import dedent

from .datasets import calls_of, states_of
from .loaders import datasets_made, loaders_made, over, samplers_made
from .parts import CODE, STREAMS
from .stages import Parts, block, stage_in_loop, stages_of
from .states import CURRICULUM

#: Loops after which the number of calls depends on how far the workers had got, as after one over two loaders.
OPEN_ENDED = ("break", "peek", "twice", "finally", "error", "try", "endless", "deleted", "caught", "islice", "cycled",
              "interrupted")  # fmt: skip
#: Loops whose script ends with an error, by intent.
ENDS_WITH_ERROR = ("error", "finally")
#: Loops that do no more than go over one loader, or two side by side.
SIMPLE = ("plain", "accumulate", "kept", "inplace", "marked")
#: Where a loop finds picture and label: by the collate function, else by the form of a sample.
_COLLATED = {
    "detection": "torch.stack(batch[0]), torch.as_tensor(batch[1])",
    "unbound": "torch.stack(batch[0]), batch[1]",
    "dataclass": "batch.x, batch.y",
    "mixup": "batch[0], batch[1].argmax(1)",
    "odd": "batch['x'], batch['y']",
    "processor": "batch['x'], batch['y']",
    "rescaling": "batch['x'], batch['y']",
}
_SAMPLED = {
    "pair": "batch[0], batch[1]",
    "dict": "batch['x'], batch['y']",
    "named": "batch.x, batch.y",
    "indexed": "batch[0], batch[1]",
    "string": "batch[0], batch[1]",
    "numpy": "batch[0], batch[1][..., 0]",
    "nested": "batch['in'][0], batch['in'][1][0]",
    "alone": "batch, 0.5",
}
_PATCHES = {
    "hflip": "torchvision.transforms.functional.hflip",
    "resize": "torchvision.transforms.functional.resize",
    "rotate": "Image.Image.rotate",
    "open": "Image.open",
}
#: What makes the optimizer and what belongs to it, and the lines of a step.
_OPTIMIZERS = {
    "sgd": ("", ""),
    "adam": ("optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)", ""),
    "two": (
        "critic = torch.nn.Linear(48, 1)\nsecond = torch.optim.SGD(critic.parameters(), lr=0.01)",
        "second.zero_grad()\ncritic(torch.ones_like(model.weight)).sum().backward()\nsecond.step()",
    ),
    "closure": ("", ""),
    "averaged": ("average = torch.optim.swa_utils.AveragedModel(model)", "average.update_parameters(model)"),
    "scaled": ("scaler = torch.amp.GradScaler('cpu')", ""),
    "scheduled": ("scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)", ""),
}
#: How a loop wraps its first loader.
_OVER = {
    "islice": "islice(loader, 3)",
    "listed": "list(loader)",
    "shown": "shown_batches(loader)",
    "fetched": "fetched_batches(loader)",
    "cycled": "islice(cycle(loader), 6)",
}
#: What a loop does at its second step.
_AT_SECOND = {
    "break": "if step == 1 and epoch < 2:\n    break",
    "finally": "if epoch == 1 and step == 1:\n    raise KeyError('stopped')",
    "caught": "if epoch == 1 and step == 1:\n    raise KeyError('stopped')",
    "interrupted": "if epoch == 1 and step == 1:\n    raise KeyboardInterrupt",
    "reseeded": "if step == 1:\n    torch.manual_seed(77)\n    np.random.seed(77)",
    "forked": "if step == 1:\n    child = os.fork()\n    if child == 0:\n        random.random()\n"
    "        os._exit(0)\n    os.waitpid(child, 0)",
}
#: What an epoch begins with.
_FIRST = {
    "copied": "if epoch:\n    loader = copy.deepcopy(loader)",
    "pickled": "if epoch:\n    loader = pickle.loads(pickle.dumps(loader))",
    "reseeded": "torch.manual_seed(epoch)\nrandom.seed(epoch)\nnp.random.seed(epoch)",
}
_RESUME = """if epoch == 0:
    torch.save({'model': model.state_dict(), 'rng': torch.get_rng_state()}, 'checkpoint.pt')
    random.random(), np.random.rand(), torch.rand(1)
    checkpoint = torch.load('checkpoint.pt')
    model.load_state_dict(checkpoint['model'])
    torch.set_rng_state(checkpoint['rng'])
"""


def body_of(p: Parts) -> str:
    """Return everything that a script does, up to the last weights."""
    loop, loaders, evaluates = p["loop"], loaders_made(p), p["beside"] in ("splits", "three", "sanity")
    lines = ["torch.manual_seed(3)", "random.seed(4)", "np.random.seed(5)", "torch.set_num_threads(1)"]
    lines += ["logging.basicConfig(filename='log.txt', level=logging.DEBUG)"] if p["habit"] == "logged" else []
    lines += ["args = argparse.Namespace(epoch=0)", *(state.before for state in states_of(p))]
    lines += [] if p["call"] in ("function", *CODE) else ["transform = make_transform()"]
    lines += [*datasets_made(p), *samplers_made(p)]
    lines += loaders if not p["rebuilt"] or loop == "peek" else []
    lines += ["model = torch.nn.Linear(48, 1)", "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)"]
    lines += [_OPTIMIZERS[str(p["optimizer"])][0], _steps(p)]
    lines += [{"kept": "kept = []", "endless": "batches = None"}.get(str(loop), "")]
    lines += ["saw('peek', next(iter(loader)))"] if loop == "peek" else []
    lines += ["evaluate()"] if p["beside"] == "sanity" else []
    epoch = [*_patch(p), *(_edits(p) if p["edits"] == "between" else []), *(loaders if p["rebuilt"] else [])]
    epoch += [_FIRST.get(str(loop), ""), _asked(p) if p["asked"] else "", *_loop(p)]
    epoch += (
        ["for batch in other:\n    saw('other', batch)\n    step_on(batch)"]
        if p["beside"] in ("after", "three")
        else []
    )
    epoch += ["evaluate()"] if evaluates else []
    epoch += ["scheduler.step()"] if p["optimizer"] == "scheduled" else []
    if loop == "resume":
        epoch.append(_RESUME + block(*datasets_made(p), *(loaders if not p["rebuilt"] else [])))
    lines.append(f"for epoch in range(EPOCHS):\n{block(*epoch)}")
    lines += ["for batch in kept:\n    saw('kept', batch)"] if loop == "kept" else []
    lines += [f"saw('patched', {_PATCHES[str(p['patched'])]}.__name__)"] if loop == "patch" else []
    return "\n".join(filter(None, [*lines, "saw('weights', model.weight)"]))


def _asked(p: Parts) -> str:
    """Return what a loop asks its loader."""
    length = "" if p["source"] in STREAMS else "len(loader), "
    return (
        f"saw('asked', {length}loader.dataset is {over(p)}, loader.num_workers, loader.batch_size, "
        "type(loader).__name__, type(loader.sampler).__name__, isinstance(loader, DataLoader))"
    )


def _edits(p: Parts) -> list[str]:
    found = [state.edit for state in states_of(p) if state.edit]
    found += ["args.epoch = epoch"] if any("args.epoch" in call.change for call in calls_of(p)) else []
    for name in p["curriculum"]:
        needs, edit = CURRICULUM[name]
        found.append(edit.format(stage=stage_in_loop(p, stages_of(p).index(needs))) if needs else edit)
    return found


def _patch(p: Parts) -> list[str]:
    if p["loop"] != "patch":
        return []
    target = _PATCHES[str(p["patched"])]
    patched = f"""
        if epoch == 1:
            original = {target}

            def patched(*given, **named):
                called()
                return original(*given, **named)

            {target} = patched"""
    return [dedent(patched).strip()]


def _steps(p: Parts) -> str:
    """Return the functions that a loop does its steps with."""
    loss = [
        "batch = batch['samples']" if p["collate"] in ("object", "closure") else "",
        "batch = default_collate(batch)" if p["collate"] == "lists" else "",
        f"x, y = {_COLLATED.get(str(p['collate'])) or _SAMPLED[str(p['sample'])]}",
        "x = x[0]" if p["call"] in ("views", "mask", "frames") else "",
        "x, y = x.reshape(-1, *x.shape[-3:]), torch.as_tensor(y, dtype=torch.float32).reshape(-1)",
        "y = y.repeat_interleave(max(1, len(x) // len(y)))",
        "x.mul_(0.5)" if p["loop"] == "inplace" else "",
        "x = x.float() / (1 if x.is_floating_point() else 255)",
        "x = torch.nn.functional.adaptive_avg_pool2d(x, 4).flatten(1)",
        "return ((model(x).squeeze(1) - y) ** 2).mean()",
    ]
    found = f"steps = []\n\ndef loss_of(batch):\n{block(*loss)}\n\ndef step_on(batch):\n{block(*_step(p))}\n"
    if p["beside"] in ("splits", "three", "validation", "sanity"):
        found += "\ndef evaluate():\n    model.eval()\n    with torch.no_grad():\n        for batch in val_loader:\n"
        found += "            saw('val', batch, loss_of(batch).item())\n    model.train()\n"
    return found


def _step(p: Parts) -> list[str]:
    """Return the lines of one step of the optimizer."""
    optimizer = p["optimizer"]
    if optimizer == "closure":
        closure = ["optimizer.zero_grad()", "loss = loss_of(batch)", "loss.backward()", "return loss"]
        return [f"def closure():\n{block(*closure)}", "saw('loss', optimizer.step(closure).item())", "steps.append(0)"]
    scaled = optimizer == "scaled"
    return [
        "loss = loss_of(batch)",
        "scaler.scale(loss).backward()" if scaled else "loss.backward()",
        "saw('loss', loss.item())",
        "steps.append(0)",
        "if len(steps) % 2:\n    return" if p["loop"] == "accumulate" else "",
        "scaler.step(optimizer)\nscaler.update()" if scaled else "optimizer.step()",
        "optimizer.zero_grad()",
        _OPTIMIZERS[str(optimizer)][1],
    ]


def _loop(p: Parts) -> list[str]:
    """Return the lines of one epoch over the first loader."""
    loop, both = p["loop"], goes_over_two(p)
    work = block(*_work(p, both))
    each = f"for step, batch in enumerate({'zip(loader, other)' if both else _OVER.get(str(loop), 'loader')}):\n{work}"
    caught = "except ValueError as error:\n    saw('failed', str(error).splitlines()[-1])"
    if loop == "skip":
        drawn = f"try:\n    batch = next(batches)\nexcept StopIteration:\n    break\n{caught}\n    continue"
        return ["batches, step = iter(loader), -1", f"while True:\n    step += 1\n{block(drawn)}\n{work}"]
    if loop == "next":
        return ["batches = iter(loader)", f"for step in range(len(loader)):\n    batch = next(batches)\n{work}"]
    if loop == "lookahead":
        ahead = "batch, ahead, step = ahead, next(batches, None), step + 1"
        begin = "batches, step = iter(loader), -1\nahead = next(batches, None)"
        return [begin, f"while ahead is not None:\n    {ahead}\n{work}"]
    if loop == "endless":
        drawn = "try:\n    batch = next(batches)\nexcept (TypeError, StopIteration):\n    batches = iter(loader)\n"
        return [f"for step in range(5):\n{block(drawn + '    batch = next(batches)')}\n{work}"]
    if loop == "deleted":
        return [f"batches = iter(loader)\nfor step in range(2):\n    batch = next(batches)\n{work}\ndel batches, batch"]
    if loop == "mapped":
        return [f"def work(step, batch):\n{work}", "[work(step, batch) for step, batch in enumerate(loader)]"]
    if loop == "amp":
        return [f"with torch.autocast('cpu', dtype=torch.bfloat16):\n{block(each)}"]
    if loop == "twice":
        return [f"for step, (batch, again) in enumerate(zip(loader, loader)):\n    saw('again', again)\n{work}"]
    ends = {
        "caught": "except KeyError:\n    saw('caught')",
        "interrupted": "except KeyboardInterrupt:\n    saw('interrupted')",
        "finally": "finally:\n    saw('finally')",
        "try": caught,
    }
    return [f"try:\n{block(each)}\n{ends[str(loop)]}"] if loop in ends else [each]


def goes_over_two(p: Parts) -> bool:
    """Return whether a loop goes over two loaders side by side, and ends with the shorter one."""
    return p["beside"] in ("samplers", "three") and p["loop"] in SIMPLE


def _work(p: Parts, both: bool) -> list[str]:
    """Return the lines for one batch; ``both`` if a second loader goes along."""
    edits = _edits(p) if p["edits"] == "inside" else []
    return [
        "batch, extra = batch" if both else "",
        "saw('batch', str(epoch), str(step), batch)",
        "step_on(batch)",
        {"kept": "kept.append(batch)", "marked": "mark(batch)\nsaw('marked', batch)"}.get(str(p["loop"]), ""),
        f"if step == 1:\n{block(*edits)}" if edits else "",
        "if step == 1:\n    evaluate()" if p["beside"] == "validation" else "",
        "saw('extra', extra)\nstep_on(extra)" if both else "",
        _AT_SECOND.get(str(p["loop"]), ""),
    ]
