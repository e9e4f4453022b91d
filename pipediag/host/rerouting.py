"""Find which of a script's loaders trains, and run it under the remedy, without measuring.

Each live loader has a run of its own. What is known of a loader that the script makes again, for every epoch perhaps,
is kept by its place (:class:`pipediag.loop.training.Places`). Nothing of the script's is kept alive.

With a plan, the training loader is the one in the place that the plan names. Without one, a loader moves from its first
batch on if it is clearly about to train: gradients are enabled, and there is an optimizer whose parameters belong to
modules in training mode. Any other loader moves from its next epoch on once the optimizer has stepped on its batches.
On a CPU none moves without a plan. A moved loader is released from its next epoch on if another one proves to train.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader

from ..analysis.trials.remedy import HAND_OFF
from ..errors import PipediagError, PlanRefused, RunOver, UsageError
from ..frames import in_one_line
from ..loop.iterators import IteratorHook, NativeIterator
from ..loop.training import EVIDENCE, Place, Places, is_training, training_device
from ..memo.loader import cache, told
from ..memo.memo import Memo
from ..patches import hooked
from ..remedy.finding import Known
from ..remedy.handoff import why_not
from ..remedy.remedied_run import Course, RemediedRun
from ..remedy.saved_plan import SavedPlan, why_not_moved
from ..remedy.summary import check, class_name, plan_from, why_nothing
from ..session.remedies import DECODING
from ..usercode.attributes import HeldByObject
from ..usercode.places import caller


class _Site:
    """One loader of the script, or several that it makes in the same place, one after the other."""

    def __init__(self, place: Place, where: str) -> None:
        self.place, self.where = place, where  # ``where`` is its line as it is told to the user
        self.known = Known()
        self.memo: Memo | None = None  # what is kept for its loaders
        self.kept = ""  # as it was told last
        self.course: Course | None = None  # how their runs went; None before the first one
        self.tried = False  # True once a loader was put under the remedy, even if nothing moved
        self.refused = ""  # why the plan is not for the latest loader
        self.with_gradients = True  # whether gradients were enabled when the first run began
        self.credits = 0  # number of optimizer steps on their batches
        self.dataset, self.batch_size = "", 0  # of the latest loader
        self._said: set[str] = set()
        self._iterator: weakref.ref[Any] | None = None
        self._yielded = 0

    @property
    def was_told(self) -> bool:
        """Whether the user knows what came of the remedy: if it is found from batches, there may have been too few."""
        return self.tried and bool(self._said or (self.course and self.course.given_up))

    def once(self, say: Callable[[str], None], text: str) -> None:
        """Say this once: a rebuilt loader is not announced again."""
        if text not in self._said:
            self._said.add(text)
            say(text)

    def iterated_by(self, iterator: Any) -> Any:
        with suppress(TypeError):  # one of the script's own, of a class without weak references
            self._iterator = None
            self._iterator = weakref.ref(iterator)
        self._yielded = 0
        return iterator

    def credit(self) -> None:
        """Credit an optimizer step if a batch was taken since the previous step."""
        iterator = self._iterator() if self._iterator is not None else None
        yielded = getattr(iterator, "_num_yielded", 0)
        self.credits += yielded not in (0, self._yielded)
        self._yielded = yielded


class Rerouting:
    """Hooks on every loader of the process that give the training loader its remedy.

    ``say`` tells the user what happens, ``warn`` what went wrong.
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
        self.hook = IteratorHook(self._iterator_for)
        self._places = Places()
        self._sites: dict[Place, _Site] = {}
        self._runs = HeldByObject[RemediedRun | None]()  # None: tried, and left alone
        self._not_moved = ""  # why nothing may move to the training device
        self._refused: RunOver | None = None

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Hook everything within the context; restore it afterwards."""
        failed = False
        try:
            with hooked(register_optimizer_step_post_hook(self._stepped)), self.hook.installed():
                yield
        except Exception as error:
            failed = True
            if not any(site.course and site.course.raised == id(error) for site in self._sites.values()):
                self._warn_unmeasured()  # the loop failed, not the making of its batches
            raise
        finally:
            self._runs.clear()
            for site in self._sites.values():
                self._say_news(site)
            told = failed or self._refused or any(site.was_told for site in self._sites.values())
            if self._sites and not told:
                self._say(f"nothing was moved: {self._why_nothing()}")

    def _why_nothing(self) -> str:
        sites = self._sites.values()
        if any(site.tried for site in sites):
            return "the script took no batch that could be compared"
        if self._plan is not None:
            return next((site.refused for site in sites if site.refused), "the plan's loader was not iterated")
        if self._not_moved:
            return self._not_moved
        return "no loader trains from its first batch on, or for a second epoch"

    def _warn_unmeasured(self) -> None:
        """Warn that the script may not work with batches on the device: no analysis has tested it."""
        courses = [(site.where, site.course) for site in self._sites.values() if site.course is not None]
        moved = [where for where, course in courses if course.handed and not course.given_up]
        if self._plan is None and moved:
            self._warn(
                f"the script failed while the loader at {moved[0]} gave it batches on the device; "
                "pipediag analyze --apply tests whether it can use them"
            )

    def _iterator_for(self, loader: DataLoader[Any], native: NativeIterator) -> Any:
        if self._refused is not None:  # the script has caught it
            raise self._refused
        place = self._places.of(loader, caller())
        site = self._site(place)
        site.dataset, site.batch_size = class_name(loader.dataset), loader.batch_size
        try:
            run = self._run(site, loader, native)
        except Exception as error:  # the script can train without the remedy
            self._warn(f"nothing was moved from the loader at {site.where}: {in_one_line(error)}")
            run = None
        return site.iterated_by(native(loader) if run is None else run.iterator(loader))

    def _site(self, place: Place) -> _Site:
        """Return the site of a place; one line may make or iterate several loaders, which are numbered."""
        if place not in self._sites:
            earlier = sum(other.where == place.where for other in self._sites)
            self._sites[place] = _Site(place, f"{place.where} (number {earlier + 1})" if earlier else place.where)
        return self._sites[place]

    def _run(self, site: _Site, loader: DataLoader[Any], native: NativeIterator) -> RemediedRun | None:
        """Return the loader's run under the remedy; None if it has none."""
        others = (other.credits for other in self._sites.values() if other is not site)
        leads = max(others, default=0) >= EVIDENCE
        if self._runs.get(loader) is not None and not self._plan and not site.credits and leads:
            self._say(f"the loader at {site.where} does not train: it is left alone")
            self._runs.set(loader, None)
        if not site.kept:  # an epoch has filled it
            self._say_news(site)
        if loader in self._runs:
            return self._runs.get(loader)
        device = self._device_for(site, loader)
        if device is None:
            return None
        with_gradients = torch.is_grad_enabled()
        try:
            run = self._made(site, loader, device, native)
        except PlanRefused as refused:
            # The loader that evaluates may have the training loader's class of dataset, batch size, and place.
            if with_gradients and not self._follows_the_plan():
                raise self._over(refused) from None
            site.refused = str(refused)
            if with_gradients:
                site.once(self._warn, f"nothing was moved from the loader at {site.where}: {refused}")
            self._runs.set(loader, None)
            return None
        if not site.tried:
            site.with_gradients = with_gradients
        site.tried = True
        self._runs.set(loader, run)
        return run

    def _follows_the_plan(self) -> bool:
        """Return whether a loader trains as the plan says."""
        return any(site.course is not None and site.with_gradients for site in self._sites.values())

    def _device_for(self, site: _Site, loader: DataLoader[Any]) -> torch.device | None:
        """Return the training device if the loader moves now, otherwise None."""
        if site.tried and site.with_gradients != torch.is_grad_enabled():
            return None
        if site.course is not None and site.course.given_up:
            return None
        if self._plan is not None:
            if not torch.is_grad_enabled() and self._follows_the_plan():
                return None  # it evaluates
            named = self._plan.names(site.dataset, site.batch_size, *site.place)
            return (training_device() or torch.device(self._plan.device)) if named else None
        if not torch.is_grad_enabled():
            return None
        device = training_device() if site.tried or site.credits >= EVIDENCE or is_training() else None
        self._not_moved = why_not_moved(device.type) if device is not None else self._not_moved
        return None if self._not_moved and not self._caches else device

    def _made(
        self, site: _Site, loader: DataLoader[Any], device: torch.device, native: NativeIterator
    ) -> RemediedRun | None:
        """Return what makes the loader's batches under the remedy; None if nothing changes.

        Raises:
            PlanRefused: the plan was made for another loader or device.
        """

        def cached(loader: DataLoader[Any]) -> DataLoader[Any]:
            made = cache(loader, folder=self._cache_dir)
            site.memo = made.memo
            return made

        transforms = not self._not_moved if self._plan is None else bool(self._plan.moved or self._plan.calls)
        course = site.course or Course()
        try:
            if self._plan is not None:
                self._plan.check_device(device.type)
                if not transforms and (not self._caches or (device.type == "cuda" and loader.num_workers)):
                    with self.hook.aside():
                        self._plan.check_handoff(why_not(loader, device))
            made = RemediedRun(
                loader,
                device,
                native,
                self.hook.aside,
                self._warn,
                transforms,
                self._approximate,
                cached if self._caches else None,
                site.known,
                None if self._plan is None else plan_from(self._plan, loader.dataset, device),
                self._plan is None,
                lambda run: self._say_moved(site, run, device, transforms),
                course,
            )
            if self._plan is not None:
                check(self._plan, made.offloaded)
        except PlanRefused:
            raise
        except Exception as error:  # the script can train without the remedy
            why = error if isinstance(error, UsageError) else in_one_line(error)
            site.once(self._warn, f"nothing was moved from the loader at {site.where}: {why}")
            return None
        self._say_moved(site, made, device, transforms)
        if transforms and not self._caches and not made.offloaded.plan.moves and not made.offloaded.finds:
            return None
        site.course = course
        return made

    def _say_moved(self, site: _Site, made: RemediedRun, device: torch.device, transforms: bool) -> None:
        plan, proof = made.offloaded.plan, made.offloaded.certificate
        say = partial(site.once, self._say)
        if self._caches:
            say(f"what library calls read and decode for the loader at {site.where} is kept")
        if made.offloaded.finds:
            return
        if not plan.moves:
            if transforms:
                say(f"nothing was moved from the loader at {site.where}: {why_nothing(plan)}")
            elif not self._caches:
                say(f"the loader at {site.where} gives its batches on {device} by {HAND_OFF}")
            elif self._not_moved:
                say(f"nothing else was moved: {self._not_moved}")
            return
        moved = ", ".join(dict.fromkeys([*([DECODING] if plan.decodes else []), *(name for name, _ in made.links)]))
        if proof is None:
            say(f"{moved} of the loader at {site.where} will move once its first batches are compared")
            return
        pays = "" if self._plan else "; whether that pays was not measured (pipediag analyze --apply)"
        say(f"moved from the loader at {site.where} to {device}: {moved}; the pixels are {proof.pixels}{pays}")
        if plan.undecoded:
            say(f"JPEGs are decoded in the workers: {plan.undecoded}")

    def _say_news(self, site: _Site) -> None:
        """Say what is kept, unless that was said before."""
        before, site.kept = site.kept, "" if site.memo is None else told(site.memo)
        if site.kept not in ("", before):
            self._say(f"the loader at {site.where}: {site.kept}")

    def _stepped(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for site in self._sites.values():
            site.credit()
        if self._plan is None or any(site.tried for site in self._sites.values()):
            return
        others = (site for site in self._sites.values() if not self._plan.may_follow(*site.place))
        trains = next((site for site in others if site.credits >= EVIDENCE), None)
        if trains is not None:
            raise self._over(self._plan.refusal(trains.dataset, trains.batch_size, *trains.place))

    def _over(self, reason: PipediagError) -> RunOver:
        self._refused = RunOver(reason)
        return self._refused
