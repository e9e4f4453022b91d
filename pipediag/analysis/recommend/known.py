"""Classify the transforms of torchvision (v1 and v2) and timm by name.

docs/offload.md says which of them move to the device, and why.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...session import Link

_OLD, _NEW = "torchvision.transforms.transforms", "torchvision.transforms.v2"
_OLD_AUTO = "torchvision.transforms.autoaugment"
_TIMM = "timm.data."

#: Transforms that run callables of the user's.
HOLDERS = frozenset({"Compose", "RandomApply", "RandomChoice", "RandomOrder", "Lambda", "Transform"})
#: Transforms that never move.
_STAY = frozenset({"AugMix", "JPEG", "LinearTransformation"})
#: Policies; in v1 they move on pictures only.
_POLICIES = frozenset({"AutoAugment", "RandAugment", "TrivialAugmentWide"})
_MOVE = frozenset(
    {
        *("CenterCrop", "RandomCrop", "FiveCrop", "TenCrop", "Pad", "RandomZoomOut", "RandomIoUCrop"),
        *("Resize", "RandomResize", "RandomShortestSize", "ScaleJitter", "RandomResizedCrop"),
        *("RandomHorizontalFlip", "RandomVerticalFlip", "ElasticTransform", "RandomChannelPermutation", "RGB"),
        *("ColorJitter", "RandomPhotometricDistort", "Grayscale", "RandomGrayscale"),
        *("RandomAutocontrast", "RandomEqualize", "RandomAdjustSharpness"),
        *("RandomInvert", "RandomPosterize", "RandomSolarize", "GaussianBlur", "GaussianNoise", "RandomErasing"),
        *("MixUp", "CutMix", "ToDtype", "ConvertImageDtype", "Normalize", "ToImage", "PILToTensor", "ToTensor"),
        *("ToPureTensor", "Identity", "RandomAffine", "RandomRotation", "RandomPerspective", *_POLICIES),
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
_CUTS, _RESIZES = frozenset({"RandomCrop", "CenterCrop"}), frozenset({"Resize", "RandomResizedCrop"})
#: Transforms that draw at random what they do; recording one takes a worker as long as ``_OF_MANY`` others.
_DRAW_WHAT_THEY_DO, _OF_MANY = frozenset({*_POLICIES, "RandomPhotometricDistort"}), 15

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
    if link.name in _POLICIES and not link.origin.startswith(_NEW):
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
    return cut.name in _RESIZES and link.name in _PER_PIXEL


def is_deterministic(link: Link) -> bool:
    return is_torchvisions(link) and link.name in _DETERMINISTIC
