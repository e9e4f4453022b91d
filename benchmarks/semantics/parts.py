"""The parts that invented scripts are composed of: every choice and its options, the plainest first."""

from __future__ import annotations

#: One option of each is chosen.
CHOICES: dict[str, tuple[str, ...]] = {
    "source": ("tensor", "array", "list", "drawn", "png", "jpeg", "gifs", "npz", "pictures", "iterable", "handle"),
    "opened": ("open", "with", "bytes", "helper", "imported", "torchvision", "cached"),
    "library": ("v1", "v2"),
    "call": ("compose", "own", "sequential", "function", "item", "views", "joint", "two", "collate", "wrapped",
             "nested", "boxes"),
    "convert": ("tensor", "pil", "numpy", "strided"),
    "where": ("before", "after"),
    "sample": ("pair", "dict", "named", "indexed", "string", "numpy", "nested", "alone"),
    "fetch": ("item", "items"),
    "sampler": ("none", "shuffle", "subset", "weighted", "own", "batches", "unbatched", "replacement",
                "stateful", "drawn", "ranks", "seeded"),
    "generator": ("none", "own"),
    "workers": ("0", "2", "1", "3", "0", "2"),
    "lasting": ("", "persistent"),
    "context": ("", "", "", "", "fork", "fork", "fork", "spawn"),
    "last": ("keep", "drop"),
    "collate": ("default", "default", "function", "object", "inplace", "lists", "closure"),
    "rebuilt": ("", "rebuilt"),
    "prefetch": ("", "1", "4"),
    "init": ("", "", "seeded", "dataset"),
    "loader": ("DataLoader", "DataLoader", "DataLoader", "Counting"),
    "beside": ("one", "one", "one", "samplers", "splits", "after", "three", "validation"),
    "loop": ("plain", "plain", "accumulate", "break", "skip", "resume", "inplace", "kept", "lookahead", "next", "twice",
             "peek", "finally", "error", "exit", "patch", "try", "endless", "deleted", "amp", "caught"),
    "edits": ("between", "inside"),
    "patched": ("hflip", "resize", "rotate", "open"),
    "form": ("flat", "main"),
    "error": ("", "", "", "corrupt"),
}  # fmt: skip

#: Sources that read files.
FILES = ("png", "jpeg", "gifs", "npz")
#: Transforms of torchvision and of the script on Pillow pictures; T is either version of torchvision's transforms.
PIL = {
    "resize": "T.Resize((10, 11))",
    "crop": "T.RandomCrop(10, padding=1, pad_if_needed=True)",
    "sized": "T.RandomResizedCrop(9)",
    "flip": "T.RandomHorizontalFlip()",
    "jitter": "T.ColorJitter(0.4, 0.3, 0.2, 0.1)",
    "rotate": "T.RandomRotation(20)",
    "gray": "T.RandomGrayscale(0.5)",
    "affine": "T.RandomAffine(10, (0.1, 0.1))",
    "posterize": "T.RandomPosterize(4)",
    "solarize": "T.RandomSolarize(100)",
    "autocontrast": "T.RandomAutocontrast()",
    "trivial": "T.TrivialAugmentWide()",
    "randaugment": "T.RandAugment(2, 5)",
    "blur": "T.GaussianBlur(3)",
    "apply": "T.RandomApply([T.ColorJitter(0.5)], p=0.5)",
    "choice": "T.RandomChoice([T.RandomHorizontalFlip(1.0), T.RandomVerticalFlip(1.0)])",
    "nested": "T.RandomApply([T.RandomHorizontalFlip(), T.Compose([T.ColorJitter(0.2)])], p=0.6)",
    "lambda": "T.Lambda(lambda image: image.rotate(5))",
    "mirror": "Mirror()",
    "enhance": "Enhance()",
    "tilt": "Tilt()",
    "paste": "Paste()",
    "thumbnail": "Thumbnail()",
    "turn": "Turn()",
}
#: The same on float tensors.
TENSORS = {
    "normalize": "T.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))",
    "normalize-inplace": "T.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4), inplace=True)",
    "erase": "T.RandomErasing(p=0.5)",
    "flip": "T.RandomHorizontalFlip()",
    "vertical": "T.RandomVerticalFlip(0.3)",
    "crop": "T.RandomCrop(8, pad_if_needed=True)",
    "sized": "T.RandomResizedCrop(8, antialias=True)",
    "blur": "T.GaussianBlur(3)",
    "lambda": "T.Lambda(lambda x: x * 0.9)",
    "apply": "T.RandomApply([T.GaussianBlur(3)], p=0.4)",
    "scale": "Scale()",
    "centre": "Centre()",
    "noise": "Noise()",
    "numpy": "NumpyNoise()",
    "roll": "Roll()",
    "cutout": "Cutout()",
    "counted": "Counted()",
    "level": "Level()",
    "generator": "OwnGenerator()",
    "turn": "Turn()",
    "crops": "T.Compose([T.FiveCrop(6), Stack()])",
}
#: The stages of a transform of picture and boxes are the library's own, and know boxes.
WITH_BOXES = tuple(
    name
    for name, stage in (PIL | TENSORS).items()
    if stage.startswith("T.") and name not in ("trivial", "randaugment", "crops", "lambda", "choice")
)


class State:
    """Hidden state of a dataset: where it stands, the number that a sample reads of it, and how the loop edits it.

    Args:
        reads: expression for an integer, inside ``__getitem__``.
        edit: statement of the loop.
        top, init, before: lines at the module's top, in ``__init__``, and before the dataset is made.
        method: a method of the dataset's.
        shared: whether workers that run already see the edit.
    """

    def __init__(
        self,
        reads: str,
        edit: str = "",
        top: str = "",
        init: str = "",
        before: str = "",
        method: str = "",
        shared: bool = False,
    ) -> None:
        self.reads, self.edit, self.top, self.init, self.before = reads, edit, top, init, before
        self.method, self.shared = method, shared


_NUMBER = """def number(self):
    with self.seen.get_lock():
        self.seen.value += 1
        return self.seen.value % 5"""
_WRITE_LEVEL = """def write_level(level):
    with open('level.txt', 'w') as file:
        file.write(str(level))"""
STATES = {
    "namespace": State("self.args.epoch", "args.epoch = epoch", init="self.args = args"),
    "config": State("self.cfg.aug['strength']", "cfg.aug['strength'] = epoch", init="self.cfg = cfg",
                    before="cfg = SimpleNamespace(aug={'strength': 0})"),
    "helper": State("helper.STRENGTH", "helper.STRENGTH = epoch"),
    "value": State("self.value.value", "value.value = epoch", init="self.value = value",
                   before="value = mp.Value('i', 0)", shared=True),
    "class": State("self.level", "Data.level = epoch"),
    "global": State("LEVEL", "LEVEL = epoch", top="LEVEL = 0"),
    "note": State("getattr(self, 'note', 0)"),
    "worker": State("getattr(get_worker_info(), 'id', 0)"),
    "written": State("int(self.levels[i])", "data.levels[:] += 1", init="self.levels = np.zeros(n, dtype=np.int64)"),
    "buffer": State("len(self.buffer) % 5", "data.buffer.append(epoch)", init="self.buffer = []"),
    "late": State("int(np.random.randint(0, 5)) if i >= 12 else 0"),
    "late-own": State("int(self.late.integers(0, 5)) if i >= 12 else 0", init="self.late = np.random.default_rng(9)"),
    "own": State("int(self.rng.integers(0, 5))", init="self.rng = np.random.default_rng(7)"),
    "seen": State("self.number()", init="self.seen = mp.Value('i', 0)", shared=True,
                  method=_NUMBER),
    "seeded": State("int(np.random.default_rng([self.args.epoch, i]).integers(0, 9))", "args.epoch = epoch",
                    init="self.args = args"),
    "env": State("int(os.environ['LEVEL'])", "os.environ['LEVEL'] = str(epoch)", before="os.environ['LEVEL'] = '0'"),
    "closure": State("self.reads()", "box[0] = epoch", init="self.reads = reads",
                     before="box = [0]\nreads = lambda: box[0]"),
    "shared": State("int(self.tensor[0])", "level.fill_(epoch)", init="self.tensor = level",
                    before="level = torch.zeros(1).share_memory_()", shared=True),
    "file": State("int(open('level.txt').read())", "write_level(epoch)", before="write_level(0)", shared=True,
                  top=_WRITE_LEVEL),
    "function": State("strength.level", "strength.level = epoch",
                      top="def strength():\n    pass\n\n\nstrength.level = 0"),
    "listed": State("self.levels_of[i % 4]", "data.levels_of[1] = epoch", init="self.levels_of = [0, 0, 1, 1]"),
    "default": State("level_of()", "level_of.__defaults__[0][0] = epoch",
                     top="def level_of(box=[0]):\n    return box[0]"),
    "descriptor": State("self.strength", "data._strength = epoch", init="self._strength = 0",
                        method="@property\ndef strength(self):\n    called()\n    return self._strength"),
}  # fmt: skip
#: Edits of a loop's curriculum, by the stage of the transform that they need; ``{stage}`` is the stage itself.
CURRICULUM = {
    "probability": ("T.RandomHorizontalFlip()", "{stage}.p = 0.9"),
    "factor": ("Scale()", "{stage}.factor = 0.5 + epoch"),
    "method": ("Scale()", "Scale.__call__ = lambda self, x: x + epoch"),
    "level": ("Level()", "FACTOR = 1.0 + epoch"),
    "statistics": ("T.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))", "{stage}.mean = [0.1, 0.2, 0.1 * epoch]"),
    "note": ("", "transform.note = epoch"),
    "transform": ("", "dataset.transform = make_transform()"),
    "labels": ("", "data.labels[3] = epoch"),
    "indices": ("", "sampler.indices = sampler.indices[1:]"),
    "grow": ("", "data.n = min(N, N - 6 + 2 * epoch)"),
    "epoch": ("", "sampler.set_epoch(epoch)"),
}
#: Some of each are chosen, at most as many as stand here.
SEVERAL = {"state": (2, (*STATES,)), "pil": (3, (*PIL,)), "ten": (3, (*TENSORS,)), "curriculum": (2, (*CURRICULUM,))}
