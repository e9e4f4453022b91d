"""The ranks of a job agree on each step: tested on a store in this process, and in simulated jobs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipediag.ladder.ranks import lockstep as module
from pipediag.ladder.ranks.lockstep import CACHES, Activity, Follower, Leader, Lockstep, Stopped, Superseded
from pipediag.session import Rank, is_rung

from ..clock import Clock
from .ranks import Hung, Job, Store

#: What a stranger may send.
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
_FIELDS = ["begin", "end", "activity", "rank", "world_size", "delay", "shares", "schema_version", "windows", "rungs"]
#: Maximum seconds that a rank waits for a grant, and seconds between two polls.
PATIENCE, LATER = module._PATIENCE, module._LATER
#: Seconds of a simulated step.
STEP = 0.01


@pytest.fixture
def store() -> Store:
    return Store()


def pair(store: Store) -> tuple[Leader, Follower, Clock]:
    """Rank 0, which has come to step 0, and rank 1, which has joined."""
    clock = Clock()
    leader = Leader(store, 2, clock)
    leader.comes_to(0, 0)
    return leader, Follower(store, 1, 2, clock), clock


def follow(follower: Follower, epoch: int, position: int) -> Activity:
    """Return what the rank does in this step."""
    try:
        follower.comes_to(epoch, position)
    except Superseded:
        follower.comes_to(epoch, position)  # the activity is the current one now
    return follower.activity


class TestAlone:
    def test_there_is_nobody_to_agree_with(self) -> None:
        alone = Lockstep()
        alone.do("device", window=3)
        alone.reserve(3, 3)
        alone.comes_to(0, 0)
        alone.end_epoch(0, 1)
        alone.stop()
        assert not alone.in_job
        assert (alone.activity, alone.left(0, 0), alone.unserved("device")) == (Activity(), 0, "")


class TestActivity:
    def test_all_ranks_are_fed_unless_some_are_named(self) -> None:
        assert [Activity(rung="device").rung_of(rank) for rank in range(3)] == ["device"] * 3
        some = Activity(rung="device", fed=[1])
        assert [some.rung_of(rank) for rank in range(3)] == ["baseline", "device", "baseline"]
        assert Activity(rung="device", fed=[]).rung_of(0) == "baseline"

    def test_only_named_ranks_are_delayed(self) -> None:
        some = Activity(delayed=[0, 2], delay=0.25)
        assert [some.delay_of(rank) for rank in range(3)] == [0.25, 0.0, 0.25]


class TestGrants:
    def test_one_step_at_a_time(self, store: Store) -> None:
        leader, follower, clock = pair(store)
        assert leader.left(0, 0) == 1
        assert follow(follower, 0, 0).rung == "baseline"
        assert leader.left(0, 1) == 0
        leader.do("device")
        leader.comes_to(0, 1)
        assert follow(follower, 0, 1).rung == "device"
        assert clock.seconds == 0.0, "granted steps need no wait"

    def test_all_facts_arrive(self, store: Store) -> None:
        leader, follower, _ = pair(store)
        facts = {"fed": [0], "window": 7, "round": 3, "delayed": [1], "delay": 0.5, "prepares": CACHES}
        leader.do("device", **facts)
        leader.comes_to(0, 1)
        assert follow(follower, 0, 1) == leader.activity == Activity(1, "device", **facts)

    def test_ahead(self, store: Store) -> None:
        """Four at a time, the next four when the last one begins, and no more than were reserved."""
        leader, follower, _ = pair(store)
        leader.do("worker", window=10)
        leader.reserve(10, 4)
        left = []
        for position in range(1, 11):
            leader.comes_to(0, position)
            left.append(leader.left(0, position))
        assert left == [4, 3, 2, 5, 4, 3, 2, 3, 2, 1]
        assert {follow(follower, 0, position).number for position in range(1, 11)} == {1}
        leader.comes_to(0, 11)
        assert leader.left(0, 11) == 1, "after them one at a time"

    def test_grants_end_with_the_epoch(self, store: Store) -> None:
        leader, follower, _ = pair(store)
        leader.do("worker", window=9)
        leader.reserve(9, 6)
        leader.comes_to(0, 1)
        assert leader.left(1, 0) == 0
        leader.comes_to(1, 0)
        assert leader.left(1, 0) == 3, "the steps of the window that were not granted before"
        assert follow(follower, 0, 1).number == follow(follower, 1, 0).number == 1

    def test_a_new_activity_forgets_what_was_reserved(self, store: Store) -> None:
        leader, _, _ = pair(store)
        leader.do("worker")
        leader.reserve(9, 4)
        leader.do("device")
        leader.comes_to(0, 1)
        assert leader.left(0, 1) == 1

    def test_the_end_of_an_epoch_of_unknown_length(self, store: Store) -> None:
        """All ranks end the epoch instead of taking the step, then continue their activity."""
        leader, follower, _ = pair(store)
        leader.do("worker", window=5)
        leader.reserve(5, 1)
        leader.comes_to(0, 1)
        number = follow(follower, 0, 1).number
        leader.end_epoch(0, 2)
        ends = follow(follower, 0, 2)
        assert ends.ends
        assert ends.number > number
        assert not leader.activity.ends
        leader.comes_to(1, 0)
        assert leader.left(1, 0) == 1
        assert follow(follower, 1, 0) == leader.activity
        assert leader.activity.window == 5


class TestWaiting:
    def test_no_grant_in_time(self, store: Store) -> None:
        """Rank 0 may be waiting for this rank: it trains unchanged, and does not wait again before the next grant."""
        leader, follower, clock = pair(store)
        leader.do("device")
        leader.comes_to(0, 1)
        assert follow(follower, 0, 1).rung == "device"
        with pytest.raises(Superseded):
            follower.comes_to(0, 2)
        assert follower.activity == Activity(number=-1)
        assert PATIENCE <= clock.seconds <= PATIENCE + LATER
        waited = clock.seconds
        follower.comes_to(0, 2)
        follower.comes_to(0, 3)
        assert clock.seconds == waited
        leader.comes_to(0, 2)
        leader.comes_to(0, 3)
        leader.comes_to(0, 4)
        assert follow(follower, 0, 4).rung == "device"
        with pytest.raises(Superseded):
            follower.comes_to(0, 5)
        again = clock.seconds - waited
        assert PATIENCE / 2 <= again <= PATIENCE / 2 + LATER, "it follows again, so it waits again, half as long"

    def test_patience_has_an_end(self, store: Store) -> None:
        leader, follower, clock = pair(store)
        waits = []
        for epoch in range(9):
            leader.comes_to(epoch, 0)
            follow(follower, epoch, 0)
            before = clock.seconds
            with pytest.raises(Superseded):
                follower.comes_to(epoch, 1)
            waits.append(round(clock.seconds - before, 1))
        assert waits == [2.0, 1.0, 0.5, 0.3, 0.1, 0.1, 0.1, 0.1, 0.1]

    def test_a_rank_that_joins_late_in_the_epoch(self, store: Store) -> None:
        """Grants of earlier steps are skipped."""
        leader, _, clock = pair(store)
        leader.do("device")
        for position in range(1, 6):
            leader.comes_to(0, position)
        follower = Follower(store, 1, 2, clock)
        assert follow(follower, 0, 5).rung == "device"
        assert clock.seconds == 0.0

    def test_a_rank_before_the_first_grant(self, store: Store) -> None:
        """Rank 0 began at step 3: this rank trains unchanged until then, and does not wait."""
        clock = Clock()
        leader = Leader(store, 2, clock)
        leader.do("device")
        leader.comes_to(0, 3)
        follower = Follower(store, 1, 2, clock)
        assert [follow(follower, 0, position).rung for position in range(5)[1:4]] == ["baseline", "baseline", "device"]
        assert clock.seconds == 0.0

    def test_each_rank_counts_its_own_epochs(self, store: Store) -> None:
        clock = Clock()
        leader = Leader(store, 2, clock)
        leader.do("device")
        leader.comes_to(7, 0)
        follower = Follower(store, 1, 2, clock)
        assert follow(follower, 0, 0).rung == "device"
        leader.do("worker")
        leader.comes_to(8, 0)
        assert follow(follower, 1, 0).rung == "worker"


class TestTheEnd:
    def test_at_the_next_step(self, store: Store) -> None:
        leader, follower, clock = pair(store)
        leader.reserve(3, 3)
        leader.comes_to(0, 1)
        leader.stop()
        for position in range(4):
            follower.comes_to(0, position)
        before = clock.seconds
        with pytest.raises(Stopped):
            follower.comes_to(0, 4)
        assert clock.seconds == before
        follower.leave("a report")
        assert leader.stop() == {1: "a report"}
        assert clock.seconds == before, "rank 0 does not wait for ranks that have left"

    def test_rank_0_waits_until_the_others_know(self, store: Store) -> None:
        leader, _, clock = pair(store)
        leader.stop()
        assert module._LEAVING <= clock.seconds <= module._LEAVING + LATER, "but not forever"

    def test_rank_0_is_gone(self) -> None:
        store = Store()
        leader, follower, _ = pair(store)
        leader.reserve(2, 2)
        leader.comes_to(0, 1)
        follow(follower, 0, 0)
        follow(follower, 0, 1)
        store.gone = True
        follower.comes_to(0, 2)  # granted and read before
        with pytest.raises(Stopped):
            follower.comes_to(0, 3)

    def test_reports_to_rank_0_after_it_has_ended(self) -> None:
        store = Store()
        _, follower, _ = pair(store)
        store.gone = True
        with pytest.raises(Stopped):
            follower.note({"rank": 1})
        with pytest.raises(Stopped):
            follower.cannot_serve("device", "too large")
        follower.leave("a report")  # nobody reads it


class TestReports:
    def test_what_a_rank_cannot_serve(self, store: Store) -> None:
        leader, follower, _ = pair(store)
        assert leader.unserved("device") == ""
        follower.cannot_serve("device", "too large")
        assert leader.unserved("device") == "rank 1: too large"
        assert leader.unserved("host") == ""

    def test_the_latest_note_of_each_rank(self, store: Store) -> None:
        clock = Clock()
        leader = Leader(store, 4, clock)
        leader.comes_to(0, 0)
        followers = [Follower(store, rank, 4, clock) for rank in (1, 3)]
        for ms in (5.0, 7.0):
            for follower in followers:
                follower.note({"rank": follower.rank, "world_size": 4, "worker_ms": ms})
        assert leader.notes() == {rank: Rank(rank, 4, worker_ms=7.0) for rank in (1, 3)}

    @given(
        st.sampled_from(["grant/0/1", "note/1", "unserved/device", "report/1"]),
        st.one_of(st.text(max_size=50), _JSON, st.dictionaries(st.sampled_from(_FIELDS), _JSON)).map(
            lambda value: value if isinstance(value, str) else json.dumps(value)
        ),
    )
    def test_strange_messages_are_ignored(self, key: str, value: str) -> None:
        """Whatever it says, a rank goes on, trains at most a minute longer a step, and takes no rung that is none."""
        store = Store()
        leader, follower, _ = pair(store)
        warnings: list[dict[str, str]] = []
        leader.warn = follower.warn = warnings.append
        follower._patience = 0.0
        store.set(key, value)
        done = follow(follower, 0, 1)
        assert done.delay <= 60.0 and (done.number == -1 or is_rung(done.rung))
        leader.notes()
        assert len(leader.unserved("device")) <= 300
        leader.stop()
        assert {warning["code"] for warning in warnings} <= {"strange-message"}

    def test_a_delay_beyond_reason_is_said_and_ignored(self, store: Store) -> None:
        _, follower, _ = pair(store)
        warnings: list[dict[str, str]] = []
        follower.warn = warnings.append
        grant = {"begin": 1, "end": 9, "activity": {"number": 1, "rung": "device", "delayed": [1], "delay": 3600}}
        store.set("grant/0/1", json.dumps(grant))
        assert follow(follower, 0, 1).delay_of(1) == 0.0
        assert [warning["code"] for warning in warnings] == ["strange-message"]

    def test_who_has_joined(self, store: Store) -> None:
        clock = Clock()
        leader = Leader(store, 3, clock)
        leader.comes_to(0, 0)
        Follower(store, 1, 3, clock)
        assert not leader.all_joined()
        assert module._JOINING <= clock.seconds <= module._JOINING + LATER
        Follower(store, 2, 3, clock)
        before = clock.seconds
        assert leader.all_joined()
        assert clock.seconds == before


# Whole jobs


@dataclass(frozen=True)
class Doing:
    """An activity of some steps; the last ``leaves`` of them are not taken, as of a window that ends early."""

    rung: str
    steps: int
    ahead: int
    leaves: int = 0
    prepares: str = ""


@dataclass
class Simulated:
    """A job whose epochs have ``lengths`` in turn, which the ranks know beforehand if ``known``.

    ``sync`` is the number of steps between two all-reduces.

    Attributes:
        longer: steps by which the epochs of some ranks are longer. The ranks then wait for each other at the end of
            each epoch only, as under ``model.join()``.
        took: what each rank did in each step: its epoch, position, and number and rung of the activity.
        at: epoch and position of rank 0's next step.
        stopped: the steps at which the ranks learned that the analysis is over.
    """

    doings: list[Doing]
    lengths: list[int]
    order: list[int]
    sync: int = 1
    known: bool = True
    longer: dict[int, int] = field(default_factory=dict)
    took: dict[int, list[tuple[int, int, int, str]]] = field(default_factory=dict)
    at: tuple[int, int] = (0, 0)
    stopped: dict[int, tuple[int, int]] = field(default_factory=dict)

    def run(self) -> Job:
        job, store = Job(self.order, missed=not self.longer), Store()
        self.took = {rank: [] for rank in self.order}
        self.leader = Leader(store, len(self.order), job)
        others = range(1, len(self.order))
        job.run([lambda: self._lead(job), *(partial(self._follow, rank, job, store) for rank in others)])
        return job

    def _length(self, epoch: int, rank: int = 0) -> int:
        return self.lengths[epoch % len(self.lengths)] + self.longer.get(rank, 0)

    def _reduce(self, job: Job, count: int) -> None:
        job.sleep(STEP)
        if count % self.sync == 0 and not self.longer:
            job.all_reduce()

    def _join(self, job: Job) -> None:
        if self.longer:
            job.all_reduce()

    def _lead(self, job: Job) -> None:
        leader = self.leader
        leader.comes_to(0, 0)
        assert leader.all_joined()
        for doing in self.doings:
            self._take_granted(job)
            leader.do(doing.rung, window=doing.steps, prepares=doing.prepares)
            leader.reserve(doing.steps, doing.ahead if self.known else 1)
            for _ in range(doing.steps - doing.leaves):
                self._step(job)
        self._take_granted(job)
        self.stopped[0] = self.at
        leader.stop()

    def _take_granted(self, job: Job) -> None:
        self.leader.reserve(0, 1)
        while self.leader.left(*self.at) > 0:
            self._step(job)

    def _step(self, job: Job) -> None:
        """Take rank 0's next step, after the end of an epoch if that is due."""
        leader, (epoch, position) = self.leader, self.at
        if position >= self._length(epoch) and (self.known or leader.left(epoch, position) <= 0):
            if self.known:
                leader.comes_to(epoch, position)
            else:
                leader.end_epoch(epoch, position)
            self._join(job)
            epoch, position = epoch + 1, 0
        leader.comes_to(epoch, position)
        self.took[0].append((epoch, position, leader.activity.number, leader.activity.rung))
        self.at = epoch, position + 1
        self._reduce(job, len(self.took[0]))

    def _follow(self, rank: int, job: Job, store: Store) -> None:
        while not store.has(module.EPOCH):
            job.sleep(0.001)
        follower = Follower(store, rank, len(self.order), job)
        epoch = position = count = 0
        while True:
            at_end = self.known and position == self._length(epoch, rank)
            try:
                follower.comes_to(epoch, position)
            except Superseded:
                continue
            except Stopped:
                self.stopped[rank] = epoch, position
                follower.leave("")
                return
            if at_end or follower.activity.ends:
                self._join(job)
                epoch, position = epoch + 1, 0
                continue
            activity = follower.activity
            self.took[rank].append((epoch, position, activity.number, activity.rung_of(rank)))
            position, count = position + 1, count + 1
            self._reduce(job, count)


@st.composite
def jobs(draw: st.DrawFn) -> Simulated:
    ranks = draw(st.integers(2, 4))
    doings = [
        Doing(
            draw(st.sampled_from(["baseline", "device", "worker"])),
            steps := draw(st.integers(1, 12)),
            draw(st.integers(1, 15)),
            draw(st.integers(0, steps - 1)),
            draw(st.sampled_from(["", CACHES])),
        )
        for _ in range(draw(st.integers(1, 6)))
    ]
    return Simulated(
        doings,
        draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)),
        draw(st.permutations(range(ranks))),
        draw(st.integers(1, 3)),
        draw(st.booleans()),
    )


class TestJobs:
    @given(jobs())
    def test_every_rank_does_the_same_in_each_step(self, job: Simulated) -> None:
        ran = job.run()
        for rank in job.order[1:]:
            assert job.took[rank] == job.took[0]
        assert set(job.stopped.values()) == {job.stopped[0]}
        for rank, seconds in ran.waited.items():
            assert seconds < 2 * STEP * len(job.took[rank]) + PATIENCE, "no rank lost patience"

    @given(jobs(), st.lists(st.integers(-4, 8), min_size=3, max_size=3))
    def test_epochs_of_several_lengths(self, job: Simulated, longer: list[int]) -> None:
        """Steps that rank 0 also has are under the same rung; for the others a rank waits some seconds in total."""
        job.known = True
        job.longer = {rank: max(more, 1 - min(job.lengths)) for rank, more in enumerate(longer, 1) if rank in job.order}
        ran = job.run()
        first = {(epoch, position): (number, rung) for epoch, position, number, rung in job.took[0]}
        epochs = 1 + max(epoch for epoch, *_ in first)
        for rank in job.order[1:]:
            for epoch, position, number, rung in job.took[rank]:
                assert (number, rung) == first.get((epoch, position), (number, rung))
            beside = 2 * STEP * max(len(took) for took in job.took.values())
            assert ran.waited[rank] < beside + 2 * PATIENCE + 2 * module._LEAST_PATIENCE * epochs

    def test_a_hanging_job_is_detected(self) -> None:
        """This tests the simulation itself: one rank has ended, and the other waits for it."""
        job = Job([0, 1])
        with pytest.raises(Hung):
            job.run([lambda: None, job.all_reduce])
