"""Measure a script in one process: hook its loaders, climb the ladder on the one that trains, remove the hooks."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader

from ..clock import Clock, SystemClock
from ..errors import AnalysisOver, SessionFileError, analysis_over
from ..frames import in_one_line
from ..loop.iterables import Batches
from ..loop.iterators import IteratorHook, NativeIterator, is_iterated_by_script
from ..loop.training import EVIDENCE, Place, Places, Training
from ..measure.device import Device, default_device
from ..measure.schedule import Plan, Schedule
from ..patches import hooked
from ..session import NOT_YET, Session
from ..session.codec import dumps, loads
from ..session.events import EDITED, KEPT_BATCHES, UNMEASURABLE, LoaderUse, Story
from ..session.remedies import listed
from ..usercode import randomness
from ..usercode.places import caller
from .caches import WRITES_IN_PLACE
from .climb import Climb
from .driven import Driven
from .feed import Feed
from .loader_iterator import LoaderIterator, Track, raised_by_signal
from .loop_side import Loop
from .other_loaders import OtherLoaders
from .probes.inspection import threads
from .ranks.follow import Following
from .ranks.joining import Joining, place_in_job, rank_facts
from .ranks.lockstep import STRANGE_MESSAGE, Follower, Leader
from .single_steps import Observer, StepRecorder

Send = Callable[[str, dict[str, Any]], None]

#: Share of the budget after which a script without any optimizer step is treated as an inference loop.
_INFERENCE_AFTER = 0.5
#: Training steps after which loaders that are drawn from in the same steps are compared.
_COMPARED = 6
#: Factor up to which two loaders count as equally slow.
_ALIKE = 1.25
#: Optimizer steps without any batch after which a loop is taken to train on batches that it has kept.
_KEPT = 100
_KEEPS_BATCHES = {
    "code": KEPT_BATCHES,
    "message": f"after the loader's epoch the script made {_KEPT} optimizer steps without any new batch, as with "
    "itertools.cycle(loader), which keeps the batches of the first epoch: the figures are those of that epoch",
    "help": "for new batches in every epoch, iterate the loader again: while True: for batch in loader: ...",
}
#: Maximum number of settings that a warning names.
_NAMED = 3
#: Number of calls that raise the stop again before a script that ignores it is exited.
_DEAF = 200


class Measurement:
    """The measurement of one process: hooks every DataLoader and measures the one that trains, as ``plan`` asks.

    ``choose`` and ``choose_trial`` return the rungs that need another window, for the ladder and for the trial of a
    remedy. ``send`` receives events as they happen (see :meth:`pipediag.session.Session.apply`); they are applied to
    ``session`` first, so that a schedule begun in an earlier pass continues.

    With ``gathers``, rank 0 of a distributed job gets the sessions of the other ranks at the end, in ``ranks``.
    """

    def __init__(
        self,
        plan: Plan,
        session: Session,
        send: Send,
        choose: Callable[[Session], list[str]],
        clock: Clock | None = None,
        choose_trial: Callable[[Session], list[str]] | None = None,
        gathers: bool = False,
    ) -> None:
        self.plan = plan
        self.session = session
        self.ranks: dict[int, Session] = {}
        self.training = Training()
        self.schedule = Schedule(plan.rungs, session, choose)
        self.clock = clock or SystemClock()
        self._choose_trial = choose_trial
        self._gathers = gathers
        self.hook = IteratorHook(self.iterator_for)
        self.aside = self.hook.aside
        self.over = ""  # why the script is to end; empty if it goes on
        self.gave_up = False  # True if it goes on unmeasured, because measuring failed
        self._send = send
        self._joining = Joining(self.clock, lambda: send("cut", {}))
        self._tracks: list[Track] = []
        self._places = Places()
        self._target: Track | None = None
        known = session.loader if session.loader is not None and session.loader.iterated else None
        fits = known is not None and known.plain_iterable == plan.own_loops
        #: Where an earlier pass has measured its loader. With another one, a pass would add windows of another loop.
        self._chosen = Place(known.iterated, known.order) if known is not None and fits else None
        self._ambiguous = False  # whether a loader like the target trains beside it
        self._first_draw: float | None = None
        self._ignored = 0
        self.others = OtherLoaders(self.clock, plan.attempt, lambda start: self.send("other-start", asdict(start)))
        self._iterators: weakref.WeakSet[LoaderIterator] = weakref.WeakSet()
        self._drawing = threading.local()  # in each thread, the loaders in whose ``next()`` it is

    @contextmanager
    def installed(self) -> Iterator[Measurement]:
        """Hook everything within the context; restore it afterwards, workers included."""
        with ExitStack() as stack:
            stack.enter_context(self.training.watching())
            stack.enter_context(hooked(register_optimizer_step_post_hook(self._stepped)))
            if self.plan.inference:
                stack.enter_context(self.training.watching_models())
            try:
                with self.hook.installed():
                    yield self
            finally:
                self.close()
                for iterator in self._iterators:
                    iterator.release()

    def close(self) -> None:
        """End the climb's window and workers. Safe to call twice."""
        if self._target is not None and self._target.climb is not None:
            self._target.climb.close()
            self._target.climb.feed.close()
        self._joining.close()

    # Called by the hook

    def iterator_for(self, loader: DataLoader[Any], native: NativeIterator) -> Any:
        self.check()
        if self.gave_up or is_iterated_by_script(loader):
            return native(loader)
        own, kept = loader.generator, randomness.state()
        drawn = None if own is None else own.get_state()
        try:
            track = self._track(loader)
            track.look_at_dataset()
            if track.climb is not None:
                track.climb.begin_epoch(loader)
            iterator = LoaderIterator(loader, track, self, native)
        except AnalysisOver:
            raise
        except Exception as error:
            if raised_by_signal(error):
                raise
            randomness.restore(kept)
            if own is not None:
                own.set_state(drawn)
            plain = native(loader)  # fails in the same way if the script is to blame
            self.give_up(error)
            return plain
        self._iterators.add(iterator)
        return iterator

    def give_up(self, error: Exception) -> None:
        """Let the script train on unmeasured, because of an error that is not its own; it ends with the budget."""
        self.gave_up = True
        self._first_draw = self.clock.now() if self._first_draw is None else self._first_draw
        scarce = isinstance(error, (OSError, MemoryError))
        help = "let it run without that limit" if scarce else "report this: it is a fault of pipediag's"
        what = "nothing more" if self.session.windows else "nothing"
        why = f"{what} was measured: measuring failed ({in_one_line(error)}), so your script trained on"
        for tell in (self._send, self.session.apply):
            with suppress(Exception):  # it may fail as measuring did
                tell("warning", {"code": UNMEASURABLE, "message": why, "help": help})
        for climb in {track.climb for track in self._tracks if track.climb is not None}:
            with suppress(Exception):  # it has failed already
                climb.abandon()
        for track in self._tracks:
            track.climb = None
        lockstep = self._joining.found
        if isinstance(lockstep, Leader):  # nobody leads the other ranks any more
            self.take_reports(lockstep.stop())
            self.finish("budget")

    def check(self) -> None:
        """Raise the stop again if the analysis is over; exit a script that keeps asking for data."""
        late = self._first_draw is not None and self.clock.now() - self._first_draw > self.plan.budget
        if self.gave_up and not self.over and (late or self._joining.is_stopped):
            self.finish("budget")
        if not self.over:
            return
        self._ignored += 1
        if self._ignored > _DEAF:
            for stream in (sys.stdout, sys.stderr):
                with suppress(Exception):  # the script may have put anything in their place
                    stream.flush()
            os._exit(0)
        raise analysis_over(self.over)

    @contextmanager
    def drawing(self, track: Track) -> Iterator[None]:
        """Know within the context that this thread is in ``next()`` of a loader."""
        drawn = self._drawn()
        for outer in drawn:
            outer.nests = outer.nests or track.has_workers
        drawn.append(track)
        try:
            yield
        finally:
            drawn.pop()

    def _drawn(self) -> list[Track]:
        drawn: list[Track] = self._drawing.__dict__.setdefault("tracks", [])
        return drawn

    def waited(self, seconds: float) -> None:
        """Note a wait in ``next()`` of a loader, which is part of other loaders' steps if it is not in theirs."""
        if self.training.in_loop:
            drawn = self._drawn()
            for track in self._tracks:
                if track not in drawn:
                    track.observer.waits_beside(seconds)

    def beside(self, track: Track, starts: bool = False) -> AbstractContextManager[None]:
        """Return a context in which a loader is used: the time counts if the loop uses it between its training steps.

        ``starts`` is true if the loader begins its data.
        """
        target = self._target
        if target is None or track.climb is not None or track.is_like(target) or not self.training.in_loop:
            return nullcontext()
        if target in self._drawn():  # a part of making its batches
            return nullcontext()
        if starts:
            target.observer.breaks()
        return self.others.used(track, self._steps(target), starts)

    def _steps(self, target: Track) -> int:
        return self.training.draws.get(target.ordinal, 0)

    def drew(self, track: Track) -> None:
        """Record that a loader that is not (yet) the measured one has yielded a batch."""
        now = self.clock.now()
        if self._first_draw is None:
            self._first_draw = now
            self.send("first-batch", {})
        track.draws += 1
        self.training.drew(track.ordinal)
        share = 1.0 if self.training.steps or self.plan.attempt > 1 else _INFERENCE_AFTER
        if self._target is None and now - self._first_draw > share * self.plan.budget:
            self.finish("no-training-loader")

    def _stepped(self, *_: Any) -> None:
        """Say so if the loop has gone on for long after the end of its loader's epoch."""
        target = self._target
        if target is None or target.climb is None or isinstance(target.dataset, Batches):
            return  # a loop over an iterable of its own repeats a batch where one was used up in measuring
        if self.training.unfed == _KEPT and target.climb.steering.epochs.over:
            self.send("warning", _KEEPS_BATCHES)

    def promote(self, track: Track, feed: Feed, handed: int) -> Driven | None:
        """Begin the climb if this loader proves to be the training loader, and rank 0 of its job has begun too."""
        if self.gave_up or not self._is_target(track):
            return None
        if self._target is not None and self._target.climb is not None:  # its successor in a rebuilt epoch
            track.climb = self._target.climb
            track.climb.begin_epoch(feed.loader)
            feed.close()
            return track.climb
        lockstep = self._joining.lockstep()
        if lockstep is None:
            return None
        lockstep.warn = partial(self.send, "warning")
        device = self.training.device or default_device()
        self._target = track
        if lockstep.in_job:
            self.send("rank", asdict(rank_facts(str(device))))
        self.send("device", Device(device).facts())
        self.send("environment", {"threads": threads()})
        assert track.facts is not None and self._first_draw is not None, "a loader is promoted after its first batches"
        where, iterated = track.line or track.facts.where, track.place
        facts = replace(track.facts, where=where, iterated=iterated.where, order=iterated.order)
        self.send("loader", asdict(facts))
        if track.writes_in_place:
            self.send("warning", WRITES_IN_PLACE)
        loop = Loop(feed, track.ordinal, self, device, handed, track.writes_in_place)
        if isinstance(lockstep, Follower):
            track.climb = Following(loop, lockstep)
        else:
            track.climb = Climb(loop, self.clock.now() - self._first_draw, lockstep)
        self.send_observed()
        return track.climb

    def _is_target(self, track: Track) -> bool:
        if self._target is not None:
            if track.signature != self._target.signature or self._credits(track) < EVIDENCE:
                return False
            beside = self.training.beside(track.ordinal, self._target.ordinal)
            self._ambiguous |= beside
            return not beside
        if self.plan.loader is not None and track.ordinal != self.plan.loader:
            return False
        if self._chosen is not None:
            return self._uses(track) >= EVIDENCE and track.place == self._chosen
        return self._uses(track) >= EVIDENCE and self._waits_longest(track)

    def _waits_longest(self, track: Track) -> bool:
        """Return whether the loop waits for no other loader longer, of those that it draws from in the same steps.

        Of loaders that it waits for about equally long, this is true of the first one only. The ranks of a job take the
        first of them, to agree on it.
        """
        others = [self._tracks[ordinal - 1] for ordinal in self.training.drawn_since(track.ordinal)]
        rivals = [one for one in others if self._uses(one) >= max(EVIDENCE, self._uses(track) - 1)]
        if not rivals or self.plan.loader is not None or place_in_job()[1] > 1:
            return True
        return self._uses(track) >= _COMPARED and track is _slowest([track, *rivals])

    def _uses(self, track: Track) -> int:
        """Return the number of training steps with batches of a loader; of an inference loop, its batches."""
        return track.draws if self.plan.inference else self._credits(track)

    def _credits(self, track: Track) -> int:
        return self.training.credits.get(track.ordinal, 0)

    def _track(self, loader: DataLoader[Any]) -> Track:
        """Return the loader's track: its own, or that of an earlier loader which it replaces over the same dataset.

        A loader like the target over another dataset gets a new track, with the target's climb if it replaces it.
        """
        own = next((one for one in self._tracks if one.loader() is loader), None)
        if own is not None and own.climb is not None:
            return own
        recorder = StepRecorder.within(self.session, "baseline", self.plan.attempt)
        observer = Observer(self.clock, loader.num_workers, self.plan.attempt, recorder)
        new = Track(loader, len(self._tracks) + 1, self._places.of(loader, caller()), observer)
        live = [iterator.track for iterator in self._iterators if not iterator.ended]
        alike = (one for one in self._tracks if one.dataset is loader.dataset and new.is_like(one) and one not in live)
        if track := own or next(alike, None):
            track.loader = new.loader
            if track.climb is None:
                track.place, track.line = new.place, new.line
            return track
        target, climbing = self._target, [one.climb for one in live]
        if target is not None and new.is_like(target) and target.climb not in climbing and not self._ambiguous:
            new.climb = target.climb
        self._tracks.append(new)
        return new

    # Used by climbs

    def send(self, kind: str, data: dict[str, Any]) -> None:
        self.session.apply(kind, data)
        self._send(kind, data)

    @property
    def looks_inside(self) -> bool:
        """True if the inside of the dataset's code is still unknown."""
        inside = self.session.inside
        return inside is None or not inside.samples or inside.unsplit == NOT_YET

    def trial_schedule(self, rung: str, begins: bool) -> Schedule:
        """Return the schedule of the rounds that measure a remedy; they are counted after all rounds so far."""
        assert self._choose_trial is not None, "measuring a remedy needs ``choose_trial``"
        return Schedule(("baseline", rung), self.session, self._choose_trial, begins)

    def send_observed(self, last: bool = False) -> None:
        """Send what was observed of the training loop's own steps, if the training loader is known.

        With ``last``, also send the open block, the single steps, and the last start of another loader.
        """
        if observer := self._observer:
            for block in observer.take(last):
                self.send("observed", asdict(block))
        if last:
            if self._target is not None and self._target.edited:
                self.send("warning", _edits(self._target.edited))
            self.send_first_steps()
            if self._target is not None:
                self.others.trains(self._steps(self._target))

    def send_first_steps(self) -> None:
        """Send the single steps seen before the first window, once; windows record their own."""
        if observer := self._observer:
            for stretch in observer.take_stretches():
                self.send("stretch", vars(stretch))

    @property
    def _observer(self) -> Observer | None:
        """The training loader's observer; None if it is not known, or if the loop does not wait for it itself."""
        target = self._target
        return None if target is None or self.training.drawn_ahead(target.ordinal) else target.observer

    def draws_of_others(self, ordinal: int) -> int:
        """Return the batches drawn so far from loaders that are neither this one nor like it."""
        own = self._tracks[ordinal - 1]
        return sum(t.draws for t in self._tracks if t.ordinal != ordinal and not t.is_like(own))

    def report(self) -> str:
        gathers = self._gathers or self._joining.several_hosts
        return dumps(self.session.to_dict()) if gathers else ""

    def take_reports(self, reports: dict[int, str]) -> None:
        for rank, text in reports.items():
            try:
                session = Session.from_dict(loads(text)) if text else None
            except (SessionFileError, TypeError, ValueError, RecursionError):
                self.send("warning", STRANGE_MESSAGE)
                continue
            if session is not None:
                self.ranks[rank] = session
                self._send("elsewhere", {"rank": rank, "session": session.to_dict()})

    def finish(self, reason: str) -> None:
        """Stop the script for good: every later ``iter()`` and ``next()`` raises again."""
        if not self.over:
            self.over = reason
            with suppress(Exception):  # it may fail as measuring did; the script ends all the same
                self.close()
                self.send_observed(last=True)
                self.send("finished", {"reason": reason, **asdict(self.summary())})
        raise analysis_over(reason)

    def conclude(self) -> Story:
        """Send the remaining facts after the script has ended, and return the summary.

        If the loop ended before its loader was certain, the loader with the most credited steps is taken; of several,
        the one that the loop waited for longest.
        """
        if not self.over:
            trained = [track for track in self._tracks if self._credits(track)]
            if self._target is None and trained and self.plan.loader is None:
                most = max(map(self._credits, trained))
                self._target = target = _slowest([track for track in trained if self._credits(track) >= most - 1])
                self.send("device", Device(self.training.device or default_device()).facts())
                if target.facts is not None:  # where it is iterated last need not be where it trains
                    self.send("loader", asdict(target.facts))
                target.findings.send_new(self.send, self.plan.attempt, self.looks_inside)
            self.send_observed(last=True)
        return self.summary()

    def summary(self) -> Story:
        """Return the facts from which the parent decides on another pass."""
        climb = self._target.climb if self._target else None
        return Story(
            [LoaderUse(track.ordinal, track.where, track.draws, self._credits(track)) for track in self._tracks],
            optimizer_steps=self.training.steps,
            target=self._target.ordinal if self._target else None,
            horizon=climb.steering.epochs.seen_horizon if climb else None,
            rung=climb.steering.rung if climb else None,
        )


def _edits(settings: Collection[str]) -> dict[str, str]:
    what = listed([*settings][:_NAMED] + ["others"] * (len(settings) > _NAMED))
    return {
        "code": EDITED,
        "message": f"between epochs the script changes {what} of its dataset, which the workers of an epoch copy",
        "help": "workers that are kept (persistent_workers=True) would not see that: before you keep them, put such a "
        "value into shared memory, as torch.zeros(1).share_memory_()",
    }


def _slowest(tracks: list[Track]) -> Track:
    """Return the track whose loader the loop has waited for longest; of those about equally long, the first."""
    longest = max(track.waited for track in tracks)
    return min((track for track in tracks if track.waited * _ALIKE >= longest), key=lambda track: track.ordinal)
