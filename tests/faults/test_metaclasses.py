"""Classes of the user's whose own class raises, or answers oddly, where types are compared, hashed or asked for."""

from __future__ import annotations

import pytest

from .carried_out import carry_out
from .fault import COMPLETE, NOTHING, Fault, trained
from .leaks import Leaks

_PARTS = ("Scale", "Order", "Model", "Loader", "Sample")
#: Protocols, and the classes whose class has them besides _PARTS. Torch itself asks for the hash of a dataset's class
#: and of a batch's, and compares a dataset's.
_PROTOCOLS = {
    "__hash__": (),
    "__eq__": ("Batch",),
    "odd __eq__": ("Batch",),
    **dict.fromkeys(
        ("odd __bool__", "__instancecheck__", "odd __instancecheck__", "__subclasscheck__", "__len__", "__dir__"),
        ("Batch", "Images"),
    ),
}
_COMMANDS = {"analyze": (COMPLETE, ""), "analyze --apply": (COMPLETE, ""), "run": (NOTHING, "trained to its end")}


@pytest.mark.slow
@pytest.mark.parametrize("protocol", _PROTOCOLS)
@pytest.mark.parametrize("command", _COMMANDS)
def test_a_class_with_an_odd_class_is_measured(leaks: Leaks, command: str, protocol: str) -> None:
    keeps, says = _COMMANDS[command]
    odd = f"--odd={','.join((*_PARTS, *_PROTOCOLS[protocol]))}:meta.{protocol}"
    more = ("--steps=40",) if command == "run" else ()
    options = ("--apply-budget", "10") if command == "analyze --apply" else ()
    argv = trained(command, odd, *more, options=options)
    carry_out(Fault(f"metaclass {protocol}", command, "training", argv, 0, says, keeps), leaks)
