"""Run a transform of the dataset on recording images.

The links of the chain that must stay in the worker run with pixels. Recording images replace their result, and the
other links, still the user's own objects, draw their parameters on those.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import PIL.Image
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torchvision import tv_tensors

from ...usercode.attributes import has_attribute, is_exactly
from ...usercode.links import Link, chains_in, is_called_plainly, links_of, run
from ...usercode.objects import FILLED
from ...usercode.paths import parts as parts_of
from ...usercode.paths import rebuilt
from ..ops.op import NotRecordable
from .drawing import Draw, code_of, direct, functionals
from .session import session, why_not_now
from .substitutes import is_recording, stand_in


class Recorder:
    """What a transform's stand-in calls: it records the transform's links from index ``start`` on.

    In a thread that records nothing it calls the transform itself: user code may keep the stand-in.
    """

    def __init__(self, transform: Any, start: int) -> None:
        self.transform = transform
        self.links = links_of(transform)
        self._chains = [(parts, list(parts())) for parts in chains_in(transform)]
        self._is_plain_chain = all(link is not transform for link in self.links) and is_called_plainly(transform)
        self.start = start
        self._draws: list[Draw] = []
        self._code: Any = None  # the code that the draws were made for
        self._checked: Any = None  # the recording in which that code was last checked, and which links had no hook

    def _is_current(self) -> bool:
        """Return whether the chains still hold the links, and the whole has no hook that it had not: the dataset may
        change both from sample to sample."""
        for parts, kept in self._chains:
            now = parts()
            if len(now) != len(kept) or not all(map(operator.is_, now, kept)):
                return False
        return not self._is_plain_chain or is_called_plainly(self.transform)

    def stands_for(self, transform: Any) -> bool:
        """Return whether it was made for ``transform`` in its current form."""
        links = links_of(transform)
        return len(links) == len(self.links) and all(map(operator.is_, links, self.links))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not session.active or why_not_now():
            return self.transform(*args, **kwargs)
        if not self._is_current():
            return self.transform(*args, **kwargs)
        one = args[0] if len(args) == 1 and not kwargs else None
        if is_recording(one) or (not isinstance(one, (Tensor, PIL.Image.Image)) and holds_recording((args, kwargs))):
            return self.transform(*args, **kwargs)  # called inside another recorded transform
        with session.beginning_nowhere():
            given = args if kwargs else run(self.links[: self.start], args)
        return self.recorded(given, kwargs)

    def recorded(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record the links from ``start`` on. An image that they leave as it is stays the user's own object."""
        made = self.from_start(args, kwargs)
        as_given((args, kwargs))
        return as_given(made)

    def from_start(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record the links from ``start`` on, which get these arguments."""
        if kwargs:  # this transform is no chain, which takes no keyword arguments
            args, kwargs = stood_in((args, kwargs))
            session.site = 0
            return self.transform(*args, **kwargs)
        if len(args) == 1:
            return self._of_one(args[0])
        args = stood_in(args)
        for site in range(self.start, len(self.links)):
            session.site = site
            args = run((self.links[site],), args)
        return args

    def _of_one(self, value: Any) -> Any:
        """Record the links on one image or one sample."""
        image = stand_in(value)
        if image is None:
            (image,) = stood_in((value,))
        if not is_recording(image):
            return self._through(self.links, image)
        image.tape.open = True
        return self.of_image(image)

    def of_image(self, image: Any) -> Any:
        """Run the links from ``start`` on with a recording image."""
        made = self._through(self._up_to_date(), image)
        if is_recording(made):
            made.tape.open = False
        return made

    def _through(self, links: Sequence[Link], value: Any) -> Any:
        for site in range(self.start, len(links)):
            session.site = site
            value = links[site](value)
        return value

    def _up_to_date(self) -> list[Draw]:
        """Return the functions to call for the links, rebuilt if code has changed since the last recording."""
        checked = session.number, [*map(is_called_plainly, self.links)]
        if self._checked != checked:
            self._checked = checked
            code = (*functionals(), *map(code_of, self.links))
            if code != self._code:
                self._code = code
                self._draws = [*map(direct, self.links)]
        return self._draws


@contextmanager
def unhidden() -> Iterator[None]:
    """Raise at the end of the context if user code inside it has caught a :class:`NotRecordable`.

    Raises:
        NotRecordable: it has.
    """
    before = NotRecordable.raised
    yield
    if NotRecordable.raised != before:
        raise NotRecordable("its own code hides that it needs pixels")


def stood_in(value: Any) -> Any:
    """Return the value with recording images in place of the parts that torchvision takes for images and masks.

    These are every Pillow image, ``Image`` and ``Mask``, and the first plain tensor if there is no Pillow image,
    ``Image`` or ``Video``: the rule of ``torchvision.transforms.v2.Transform``.
    """
    parts = tree_leaves(value)
    explicit = any(isinstance(part, (PIL.Image.Image, tv_tensors.Image, tv_tensors.Video)) for part in parts)
    images: dict[int, Any] = {}
    for part in parts:
        if isinstance(part, Tensor) and not isinstance(part, tv_tensors.TVTensor):
            if explicit:
                continue
            explicit = True
        image = None if id(part) in images else stand_in(part)
        if image is not None:
            images[id(part)] = image
    return _with(value, lambda part: images.get(id(part), part)) if images else value


def as_given(value: Any) -> Any:
    """Return the value with the user's images in place of those that stand for them and that no call has changed."""
    return _with(value, _given)


def _given(part: Any) -> Any:
    unchanged = is_recording(part) and part.tape.is_original and part.tape.given is not None
    return part.tape.given if unchanged else part


def _with(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return the value with what ``change`` gives for each part. Lists and dicts stay: code may look into its own."""
    if is_exactly(value, *FILLED):
        for step, part in parts_of(value):
            changed = _with(part, change)
            if changed is not part:
                value[step] = changed
        return value
    if not (is_exactly(value, tuple) or (isinstance(value, tuple) and has_attribute(value, "_fields"))):
        return change(value)
    changes = {step: changed for step, part in parts_of(value) if (changed := _with(part, change)) is not part}
    return rebuilt(value, changes) if changes else value


def holds_recording(value: Any) -> bool:
    return any(is_recording(part) for part in tree_leaves(value))
