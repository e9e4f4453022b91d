"""Callables of the user's own on the device: moved only after proof on the user's own samples.

A lambda, a function, an object or a module that takes one image ``(C, H, W)`` is code that nobody has read. It may
run on the device instead of in the worker only if that makes no difference, which takes two things to show: that its
result depends on its input alone (it draws nothing, keeps nothing, writes into nothing), and that some way of running
it for a whole batch on the device gives the CPU's results, for the user's own samples, however they are batched.
"""

from .proof import Moved, Stays, prove
from .shapes import Shapes

__all__ = ["Moved", "Shapes", "Stays", "prove"]
