"""Find which of a script's loaders trains, and run it under the remedy, without measuring.

With a plan, it is the loader that the plan names; one that evaluates may look the same. Without one, a loader moves
from its first batch on if it is clearly about to train: gradients are enabled, and there is an optimizer whose
parameters belong to modules in training mode. Any other loader moves from its next epoch on once the optimizer has
stepped on its batches. A moved loader is released from its next epoch on if another one proves to train. Nothing is
switched within an epoch: the workers' random numbers would differ from those without the remedy.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, IterableDataset

from ..analysis.remedy import DECODING, HAND_OFF
from ..errors import PipediagError, PlanRefused, RunOver, UsageError
from ..frames import in_one_line
from ..loop.iterators import IteratorHook, NativeIterator
from ..loop.training import EVIDENCE, is_training, training_device
from ..memo.loader import CachedLoader, cache
from ..patches import hooked
from ..remedy.handoff import why_not
from ..remedy.remedied_run import RemediedRun
from ..remedy.saved import SavedPlan
from ..remedy.summary import class_name, why_nothing
from ..usercode.places import caller


class _Cache:
    """What is kept for a loader, and for the loaders that the script makes in its place later."""

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self.said = ""
        self._loader: CachedLoader | None = None

    def __call__(self, loader: DataLoader[Any]) -> CachedLoader:
        self._loader = cache(loader, folder=self._folder)
        return self._loader

    def news(self) -> str:
        """Return what is kept, unless that was said before."""
        plan = "" if self._loader is None else self._loader.plan
        news, self.said = "" if plan == self.said else plan, plan
        return news


class _Seen:
    """A loader of the script, or several that it makes for the same dataset, one after the other."""

    def __init__(self, loader: DataLoader[Any], where: str) -> None:
        self.where = where
        self.stand_in: RemediedRun | None = None
        self.kept: _Cache | None = None
        self.was_tried = False
        self.refused = ""  # why the plan is not for this loader
        self.with_gradients = True
        self.credits = 0
        self.dataset = class_name(loader.dataset)
        self.batch_size = loader.batch_size
        self.is_a_stream = isinstance(loader.dataset, IterableDataset)
        self._dataset = loader.dataset
        self._size = (loader.batch_size, loader.num_workers)
        self._iterator: weakref.ref[Any] | None = None
        self._yielded = 0

    def is_of(self, loader: DataLoader[Any]) -> bool:
        return self._dataset is loader.dataset and self._size == (loader.batch_size, loader.num_workers)

    def iterated_by(self, iterator: Any) -> Any:
        self._iterator, self._yielded = weakref.ref(iterator), 0
        return iterator

    def credit(self) -> None:
        """Credit an optimizer step if a batch of this loader was taken since the previous step."""
        iterator = self._iterator() if self._iterator is not None else None
        yielded = getattr(iterator, "_num_yielded", 0)
        self.credits += yielded not in (0, self._yielded)
        self._yielded = yielded


class Rerouting:
    """Hooks on every loader of the process that give the training loader its remedy.

    Args:
        say: tells the user what happens.
        warn: tells the user what went wrong.
    """

    def __init__(
        self,
        plan: SavedPlan | None,
        say: Callable[[str], None],
        warn: Callable[[str], None],
        approximate: bool,
        cache_dir: str | None,
    ) -> None:
        self._plan = plan
        self._approximate = approximate if plan is None else plan.decodes
        self._caches = cache_dir is not None if plan is None else plan.caches
        self._cache_dir = cache_dir
        self._say, self._warn = say, warn
        self._hook = IteratorHook(self._iterator_for)
        self._seen: list[_Seen] = []
        self._refused: RunOver | None = None

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Hook everything within the context; restore it afterwards."""
        try:
            with hooked(register_optimizer_step_post_hook(self._stepped)), self._hook.installed():
                yield
        except Exception as error:
            if not any(seen.stand_in and seen.stand_in.raised == id(error) for seen in self._seen):
                self._warn_unmeasured()  # the loop failed, not the making of its batches
            raise
        finally:
            for seen in self._seen:
                self._say_news(seen)
            if self._seen and not self._refused and not any(seen.was_tried for seen in self._seen):
                self._say(f"nothing was moved: {self._why_nothing()}")

    def _why_nothing(self) -> str:
        if self._plan is not None:
            return next((seen.refused for seen in self._seen if seen.refused), "the plan's loader was not iterated")
        streams = [seen for seen in self._seen if seen.credits and seen.is_a_stream]
        if streams:
            return f"{streams[0].dataset} is an iterable dataset, whose samples cannot be made apart from it"
        return "no loader trains from its first batch on, or for a second epoch"

    def _warn_unmeasured(self) -> None:
        """Warn that the script may not work with batches on the device: no analysis has tested it."""
        runs = [(seen.where, seen.stand_in) for seen in self._seen if seen.stand_in is not None]
        moved = [where for where, run in runs if run.handed and not run.given_up]
        if self._plan is None and moved:
            self._warn(
                f"the script failed while the loader at {moved[0]} gave it batches on the device; "
                "pipediag analyze --apply tests whether it can use them"
            )

    def _iterator_for(self, loader: DataLoader[Any], native: NativeIterator) -> Any:
        if self._refused is not None:  # the script has caught it
            raise self._refused
        seen = self._record(loader)
        stand_in = self._stand_in(seen, loader, native)
        return seen.iterated_by(native(loader) if stand_in is None else stand_in.iterator())

    def _record(self, loader: DataLoader[Any]) -> _Seen:
        where = caller()
        seen = next((one for one in self._seen if one.is_of(loader)), None)
        if seen is None:
            seen = _Seen(loader, where)
            self._seen.append(seen)
        seen.where = where
        return seen

    def _stand_in(self, seen: _Seen, loader: DataLoader[Any], native: NativeIterator) -> RemediedRun | None:
        others = (other.credits for other in self._seen if other is not seen)
        if seen.stand_in is not None and not self._plan and not seen.credits and max(others, default=0) >= EVIDENCE:
            self._say(f"the loader at {seen.where} does not train: it is left alone")
            seen.stand_in = None
        if seen.kept is not None and not seen.kept.said:  # an epoch has filled it
            self._say_news(seen)
        if seen.stand_in is not None:
            # Without gradients the loop evaluates; that code was not shown to work with batches on the device.
            if seen.stand_in.given_up or seen.with_gradients != torch.is_grad_enabled():
                return None
            seen.stand_in.take_over(loader)
            return seen.stand_in
        device = self._device_for(seen, loader)
        if device is None:
            return None
        seen.with_gradients = torch.is_grad_enabled()
        try:
            seen.stand_in = self._made(seen, loader, device, native)
        except PlanRefused as refused:
            # The loader that evaluates may have the training loader's class of dataset, batch size, and place.
            if seen.with_gradients and not self._follows_the_plan():
                raise self._over(refused) from None
            seen.refused = str(refused)
            if seen.with_gradients:
                self._warn(f"nothing was moved from the loader at {seen.where}: {refused}")
            return None
        seen.was_tried = True
        return seen.stand_in

    def _follows_the_plan(self) -> bool:
        """Return whether a loader trains as the plan says."""
        return any(seen.stand_in is not None and seen.with_gradients for seen in self._seen)

    def _device_for(self, seen: _Seen, loader: DataLoader[Any]) -> torch.device | None:
        """Return the training device if the loader moves now, otherwise None."""
        if seen.was_tried or seen.refused:
            return None
        if self._plan is not None:
            if not torch.is_grad_enabled() and self._follows_the_plan():
                return None  # it evaluates
            named = self._plan.names(class_name(loader.dataset), loader.batch_size, seen.where)
            return (training_device() or torch.device(self._plan.device)) if named else None
        if seen.is_a_stream or not torch.is_grad_enabled():
            return None
        return training_device() if seen.credits >= EVIDENCE or is_training() else None

    def _made(
        self, seen: _Seen, loader: DataLoader[Any], device: torch.device, native: NativeIterator
    ) -> RemediedRun | None:
        """Return what makes the loader's batches under the remedy; None if nothing changes.

        Raises:
            PlanRefused: the plan was made for another loader or device.
        """
        kept = seen.kept = _Cache(self._cache_dir) if self._caches else None
        transforms = self._plan is None or bool(self._plan.moved)
        try:
            if self._plan is not None:
                self._plan.check_device(device.type)
                if not transforms and (kept is None or (device.type == "cuda" and loader.num_workers)):
                    with self._hook.aside():
                        self._plan.check_handoff(why_not(loader, device))
            hook = self._hook.aside
            made = RemediedRun(loader, device, native, hook, self._warn, transforms, self._approximate, kept)
            if self._plan is not None:
                self._plan.check_moved(made.links, made.offloaded.plan.undecoded)
        except PlanRefused:
            raise
        except Exception as error:  # the script can train without the remedy
            why = error if isinstance(error, UsageError) else in_one_line(error)  # such as that torchvision is missing
            self._warn(f"nothing was moved from the loader at {seen.where}: {why}")
            return None
        self._say_moved(seen, made, device, transforms)
        changed = kept is not None or not transforms
        return made if made.offloaded.plan.pieces or changed else None

    def _say_moved(self, seen: _Seen, made: RemediedRun, device: torch.device, transforms: bool) -> None:
        plan = made.offloaded.plan
        if seen.kept is not None:
            self._say(f"what library calls read and decode for the loader at {seen.where} is kept")
        if not plan.pieces:
            if transforms:
                self._say(f"nothing was moved from the loader at {seen.where}: {why_nothing(plan)}")
            elif seen.kept is None:
                self._say(f"the loader at {seen.where} gives its batches on {device} by {HAND_OFF}")
            return
        moved = ", ".join([*([DECODING] if plan.decodes else []), *(name for name, _ in made.links)])
        pays = "" if self._plan else "; whether that pays was not measured (pipediag analyze --apply)"
        proof = made.offloaded.certificate
        pixels = f"; the pixels are {proof.pixels}" if proof is not None else ""
        self._say(f"moved from the loader at {seen.where} to {device}: {moved}{pixels}{pays}")
        if plan.undecoded:
            self._say(f"JPEGs are decoded in the workers: {plan.undecoded}")

    def _say_news(self, seen: _Seen) -> None:
        news = "" if seen.kept is None else seen.kept.news()
        if news:
            self._say(f"the loader at {seen.where}: {news}")

    def _stepped(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for seen in self._seen:
            seen.credit()
        if self._plan is None or any(seen.was_tried for seen in self._seen):
            return
        trains = next((seen for seen in self._seen if seen.credits >= EVIDENCE), None)
        if trains is not None:
            raise self._over(self._plan.refusal(trains.dataset, trains.batch_size, trains.where))

    def _over(self, reason: PipediagError) -> RunOver:
        self._refused = RunOver(reason)
        return self._refused
