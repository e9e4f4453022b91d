"""List what is known of the transforms of libraries: which move to the device, and what makes them cheaper.

docs/transforms.md says why some do not move.
An :class:`Alternative` with a key can be tried in a worker, on the transform's own inputs
(:mod:`pipediag.ladder.probes.alternatives`); the others are only told.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ...session import Link, Session
from ..numbers.chain import grains_of
from ..numbers.ladder import LadderView
from ..thresholds import GATE
from ..verdict import judge
from ..waterfall import waterfall

_OLD, _NEW = "torchvision.transforms.transforms", "torchvision.transforms.v2"
_OLD_AUTO = "torchvision.transforms.autoaugment"

#: Transforms that run callables of the user's.
HOLDERS = frozenset({"Compose", "RandomApply", "RandomChoice", "RandomOrder", "Lambda", "Transform"})
#: Transforms that never move.
_STAY = frozenset({"AugMix", "JPEG", "LinearTransformation"})
#: Policies; in v1 they move on pictures only.
_DRAWN = frozenset({"AutoAugment", "RandAugment", "TrivialAugmentWide"})
_MOVE = frozenset(
    {
        *("CenterCrop", "RandomCrop", "FiveCrop", "TenCrop", "Pad", "RandomZoomOut", "RandomIoUCrop"),
        *("Resize", "RandomResize", "RandomShortestSize", "ScaleJitter", "RandomResizedCrop"),
        *("RandomHorizontalFlip", "RandomVerticalFlip", "ElasticTransform", "RandomChannelPermutation", "RGB"),
        *("ColorJitter", "RandomPhotometricDistort", "Grayscale", "RandomGrayscale"),
        *("RandomAutocontrast", "RandomEqualize", "RandomAdjustSharpness"),
        *("RandomInvert", "RandomPosterize", "RandomSolarize", "GaussianBlur", "GaussianNoise", "RandomErasing"),
        *("MixUp", "CutMix", "ToDtype", "ConvertImageDtype", "Normalize", "ToImage", "PILToTensor", "ToTensor"),
        *("ToPureTensor", "Identity", "RandomAffine", "RandomRotation", "RandomPerspective", *_DRAWN),
    }
)

#: Transforms of timm that move, on pictures.
_MOVE_OF_TIMM = frozenset(
    {
        *("RandomResizedCropAndInterpolation", "ResizeKeepRatio", "CenterCropOrPad", "RandomCropOrPad", "RandomPad"),
        *("TrimBorder", "RandAugment", "AutoAugment", "MaybeToTensor", "MaybePILToTensor", "ToTensor"),
    }
)

#: Transforms that change each pixel by itself and leave it in place.
_IN_PLACE = frozenset(
    {
        *("ToTensor", "PILToTensor", "ToImage", "ToDtype", "ConvertImageDtype", "Normalize", "ColorJitter"),
        *("Grayscale", "RandomGrayscale", "RandomInvert", "RandomPosterize", "RandomSolarize", "RGB"),
        *("RandomPhotometricDistort", "RandomChannelPermutation"),
    }
)
#: These and flips: a crop after them gives the same result as a crop before them.
_PER_PIXEL = _IN_PLACE | {"RandomHorizontalFlip", "RandomVerticalFlip"}
#: Transforms that read a pixel's neighbourhood: a crop before them changes only the edges, but resizing changes more.
_NEIGHBOURHOOD = frozenset({"GaussianBlur", "GaussianNoise", "RandomAdjustSharpness"})
_CUTS, _RESIZERS = frozenset({"RandomCrop", "CenterCrop"}), frozenset({"Resize", "RandomResizedCrop"})
#: Transforms that draw at random what they do; recording one takes a worker as long as ``_OF_MANY`` others.
_DRAW_WHAT_THEY_DO, _OF_MANY = frozenset({*_DRAWN, "RandomPhotometricDistort"}), 15

#: Transforms with the same result for a sample in every epoch.
_DETERMINISTIC = frozenset(
    {
        *("Resize", "CenterCrop", "Pad", "Grayscale", "RGB", "ToTensor", "PILToTensor", "ToImage", "ToDtype"),
        *("ConvertImageDtype", "Normalize", "ToPureTensor", "ToPILImage", "Identity"),
    }
)


def is_torchvisions(link: Link) -> bool:
    return link.origin.startswith((_OLD, _NEW, _OLD_AUTO))


def moves(link: Link) -> bool | None:
    """Return whether a transform moves to the device, or None if that depends on its callables or its input."""
    if link.origin.startswith(_TIMM):
        return link.name == "RandomErasing" or (link.given == "picture" and link.name in _MOVE_OF_TIMM)
    if not is_torchvisions(link) or link.name in _STAY:
        return False
    if link.name in HOLDERS or link.given not in ("picture", "tensor"):
        return None
    if link.name in _DRAWN and not link.origin.startswith(_NEW):
        return link.given == "picture"
    return link.name in _MOVE


def recordings(link: Link) -> int:
    """Return the cost of recording a transform, as a number of plain transforms."""
    return _OF_MANY if link.name in _DRAW_WHAT_THEY_DO else 1


def part_needed(links: Iterable[Link]) -> float:
    """Return the share of an image that a chain needs: what its crop keeps, unless pixels are moved before the crop."""
    for link in links:
        if link.name in _CUTS and 0 < link.bytes_out < link.bytes_in:
            return link.bytes_out / link.bytes_in
        if link.name not in _IN_PLACE:
            break
    return 1.0


def can_follow(link: Link, cut: Link) -> bool:
    """Return whether a transform may run after one that makes the picture smaller instead of before it."""
    if not (is_torchvisions(link) and is_torchvisions(cut)):
        return False
    if cut.name in _CUTS:
        return link.name in _PER_PIXEL | _NEIGHBOURHOOD
    return cut.name in _RESIZERS and link.name in _PER_PIXEL


def is_deterministic(link: Link) -> bool:
    return is_torchvisions(link) and link.name in _DETERMINISTIC


#: Kinds of input; see :attr:`pipediag.session.Link.given`.
_PICTURE, _TENSOR, _ARRAY = "picture", "tensor", "array"
_TORCHVISION, _ALBUMENTATIONS, _TIMM = "torchvision.", "albumentations.", "timm.data."
#: Libraries whose transforms take tensors on a device.
_ON_TENSORS = ("torchaudio.", "kornia.", "monai.", "torchio.")
_LIBRARIES = (_TORCHVISION, _ALBUMENTATIONS, _TIMM, *_ON_TENSORS, "imgaug.", "librosa.", "PIL.", "skimage.", "scipy.")
#: The name of loading where a transform is named, and the endings of the files for which :data:`DRAFT` is.
LOADING, JPEGS = "load", (".jpg", ".jpeg")


@dataclass(frozen=True)
class Alternative:
    """A cheaper way to do what a transform does."""

    what: str  # the change in a few words, after the transform's name
    how: str  # the line to write
    pixels: str  # what becomes of the pixels; empty if they stay equal, except for rounding
    libraries: tuple[str, ...]  # beginnings of the modules of the transforms that it is for
    names: frozenset[str]  # the transforms' names; empty for all
    given: tuple[str, ...]  # the kinds of input that it is for; empty for all
    #: Names of transforms of which one must follow the transform in its chain; empty for any chain.
    before: frozenset[str] = frozenset()
    key: str = ""  # names the way in a trial; empty if it is not tried


_COLOURS = frozenset(
    {"ColorJitter", "RandomGrayscale", "Grayscale", "RandomPhotometricDistort", "RandomAdjustSharpness"}
    | {"RandomAutocontrast", "RandomEqualize", "RandomPosterize", "RandomSolarize", "RandomInvert"}
)
_WARPS = frozenset({"RandomAffine", "RandomRotation", "RandomPerspective", "ElasticTransform"})
_POLICIES = frozenset({"RandAugment", "AutoAugment", "TrivialAugmentWide", "AugMix"})
_RESIZES = frozenset({"Resize", "RandomResizedCrop", "RandomResizedCropAndInterpolation"})
_SMALLER = _RESIZES | _CUTS | {"RandomCropOrPad", "CenterCropOrPad", "RandomSizedCrop", "SmallestMaxSize"}
_SMALLER |= {"LongestMaxSize", "Crop", "RandomShortestSize", "ResizeKeepRatio"}

#: For loading, instead of a transform.
DRAFT = Alternative(
    "decode JPEGs to fewer pixels",
    "image.draft('RGB', size) between Image.open and convert, with the size that the first resize gives",
    "the decoder averages pixels before the resize does",
    (),
    frozenset({LOADING}),
    (_PICTURE,),
    key="draft",
)
ALTERNATIVES = (
    Alternative(
        "without hue",
        "ColorJitter(brightness, contrast, saturation)",
        "colours keep their hue",
        (_TORCHVISION,),
        frozenset({"ColorJitter"}),
        (_PICTURE, _TENSOR),
        key="hue",
    ),
    Alternative(
        "on tensors of uint8",
        "v2.PILToTensor() before it, and v2.ToDtype(torch.float32, scale=True) in place of ToTensor",
        "pixels are rounded in another way",
        (_TORCHVISION,),
        _COLOURS | _RESIZES | _WARPS | _POLICIES | {"GaussianBlur"},
        (_PICTURE,),
        key="tensor",
    ),
    Alternative(
        "in two steps",
        "image.resize(size, resample, box, reducing_gap=2.0) of Pillow, in a transform of your own",
        "pixels are averaged before they are resampled",
        (_TORCHVISION,),
        _RESIZES,
        (_PICTURE,),
        key="reducing-gap",
    ),
    Alternative(
        "by Pillow",
        "image.filter(ImageFilter.GaussianBlur(sigma)), in a transform of your own",
        "Pillow approximates the blur by boxes",
        (_TORCHVISION,),
        frozenset({"GaussianBlur"}),
        (_PICTURE,),
        key="pillow-blur",
    ),
    Alternative(
        "with a smaller kernel",
        "a kernel_size of at most 6 sigma: further values hardly count",
        "",
        (_TORCHVISION,),
        frozenset({"GaussianBlur"}),
        (_TENSOR, _PICTURE),
    ),
    Alternative(
        "after the crop",
        "behind the crop or resize in the list of transforms: fewer pixels to change",
        "drawn in another order",
        (_TORCHVISION, _ALBUMENTATIONS, _TIMM),
        _COLOURS | _WARPS | _POLICIES | {"GaussianBlur", "GaussNoise", "CLAHE", "HueSaturationValue", "MotionBlur"},
        (_PICTURE, _TENSOR, _ARRAY),
        before=_SMALLER,
    ),
    Alternative(
        "on tensors of uint8",
        "v2.ToDtype(torch.float32, scale=True) behind it instead of before it: a byte takes a quarter of the memory",
        "pixels are rounded to bytes",
        (_TORCHVISION,),
        _COLOURS | _RESIZES | _WARPS | _POLICIES | {"RandomCrop", "Pad"},
        (_TENSOR,),
    ),
    Alternative(
        "on the device",
        "x.to(device).float().div(255) and the normalisation in the training loop: the workers send bytes",
        "",
        (_TORCHVISION, _ALBUMENTATIONS, _TIMM),
        frozenset({"Normalize", "ToTensor", "ToDtype", "ConvertImageDtype", "ToFloat"}),
        (_PICTURE, _TENSOR, _ARRAY),
    ),
    Alternative(
        "with a coarse displacement",
        "ElasticTransform(approximate=True), or one displacement for several samples",
        "the displacement is smoother",
        (_ALBUMENTATIONS,),
        frozenset({"ElasticTransform", "GridDistortion", "OpticalDistortion"}),
        (_ARRAY, _TENSOR),
    ),
    Alternative(
        "by a look-up table",
        "RandomBrightnessContrast on uint8 in place of ColorJitter or HueSaturationValue: a table for each image",
        "hue and saturation stay",
        (_ALBUMENTATIONS,),
        frozenset({"ColorJitter", "HueSaturationValue", "RGBShift", "RandomToneCurve"}),
        (_ARRAY,),
    ),
    Alternative(
        "for all channels alike",
        "GaussNoise(per_channel=False), or noise made on the device",
        "the noise has no colour",
        (_ALBUMENTATIONS,),
        frozenset({"GaussNoise", "ISONoise", "MultiplicativeNoise"}),
        (_ARRAY,),
    ),
    Alternative(
        "on the device",
        "applied to a whole batch in the training loop: it takes tensors on a device",
        "drawn in another order",
        _ON_TENSORS,
        frozenset(),
        (),
    ),
    Alternative(
        "by a linear filter",
        "interpolation=cv2.INTER_LINEAR (albumentations) or 'bilinear' (timm) in place of cubic or area filters",
        "a softer resize",
        (_ALBUMENTATIONS, _TIMM),
        _RESIZES
        | _WARPS
        | {"Affine", "ShiftScaleRotate", "Rotate", "Perspective", "LongestMaxSize", "SmallestMaxSize"},
        (_PICTURE, _ARRAY),
    ),
)


def is_stock(link: Link) -> bool:
    """Return whether a transform is a library's, so that the user cannot rewrite it."""
    return link.origin.startswith(_LIBRARIES)


def alternatives(link: Link, chain: Sequence[Link] = ()) -> list[Alternative]:
    """Return what is known to make a transform cheaper, that which can be tried first, in its chain."""
    names = [one.name for each in chain for _, one in grains_of(each)]
    after = {*names[names.index(link.name) + 1 :]} if link.name in names else set(names)
    return [
        one
        for one in ALTERNATIVES
        if link.name in (one.names or {link.name})
        and link.origin.startswith(one.libraries)
        and link.given in (one.given or {link.given})
        and (not one.before or not chain or one.before & after)
    ]


def to_try(link: Link) -> list[str]:
    """Return the keys of the alternatives to a transform that a worker can try."""
    return [one.key for one in alternatives(link) if one.key]


def by_key(key: str) -> Alternative | None:
    """Return the alternative with a key, or None if another version knows it."""
    return next((one for one in ALTERNATIVES if one.key and one.key == key), None)


def worth_trying(session: Session) -> bool:
    """Return whether a worker should try alternatives: the loop certainly starves, and there are some.

    Samples of a stream are not taken apart, so it has no inputs to try them on.
    """
    ladder, inside = LadderView(session), session.inside
    if session.loader is None or session.loader.iterable:
        return False
    jpegs = inside is not None and inside.files is not None and any(map(inside.files.endings.get, JPEGS))
    known = jpegs or any(
        to_try(replace(link, name=one.name, origin=module)) for link in session.links for module, one in grains_of(link)
    )
    if not known or not ladder.intervened:
        return False
    starved = judge(ladder, waterfall(ladder)).starved
    return starved is not None and starved.low > GATE
