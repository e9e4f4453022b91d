"""Take objects of the user's own classes apart, and put them together again, without a call of the user's code.

Only such are opened as Python copies by their attributes and items, which no code of the class's changes. Between
processes they arrive as they do by pickle.
"""

from __future__ import annotations

import abc
import copy
import copyreg
import types
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import torch

from ..frames import is_users
from . import tree
from .attributes import attribute, is_a, is_exactly, unwrapped
from .contents import package, slot_values
from .paths import parts

#: Methods that say how an object is copied, and those that Python's own types have.
_COPYING = ("__reduce_ex__", "__reduce__", "__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__")
_BUILT = (object, dict, list, tuple)
#: Containers of Python's own whose parts can be replaced.
FILLED = (list, dict, OrderedDict, defaultdict)


class Content(NamedTuple):
    """What an object consists of."""

    cls: type
    items: Any  # of a dict, a list or a tuple; else None
    attributes: dict[str, Any]  # by name
    slots: dict[str, Any]  # the same of those that lie in slots

    @property
    def parts(self) -> list[Any]:
        """All that it holds, containers as they are."""
        return [*([] if self.items is None else [self.items]), *self.attributes.values(), *self.slots.values()]

    def changed(self, change: Callable[[Any], Any]) -> Content:
        """Return the content with each part replaced by what ``change`` gives for it."""
        items = None if self.items is None else change(self.items)
        attributes, slots = ({name: change(one) for name, one in of.items()} for of in (self.attributes, self.slots))
        return Content(self.cls, items, attributes, slots)

    def together(self) -> Any:
        """Return a new object of this content."""
        base = _base_of(self.cls)
        assert base is not None
        made = tuple.__new__(self.cls, self.items) if base is tuple else base.__new__(self.cls)
        return self._give(made)

    def into(self, obj: Any) -> Any:
        """Return the object with this content in place of its own; of a tuple, a new one."""
        return self.together() if is_a(obj, tuple) else self._give(obj)

    def _give(self, obj: Any) -> Any:
        if is_a(obj, list):
            list.__setitem__(obj, slice(None), self.items)
        elif is_a(obj, dict):
            dict.update(obj, self.items)
        if self.attributes:
            object.__getattribute__(obj, "__dict__").update(self.attributes)
        for name, value in self.slots.items():
            object.__setattr__(obj, name, value)
        return obj


def taken_apart(obj: Any) -> Content | None:
    """Return what an object consists of.

    None if its class is not written in Python, if it is a class, a module or an exception, or :func:`why_whole`.
    """
    cls = type(obj)
    if not is_a(cls, type) or not cls.__flags__ & _HEAP or package(cls) in _OTHERS:
        return None
    if is_a(obj, (type, types.ModuleType, BaseException)) or why_whole(obj):
        return None
    base, held = _base_of(cls), attribute(obj, "__dict__", {})
    items = None if base in (object, None) else base(base.__iter__(obj) if base is not dict else dict.items(obj))
    return Content(cls, items, dict(held) if type(held) is dict else {}, slot_values(obj))


#: Packages whose objects are none of the user's: tensors, and what stands for such.
_OTHERS = frozenset({"torch", __name__.partition(".")[0]})
#: Flag of classes that a program makes.
_HEAP = 1 << 9


def why_whole(obj: Any) -> str:
    """Return why an object is not taken apart, as the end of a sentence; "" if it is."""
    cls: Any = type(obj)
    own = next((name for name in _COPYING if not _is_pythons(cls, name)), "")
    if own:
        return f"which is copied by its own {own}()"
    if cls in copyreg.dispatch_table or cls in ForkingPickler._extra_reducers:  # type: ignore[attr-defined]
        return "for which a function was registered that copies it"
    if _base_of(cls) is None or not is_exactly(cls, type, abc.ABCMeta):
        return "which is no plain object, dict, list or tuple"
    if not _is_pythons(cls, "__getattribute__"):
        return "whose attributes are read by its own __getattribute__()"
    if slot_values(obj) and not _is_pythons(cls, "__setattr__"):
        return "whose attributes are set by its own __setattr__()"
    setting = {dict: ("__setitem__",), list: ("extend", "append")}.get(_base_of(cls), ())
    if any(getattr(cls, name) is not getattr(_base_of(cls), name) for name in setting):
        return "whose items are set by its own methods"
    return ""


def _base_of(cls: Any) -> Any:
    """Return the only type of Python's own that a class derives from, whose ``__new__`` makes its objects, or None."""
    built = [one for one in cls.__mro__ if not one.__flags__ & _HEAP]
    base = built[0] if built[1:] in ([], [object]) and built[0] in _BUILT else None
    named = base is tuple and cls.__bases__ == (tuple,) and hasattr(cls, "_fields")
    return base if base is not None and (cls.__new__ is base.__new__ or named) else None


def _is_pythons(cls: type, name: str) -> bool:
    """Return whether a class has no method of this name, or one of Python's own, of a dataclass or of attrs."""
    method = getattr(cls, name, None)
    if method is None or any(method is getattr(one, name, None) for one in _BUILT):
        return True
    code = attribute(unwrapped(method), "__code__")
    written = any(hasattr(cls, fields) for fields in ("__dataclass_fields__", "__attrs_attrs__", "_fields"))
    return written and is_a(code, types.CodeType) and not is_users(code.co_filename)


def holds_twice(obj: Any) -> bool:
    """Return whether a list or dict that can be changed is in two places of a structure."""
    seen: set[int] = set()
    pending = [obj]
    while pending:
        one = pending.pop()
        if is_exactly(one, list, dict, set) and id(one) in seen:
            return True
        seen.add(id(one))
        pending += one.values() if is_exactly(one, dict) else one if is_exactly(one, list, tuple) else ()
    return False


def refers_back(obj: Any) -> bool:
    """Return whether an object of the user's may hold a reference to itself: it does, or a part of it moves itself."""
    return any(
        tree.moves_itself(leaf) or is_a(leaf, weakref.ReferenceType) or taken_apart(leaf) is not None
        for leaf in leaves(obj)
    )


def leaves(obj: Any, inside: frozenset[int] = frozenset()) -> Iterator[Any]:
    """Yield the leaves of a structure in order, also of the user's objects; those ``inside`` are around it."""
    if id(obj) in inside:
        yield obj
        return
    content, around = taken_apart(obj), inside | {id(obj)}
    if content is not None:
        held = content.parts
    elif is_exactly(obj, tuple, *FILLED):
        held = [part for _, part in parts(obj)]
    else:
        held = [*tree.leaves(obj)]
    for part in held:
        if part is obj:
            yield obj
        else:
            yield from leaves(part, around)


def replaced(obj: Any, change: Callable[[Any], Any]) -> Any:
    """Return a structure with what ``change`` gives for each leaf. Lists, dicts and the user's objects stay, and get
    new contents, once all leaves are changed."""
    known = {id(leaf): (leaf, change(leaf)) for leaf in leaves(obj)}
    give = lambda way, content, obj: content.changed(way.part).into(obj)  # noqa: E731
    return _Changing(lambda leaf: known[id(leaf)][1], give, in_place=True).part(obj)


def moved(batch: Any, device: torch.device, *, non_blocking: bool = False) -> Any:
    """Return the batch on ``device``: itself if it is there, else with new objects in place of the user's.

    Those that cannot be taken apart are moved by their own ``to``.
    """
    held = (leaf for leaf in leaves(batch) if is_a(leaf, torch.Tensor) or tree.moves_itself(leaf))
    if all(is_a(leaf, torch.Tensor) and leaf.device.type == device.type for leaf in held):
        return batch
    change = partial(tree.move, device=device, non_blocking=non_blocking)

    def give(way: _Changing, content: Content, obj: Any) -> Any:
        return change(obj) if refers_back(obj) else content.changed(way.part).together()

    return _Changing(change, give).part(batch)


class _Changing:
    """Changes the leaves of a structure, each once, and makes or fills the user's objects by ``give``."""

    def __init__(
        self, change: Callable[[Any], Any], give: Callable[[_Changing, Content, Any], Any], in_place: bool = False
    ) -> None:
        self._change = change
        self._give = give
        self._in_place = in_place
        self._known: dict[int, tuple[Any, Any]] = {}  # by id, with the leaf or object

    def part(self, obj: Any) -> Any:
        if id(obj) in self._known:
            return self._known[id(obj)][1]
        content = taken_apart(obj)
        if content is not None:
            self._known[id(obj)] = obj, obj  # for what refers to it inside of it
            made = self._give(self, content, obj)
        elif is_exactly(obj, tuple):
            return tuple(map(self.part, obj))
        elif is_exactly(obj, *FILLED):
            made = obj if self._in_place else copy.copy(obj)
            self._known[id(obj)] = obj, made
            for step, one in parts(obj):
                made[step] = self.part(one)
        else:
            made = tree.map_leaves(obj, lambda leaf: self._change(leaf) if leaf is obj else self.part(leaf))
        self._known[id(obj)] = obj, made
        return made
