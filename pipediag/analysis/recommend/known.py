"""What is known of torchvision's transforms by their names, in either version of them.

What moves to the device follows docs/offload.md, where the reasons stand.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...session import Link

_OLD, _NEW = "torchvision.transforms.transforms", "torchvision.transforms.v2"
_OLD_AUTO = "torchvision.transforms.autoaugment"

#: Run whatever they hold, which is not known here.
HOLDERS = frozenset({"Compose", "RandomApply", "RandomChoice", "RandomOrder", "Lambda", "Transform"})
#: Never move.
_STAY = frozenset({"AugMix", "JPEG", "LinearTransformation"})
#: Of the older version, stay as they are; they move with ``allow_approximate`` on pictures.
_OLD_POLICIES = frozenset({"AutoAugment", "RandAugment", "TrivialAugmentWide"})
#: Have other pixels on Pillow's pictures than on tensors.
_APPROXIMATE_ON_PICTURES = frozenset(
    {
        *("Resize", "RandomResize", "RandomShortestSize", "ScaleJitter", "RandomResizedCrop"),
        *("RandomAffine", "RandomRotation", "RandomPerspective", "ColorJitter", "RandomPhotometricDistort"),
        *("Grayscale", "RandomGrayscale", "RandomAutocontrast", "RandomEqualize", "RandomAdjustSharpness"),
        *("AutoAugment", "RandAugment", "TrivialAugmentWide"),
    }
)
_MOVE = frozenset(
    {
        *("CenterCrop", "RandomCrop", "FiveCrop", "TenCrop", "Pad", "RandomZoomOut", "RandomIoUCrop"),
        *("RandomHorizontalFlip", "RandomVerticalFlip", "ElasticTransform", "RandomChannelPermutation", "RGB"),
        *("RandomInvert", "RandomPosterize", "RandomSolarize", "GaussianBlur", "GaussianNoise", "RandomErasing"),
        *("MixUp", "CutMix", "ToDtype", "ConvertImageDtype", "Normalize", "ToImage", "PILToTensor", "ToTensor"),
        *("ToPureTensor", "Identity", *_APPROXIMATE_ON_PICTURES),
    }
)

#: Work on each pixel by itself, where it is.
_IN_PLACE = frozenset(
    {
        *("ToTensor", "PILToTensor", "ToImage", "ToDtype", "ConvertImageDtype", "Normalize", "ColorJitter"),
        *("Grayscale", "RandomGrayscale", "RandomInvert", "RandomPosterize", "RandomSolarize", "RGB"),
        *("RandomPhotometricDistort", "RandomChannelPermutation"),
    }
)
#: The same, or turn the picture over: a cut after them keeps what a cut before them gives.
_PER_PIXEL = _IN_PLACE | {"RandomHorizontalFlip", "RandomVerticalFlip"}
#: Look at a pixel's neighbours, in units of pixels: the same but at the edges, as long as nothing is resized.
_NEIGHBOURHOOD = frozenset({"GaussianBlur", "GaussianNoise", "RandomAdjustSharpness"})
_CUTS, _RESIZES = frozenset({"RandomCrop", "CenterCrop"}), frozenset({"Resize", "RandomResizedCrop"})
#: Choose functions at random; measured in a worker, one takes as long to be recorded as so many others.
_DRAW_WHAT_THEY_DO, _OF_MANY = frozenset({*_OLD_POLICIES, "RandomPhotometricDistort"}), 15

#: Give the same for the same sample in every epoch.
_DETERMINISTIC = frozenset(
    {
        *("Resize", "CenterCrop", "Pad", "Grayscale", "RGB", "ToTensor", "PILToTensor", "ToImage", "ToDtype"),
        *("ConvertImageDtype", "Normalize", "ToPureTensor", "ToPILImage", "Identity"),
    }
)


def is_torchvisions(link: Link) -> bool:
    return link.origin.startswith((_OLD, _NEW, _OLD_AUTO))


def moves(link: Link) -> bool | None:
    """Whether a transform moves to the device; None where that depends on what it holds or is given."""
    if not is_torchvisions(link) or link.name in _STAY:
        return False
    if link.name in HOLDERS or link.given not in ("picture", "tensor"):
        return None
    if link.name in _OLD_POLICIES and not link.origin.startswith(_NEW):
        return False
    return link.name in _MOVE and not (link.given == "picture" and link.name in _APPROXIMATE_ON_PICTURES)


def moves_approximately(link: Link) -> bool:
    """Whether it moves where slightly other pixels are allowed, and only then."""
    return is_torchvisions(link) and link.given == "picture" and link.name in _APPROXIMATE_ON_PICTURES


def recordings(link: Link) -> int:
    """As many transforms as it takes to record this one: those that draw what they do call a good deal of Python."""
    return _OF_MANY if link.name in _DRAW_WHAT_THEY_DO else 1


def part_needed(links: Iterable[Link]) -> float:
    """The part of an image that a chain needs: what its cut keeps, where nothing before that moves a pixel."""
    for link in links:
        if link.name in _CUTS and 0 < link.bytes_out < link.bytes_in:
            return link.bytes_out / link.bytes_in
        if link.name not in _IN_PLACE:
            break
    return 1.0


def can_follow(link: Link, cut: Link) -> bool:
    """Whether a transform may as well come after one that makes the picture smaller."""
    if not (is_torchvisions(link) and is_torchvisions(cut)):
        return False
    if cut.name in _CUTS:
        return link.name in _PER_PIXEL | _NEIGHBOURHOOD
    return cut.name in _RESIZES and link.name in _PER_PIXEL


def is_deterministic(link: Link) -> bool:
    return is_torchvisions(link) and link.name in _DETERMINISTIC
