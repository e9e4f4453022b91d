"""What the catalogue consists of: public scripts, the edits that let them run here, and those that advice asks for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..recipes.catalogue import Recipe


@dataclass(frozen=True)
class Patch:
    """Replace ``old`` by ``new`` in a file of the copied sources; with an empty ``old``, append ``new``.

    ``times`` is how often ``old`` occurs; 0 for any number above none.
    """

    file: str
    old: str
    new: str
    times: int = 1


@dataclass(frozen=True)
class Edit:
    """What a piece of advice asks for: changes of the script's sources, its arguments, or its loaders' arguments.

    ``advice`` is a regular expression that is searched in ``ID: TITLE`` of the recommendation. ``{0}`` in a patch or an
    argument stands for its first group. If ``whole``, the gain shows between epochs, and whole epochs are timed.
    """

    advice: str
    patches: tuple[Patch, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    loader: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    whole: bool = False

    def fitted(self, advice: str) -> Edit | None:
        """Return the edit for this piece of advice, or None if it is about another one."""
        found = re.search(self.advice, advice)
        if found is None:
            return None
        groups = found.groups()

        def filled(text: str) -> str:
            for number, value in enumerate(groups):
                text = text.replace(f"{{{number}}}", value)
            return text

        patches = tuple(Patch(p.file, p.old, filled(p.new), p.times) for p in self.patches)
        options = {name: filled(value) for name, value in self.options.items()}
        loader = {name: filled(value) for name, value in self.loader.items()}
        return Edit(self.advice, patches, options, loader, self.note, self.whole)

    @property
    def said(self) -> str:
        """The edit in one line."""
        changed = [f"{name}={value}" for name, value in {**self.loader, **self.options}.items()]
        return self.note or ", ".join([*changed, *(patch.new.strip() for patch in self.patches)])


#: Edits for every script: the arguments of its loaders.
COMMON = (
    Edit(r"num_workers=(\d+)", loader={"num_workers": "{0}"}),
    Edit(r"prefetch_factor=(\d+)", loader={"prefetch_factor": "{0}"}),
    Edit("persistent_workers", loader={"persistent_workers": "1"}, whole=True),
)


@dataclass(frozen=True)
class Script(Recipe):
    """A public training script.

    Attributes:
        kind: what it trains on, in two or three words.
        patches: the port: what does not run with today's libraries, without a GPU, or offline, and the small model.
        small: what of the model was made smaller, or replaced by one of :mod:`.small_models`.
        edits: how pieces of advice are applied natively.
    """

    kind: str = ""
    patches: tuple[Patch, ...] = ()
    small: str = ""
    edits: tuple[Edit, ...] = ()
