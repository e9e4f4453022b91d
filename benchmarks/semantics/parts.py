"""The parts that invented scripts are composed of: every choice and its options, the plainest first."""

from __future__ import annotations

#: One option of each is chosen.
CHOICES: dict[str, tuple[str, ...]] = {
    "source": ("tensor", "array", "list", "drawn", "png", "jpeg", "gifs", "npz", "pictures", "iterable"),
    "opened": ("open", "with", "bytes", "helper", "imported", "torchvision", "cached"),
    "library": ("v1", "v2"),
    "call": ("compose", "own", "sequential", "function", "item", "views", "joint", "two", "collate", "wrapped"),
    "convert": ("tensor", "pil", "numpy", "strided"),
    "where": ("before", "after"),
    "sample": ("pair", "dict", "named", "indexed", "string", "numpy", "nested", "alone"),
    "fetch": ("item", "items"),
    "sampler": ("none", "shuffle", "subset", "weighted", "own", "batches", "unbatched", "replacement"),
    "generator": ("none", "own"),
    "workers": ("0", "2", "1", "3", "0", "2"),
    "lasting": ("", "persistent"),
    "context": ("", "", "", "", "fork", "fork", "fork", "spawn"),
    "last": ("keep", "drop"),
    "collate": ("default", "default", "function", "object", "inplace", "lists"),
    "rebuilt": ("", "rebuilt"),
    "prefetch": ("", "1", "4"),
    "init": ("", "", "seeded"),
    "beside": ("one", "one", "one", "samplers", "splits", "after", "three", "validation"),
    "loop": ("plain", "plain", "accumulate", "break", "skip", "resume", "inplace", "kept", "lookahead", "next", "twice",
             "peek", "finally", "error", "exit", "patch", "try"),
    "edits": ("between", "inside"),
    "patched": ("hflip", "resize", "rotate", "open"),
    "form": ("flat", "main"),
    "error": ("", "", "", "corrupt"),
}  # fmt: skip

#: Some of each are chosen, at most as many as stand here.
SEVERAL: dict[str, tuple[int, tuple[str, ...]]] = {
    "state": (
        2,
        ("namespace", "config", "helper", "value", "class", "global", "worker", "written", "buffer", "late", "own", "seen",
         "seeded", "env", "closure", "shared", "file", "function", "listed", "default", "descriptor", "late-own"),
    ),
    "pil": (
        3,
        ("resize", "crop", "sized", "flip", "jitter", "rotate", "gray", "affine", "posterize", "autocontrast", "trivial",
         "randaugment", "blur", "apply", "choice", "mirror", "enhance", "tilt", "paste", "thumbnail", "turn", "solarize"),
    ),
    "ten": (
        3,
        ("normalize", "normalize-inplace", "erase", "flip", "crop", "sized", "blur", "scale", "centre", "noise", "numpy",
         "roll", "cutout", "counted", "level", "generator", "turn", "vertical"),
    ),
    "curriculum": (
        2,
        ("probability", "factor", "method", "level", "statistics", "note", "transform", "labels", "indices", "grow",
         "epoch"),
    ),
}  # fmt: skip

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
}
#: The script's own transforms, by the call that makes them.
OWN = {
    "Mirror()": """
class Mirror:
    def __call__(self, image):
        return ImageOps.mirror(image) if random.random() < 0.5 else image
""",
    "Enhance()": """
class Enhance:
    def __call__(self, image):
        image = ImageEnhance.Brightness(image).enhance(random.uniform(0.5, 1.5))
        return ImageEnhance.Contrast(image).enhance(random.uniform(0.5, 1.5))
""",
    "Tilt()": """
class Tilt:
    def __call__(self, image):
        return image.rotate(np.random.uniform(-15, 15), Image.Resampling.BILINEAR)
""",
    "Paste()": """
class Paste:
    def __call__(self, image):
        image = image.copy()
        image.paste((random.randint(0, 255), 0, 0), (2, 2, 5, 5))
        image.putpixel((0, 0), (1, 2, 3))
        return image
""",
    "Thumbnail()": """
class Thumbnail:
    def __call__(self, image):
        image.thumbnail((9, 9))
        return image
""",
    "Turn()": """
class Turn:
    def __call__(self, x):
        if random.random() < 0.5:
            x = TF.hflip(x)
        return TF.rotate(x, random.uniform(-20, 20))
""",
    "Scale()": """
class Scale:
    def __init__(self, factor=0.5):
        self.factor = factor

    def __call__(self, x):
        return x * self.factor
""",
    "Centre()": """
class Centre:
    def __call__(self, x):
        x -= x.mean()
        return x
""",
    "Noise()": """
class Noise:
    def __call__(self, x):
        return x + 0.1 * torch.randn_like(x)
""",
    "NumpyNoise()": """
class NumpyNoise:
    def __call__(self, x):
        return x + torch.from_numpy(np.random.normal(0, 0.1, x.shape).astype(np.float32))
""",
    "Roll()": """
class Roll:
    def __call__(self, x):
        return torch.roll(x, random.randint(0, 3), -1)
""",
    "Cutout()": """
class Cutout:
    def __call__(self, x):
        top = int(torch.randint(0, 5, (1,)))
        x[:, top : top + 3] = 0
        return x
""",
    "Counted()": """
class Counted:
    seen = 0

    def __call__(self, x):
        called()
        self.seen += 1
        return x + self.seen / 64
""",
    "Level()": """
FACTOR = 1.0


class Level:
    def __call__(self, x):
        return x * FACTOR
""",
    "OwnGenerator()": """
class OwnGenerator:
    def __init__(self):
        self.random, self.torch = random.Random(3), torch.Generator().manual_seed(4)

    def __call__(self, x):
        return x * self.random.random() + torch.rand(1, generator=self.torch)
""",
}


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


STATES = {
    "namespace": State("self.args.epoch", "args.epoch = epoch", init="self.args = args"),
    "config": State("self.cfg.aug['strength']", "cfg.aug['strength'] = epoch", init="self.cfg = cfg",
                    before="cfg = SimpleNamespace(aug={'strength': 0})"),
    "helper": State("helper.STRENGTH", "helper.STRENGTH = epoch"),
    "value": State("self.value.value", "value.value = epoch", init="self.value = value",
                   before="value = mp.Value('i', 0)", shared=True),
    "class": State("self.level", "Data.level = epoch"),
    "global": State("LEVEL", "LEVEL = epoch", top="LEVEL = 0"),
    "worker": State("getattr(get_worker_info(), 'id', 0)"),
    "written": State("int(self.levels[i])", "data.levels[:] += 1", init="self.levels = np.zeros(n, dtype=np.int64)"),
    "buffer": State("len(self.buffer) % 5", "data.buffer.append(epoch)", init="self.buffer = []"),
    "late": State("int(np.random.randint(0, 5)) if i >= 12 else 0"),
    "late-own": State("int(self.late.integers(0, 5)) if i >= 12 else 0", init="self.late = np.random.default_rng(9)"),
    "own": State("int(self.rng.integers(0, 5))", init="self.rng = np.random.default_rng(7)"),
    "seen": State("self.number()", init="self.seen = mp.Value('i', 0)", shared=True,
                  method="def number(self):\n    with self.seen.get_lock():\n        self.seen.value += 1\n        return self.seen.value % 5"),
    "seeded": State("int(np.random.default_rng([self.args.epoch, i]).integers(0, 9))", "args.epoch = epoch",
                    init="self.args = args"),
    "env": State("int(os.environ['LEVEL'])", "os.environ['LEVEL'] = str(epoch)", before="os.environ['LEVEL'] = '0'"),
    "closure": State("self.reads()", "box[0] = epoch", init="self.reads = reads", before="box = [0]\nreads = lambda: box[0]"),
    "shared": State("int(self.tensor[0])", "level.fill_(epoch)", init="self.tensor = level",
                    before="level = torch.zeros(1).share_memory_()", shared=True),
    "file": State("int(open('level.txt').read())", "write_level(epoch)", before="write_level(0)", shared=True,
                  top="def write_level(level):\n    with open('level.txt', 'w') as file:\n        file.write(str(level))"),
    "function": State("strength.level", "strength.level = epoch",
                      top="def strength():\n    pass\n\n\nstrength.level = 0"),
    "listed": State("self.levels_of[i % 4]", "data.levels_of[1] = epoch", init="self.levels_of = [0, 0, 1, 1]"),
    "default": State("level_of()", "level_of.__defaults__[0][0] = epoch", top="def level_of(box=[0]):\n    return box[0]"),
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
