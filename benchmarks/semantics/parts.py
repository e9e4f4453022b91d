"""The parts that invented scripts are composed of: every choice and its options, the plainest first."""

from __future__ import annotations

from .calls import PICTURE_CALLS, TENSOR_CALLS
from .states import CURRICULUM, STATES

#: One option of each is chosen.
CHOICES: dict[str, tuple[str, ...]] = {
    "source": ("tensor", "array", "list", "drawn", "png", "jpeg", "gifs", "npz", "pictures", "iterable", "stream",
               "handle", "memmap", "double"),
    "load": ("light", "heavy"),
    "opened": ("open", "with", "bytes", "helper", "imported", "torchvision", "cached", "draft", "resized", "decoded"),
    "library": ("v1", "v2"),
    "call": ("compose", "compose", "compose", "own", "sequential", "function", "item", "views", "joint", "two",
             "collate", "wrapped", "nested", "boxes", "mask", "threaded", "branch", "remembered", "stacked", "retried",
             "code", "code", "code", "code", "frames", "stacks", "clip", "video", "raw", "raw"),
    "convert": ("tensor", "pil", "numpy", "strided", "bytes", "image"),
    "where": ("before", "after"),
    "shift": ("moved", "brightened", "multiplied"),
    "flow": ("", "", "shuffled", "checked", "batched", "pulled", "endless"),
    "offloads": ("", "", "", "offload"),
    "habit": ("", "", "", "", "seeded", "restored", "logged", "asserted", "summed", "cloned", "doubled", "halved",
              "sliced", "timed", "adjusted", "adjusted", "calls", "calls", "overwritten", "inferred", "followed"),
    "sample": ("pair", "pair", "dict", "named", "indexed", "string", "numpy", "nested", "alone"),
    "fetch": ("item", "items"),
    "gathered": ("", "", "", "subset", "concat", "chain"),
    "sampler": ("none", "shuffle", "shuffle", "subset", "weighted", "own", "batches", "unbatched", "replacement",
                "stateful", "drawn", "ranks", "seeded"),
    "generator": ("none", "own", "both"),
    "workers": ("0", "2", "1", "3", "0", "1", "0"),
    "lasting": ("", "persistent", "persistent"),
    "context": ("", "", "", "", "fork", "fork", "fork", "spawn"),
    "last": ("keep", "drop"),
    "collate": ("default", "default", "default", "default", "function", "object", "inplace", "lists", "closure", "odd",
                "padded", "detection", "dataclass", "mixup", "mixed", "channels", "unbound", "filtered", "stack",
                "mixed-order", "sequence", "processor", "rescaling", "pictures", "normalized", "augmented"),
    "rebuilt": ("", "", "rebuilt"),
    "prefetch": ("", "1", "4"),
    "init": ("", "", "seeded", "dataset"),
    "loader": ("DataLoader", "DataLoader", "DataLoader", "DataLoader", "Counting", "Shortened", "Noting"),
    "words": ("", "", "", "pin_memory=True", "timeout=50", "in_order=False"),
    "asked": ("", "", "asked"),
    "beside": ("one", "one", "one", "samplers", "splits", "after", "three", "validation", "sanity"),
    "loop": ("plain", "plain", "plain", "accumulate", "break", "skip", "resume", "inplace", "kept", "lookahead",
             "next", "twice", "peek", "finally", "error", "exit", "patch", "try", "endless", "deleted", "amp", "caught",
             "islice", "listed", "shown", "fetched", "interrupted", "copied", "pickled", "forked", "reseeded", "cycled",
             "mapped", "marked"),
    "optimizer": ("sgd", "sgd", "adam", "two", "closure", "averaged", "scaled", "scheduled"),
    "edits": ("between", "inside"),
    "patched": ("hflip", "resize", "rotate", "open"),
    "form": ("flat", "main"),
    "error": ("", "corrupt"),
}  # fmt: skip
#: Options that only this share of the scripts gets which drew them: they take long, or end the script.
RARE = {("load", "heavy"): 0.06, ("context", "spawn"): 0.15, ("loop", "error"): 0.5, ("loop", "finally"): 0.5}

#: What hinders no move, for the choices that may hinder one.
MOVING = {
    "source": ("tensor", "array", "png", "jpeg", "gifs", "pictures", "handle", "memmap", "stream"),
    "call": ("compose", "own", "sequential", "function", "views", "wrapped", "nested", "boxes", "mask", "threaded",
             "branch", "stacked", "retried", "item", "code", "code", "code", "code", "code", "frames", "frames",
             "stacks", "clip", "video", "raw", "raw", "raw"),
    "convert": ("tensor", "pil", "bytes", "image"),
    "where": ("before", "after"),
    "shift": ("brightened", "multiplied"),
    "habit": ("", "", "seeded", "restored", "logged", "timed", "asserted", "adjusted", "calls", "overwritten"),
    "collate": ("default", "default", "function", "object", "lists", "closure", "padded", "detection", "dataclass",
                "mixup", "mixed-order", "sequence", "filtered", "stack", "processor", "rescaling", "pictures",
                "normalized", "augmented"),
}  # fmt: skip
#: Sources of iterable datasets.
STREAMS = ("iterable", "stream")
#: Calls where plain code changes one image, or several frames, and no transform does; "raw" leaves more to the collate
#: function.
CODE = ("code", "frames", "stacks", "clip", "video", "raw")
#: Collate functions that take pictures too.
OF_PICTURES = ("processor", "rescaling", "pictures")
#: Sources that read files, and ways to open one that give a tensor of bytes.
FILES = ("png", "jpeg", "gifs", "npz")
#: Large files, in scripts that wait for their data, so that an analysis finds a remedy that pays and writes a plan.
HEAVY = "large"
BYTES = ("torchvision", "decoded")
#: Transforms of torchvision and of the script on Pillow pictures; T is either version of torchvision's transforms.
PIL = {
    "resize": "T.Resize((10, 11))",
    "crop": "T.RandomCrop(10, padding=1, pad_if_needed=True)",
    "sized": "T.RandomResizedCrop(9)",
    "flip": "T.RandomHorizontalFlip()",
    "jitter": "T.ColorJitter(0.4, 0.3, 0.2, 0.1)",
    "rotate": "T.RandomRotation(20)",
    "gray": "T.RandomGrayscale(0.5)",
    "gray3": "T.Grayscale(3)",
    "affine": "T.RandomAffine(10, (0.1, 0.1))",
    "perspective": "T.RandomPerspective(0.3)",
    "elastic": "T.ElasticTransform(20.0, 1.0)",
    "posterize": "T.RandomPosterize(4)",
    "solarize": "T.RandomSolarize(100)",
    "equalize": "T.RandomEqualize()",
    "invert": "T.RandomInvert()",
    "sharpness": "T.RandomAdjustSharpness(1.7)",
    "autocontrast": "T.RandomAutocontrast()",
    "trivial": "T.TrivialAugmentWide()",
    "randaugment": "T.RandAugment(2, 5)",
    "autoaugment": "T.AutoAugment()",
    "blur": "T.GaussianBlur(3)",
    "padded": "T.Compose([T.Pad(2, padding_mode='reflect'), T.CenterCrop(11)])",
    "apply": "T.RandomApply([T.ColorJitter(0.5)], p=0.5)",
    "choice": "T.RandomChoice([T.RandomHorizontalFlip(1.0), T.RandomVerticalFlip(1.0)])",
    "order": "T.RandomOrder([T.RandomHorizontalFlip(), T.ColorJitter(0.3), T.RandomInvert()])",
    "nested": "T.RandomApply([T.RandomHorizontalFlip(), T.Compose([T.ColorJitter(0.2)])], p=0.6)",
    "lambda": "T.Lambda(lambda image: image.rotate(5))",
    "photometric": "T.RandomPhotometricDistort()",
    "permuted": "T.RandomChannelPermutation()",
    "zoom": "T.RandomZoomOut(side_range=(1.0, 1.5))",
    "scales": "T.RandomResize(8, 12)",
    "jpeg": "T.JPEG((50, 90))",
    "handed": "Handed().flipped",
    "handed-lambda": "T.Lambda(Handed().brightened)",
    "mirror": "Mirror()",
    "enhance": "Enhance()",
    "tilt": "Tilt()",
    "paste": "Paste()",
    "held": "Held()",
    "thumbnail": "Thumbnail()",
    "turn": "Turn()",
    "ops": "Ops()",
    "points": "Points()",
    "warp": "Warp()",
    "blend": "Blend()",
    "array": "FlippedArray()",
}
#: The same on float tensors.
TENSORS = {
    "normalize": "T.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))",
    "normalize-inplace": "T.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4), inplace=True)",
    "erase": "T.RandomErasing(p=0.5)",
    "erase-drawn": "T.RandomErasing(p=0.7, value='random')",
    "flip": "T.RandomHorizontalFlip()",
    "vertical": "T.RandomVerticalFlip(0.3)",
    "crop": "T.RandomCrop(8, pad_if_needed=True)",
    "sized": "T.RandomResizedCrop(8, antialias=True)",
    "resize": "T.Resize((9, 8), antialias=True)",
    "rotate": "T.RandomRotation(20)",
    "affine": "T.RandomAffine(10, (0.1, 0.1))",
    "perspective": "T.RandomPerspective(0.3)",
    "jitter": "T.ColorJitter(0.4, 0.3, 0.2, 0.1)",
    "gray": "T.RandomGrayscale(0.4)",
    "solarize": "T.RandomSolarize(0.5)",
    "blur": "T.GaussianBlur(3)",
    "lambda": "T.Lambda(lambda x: x * 0.9)",
    "apply": "T.RandomApply([T.GaussianBlur(3)], p=0.4)",
    "order": "T.RandomOrder([T.RandomHorizontalFlip(), T.RandomErasing(p=0.5)])",
    "noise2": "T.GaussianNoise()",
    "double": "T.ConvertImageDtype(torch.float64)",
    "handed": "Handed().flipped",
    "handed-lambda": "T.Lambda(Handed().brightened)",
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
    "sliced": "Sliced()",
    "transposed": "Transposed()",
    "expanded": "Expanded()",
    "branching": "Branching()",
    "mixes": "MixedWithLast()",
    "power": "brightened",
    "matrix": "ycbcr",
    "crops": "T.Compose([T.FiveCrop(6), Stack()])",
    "crops10": "T.Compose([T.TenCrop(6), Stack()])",
}
#: Options that version 1 of torchvision's transforms does not have.
ONLY_V2 = ("photometric", "permuted", "zoom", "scales", "jpeg", "noise2")
#: Transforms of tensors that stay in the worker, and so keep all before them there.
STAYING = ("lambda", "centre", "noise", "numpy", "roll", "cutout", "counted", "level", "generator", "sliced",
           "transposed", "expanded", "branching", "mixes")  # fmt: skip
#: Transforms of tensors that take bytes, too.
OF_BYTES = ("flip", "vertical", "crop", "sized", "resize", "rotate", "affine", "jitter", "gray", "blur", "apply",
            "turn", "crops", "sliced", "transposed", "scale")  # fmt: skip
#: Calls of plain code on tensors after which the code needs the pixels, so that all before them stays in the worker.
STAYING_CALLS = (
    "table",
    "boxed",
    "slices",
    "reversed",
    "noise",
    "mean",
    "moved",
    "half",
    "previous",
    "own-image",
    "double",
    "box",
)
#: Transforms that leave no two samples of one size.
RESIZING = {"resize", "crop", "sized", "thumbnail", "zoom", "scales", "padded"}
#: The stages of a transform of picture and boxes are the library's own, and know boxes.
WITH_BOXES = tuple(
    name
    for name, stage in (PIL | TENSORS).items()
    if stage.startswith("T.")
    and name not in ("trivial", "randaugment", "autoaugment", "padded", "crops", "crops10", "lambda", "choice")
)

#: Some of each are chosen, at most as many as stand here.
SEVERAL = {"state": (2, (*STATES,)), "pil": (3, (*PIL,)), "ten": (3, (*TENSORS,)), "curriculum": (2, (*CURRICULUM,)),
           "picture_calls": (3, (*PICTURE_CALLS,)), "tensor_calls": (3, (*TENSOR_CALLS,))}  # fmt: skip
