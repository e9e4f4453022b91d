"""The frozen prefix of a model: found, held against the whole, measured, and run a batch ahead of the loop."""

from .agreement import Agreement, SplitDiffers
from .gain import Costs, Prediction, Proposal, predict, propose
from .split import Features, NoPrefix, Split, find_prefix
from .timing import compare, measure
from .weights import NotFrozen

__all__ = [
    "Agreement",
    "Costs",
    "Features",
    "NoPrefix",
    "NotFrozen",
    "Prediction",
    "Proposal",
    "Split",
    "SplitDiffers",
    "compare",
    "find_prefix",
    "measure",
    "predict",
    "propose",
]
