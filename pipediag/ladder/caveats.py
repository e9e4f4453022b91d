"""Define warnings about the loop that its measurement may add to the session."""

from __future__ import annotations

WRITES_IN_PLACE = {
    "code": "writes-in-place",
    "message": "the training loop changes its batches in place",
    "help": "cached rungs hand out copies of their batches, and their times include the copying",
}
OTHER_LOADERS = {
    "code": "other-loaders",
    "message": "other loaders are iterated between the training steps; their time is part of every window",
    "help": "analyse a run without validation inside the epoch for cleaner shares",
}
NOT_ALL_JOINED = {
    "code": "ranks-missing",
    "message": "not every rank of the job takes part in the measurement: the others train unchanged",
    "help": "start all ranks through pipediag, and let each of them iterate its training loader in the same way",
}
