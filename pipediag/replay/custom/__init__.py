"""Move the user's own callables to the device, only after a proof on the user's own samples.

A lambda, a function, an object or a module that takes one image ``(C, H, W)`` is unknown code. It may run on the device
instead of in the worker only if two things are proven: its result depends on its input alone (it draws nothing, keeps
no state and writes into nothing), and some way to run it for a whole batch on the device gives the CPU's results, for
the user's own samples and any batching of them. The first proof runs in a process of its own, because a callable that
keeps state changes during it.

What a callable reads besides its input (attributes, globals, tensors) may change while the script runs. The device runs
an independent copy (:mod:`.own_copy`), and a worker records a call only while the original reads the same
(:mod:`.held`).
"""

from .held import Refused, Watched
from .proof import Moved, Shapes, prove
from .reference import Reference, reference_of

__all__ = ["Moved", "Reference", "Refused", "Shapes", "Watched", "prove", "reference_of"]
