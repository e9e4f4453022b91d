"""What is passed on beside the windows: each finding once, and again when it has changed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pipediag.ladder.delivery import NO_COST, Delivery, Notes
from pipediag.ladder.findings import Findings
from pipediag.ladder.worker_reports import WorkerReports
from pipediag.session import NOT_YET, Inside, Link, Session, Startup


class Told:
    """A feed without a loader, and what was told of it."""

    def __init__(self, known: bool = False) -> None:
        self.feed: Any = SimpleNamespace(startups=[], reports=WorkerReports())
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.findings = Findings(self.feed, lambda kind, data: self.events.append((kind, data)), 2, known)

    def hear(self, notes: Notes, worker: int = 0) -> None:
        self.feed.reports.take(Delivery(None, "baseline", True, NO_COST, worker, notes=notes))

    def now(self) -> list[str]:
        """What is told when it is asked for now."""
        self.events.clear()
        self.findings.send_new()
        return [kind for kind, _ in self.events]

    def session(self) -> Session:
        session = Session()
        for kind, data in self.events:
            session.apply(kind, data)
        return session


def test_nothing() -> None:
    assert Told().now() == []


def test_startups_once_each() -> None:
    told = Told()
    told.feed.startups.append(Startup(2.0, launch=0.5, ready=1.5))
    assert told.now() == ["startup"]
    assert told.session().startups == [Startup(2.0, 2, 0.5, 1.5)], "with the pass they belong to"
    assert told.now() == []
    told.feed.startups += [Startup(3.0), Startup(0.1, renewed=True)]
    assert told.now() == ["startup", "startup"]


def test_the_inside_once_for_each_worker_that_has_looked() -> None:
    told = Told()
    chain = [Link("A"), Link("B")]
    told.hear(Notes(inside=Inside(samples=32, links=chain)), 0)
    assert told.now() == ["inside"]
    assert told.session().inside == Inside(samples=32, links=chain)
    assert told.now() == []
    told.hear(Notes(inside=Inside(links=chain)), 1)
    assert told.now() == ["inside"]
    assert told.session().inside == Inside(samples=32, links=chain)


def test_a_worker_that_found_another_chain() -> None:
    told = Told()
    told.hear(Notes(inside=Inside(samples=32, links=[Link("A"), Link("B")])), 0)
    told.now()
    told.hear(Notes(inside=Inside(links=[Link("B")])), 1)
    told.now()
    inside = told.session().inside
    assert inside is not None
    assert inside.unsplit == "the workers found different chains of transforms"


def test_the_inside_is_not_told_where_it_is_known() -> None:
    told = Told(known=True)
    told.hear(Notes(inside=Inside(samples=32)))
    assert told.now() == []


def test_the_inside_again_when_there_is_more_of_it() -> None:
    """A worker tells with each batch what it has timed so far, and at last what the chain is."""
    told = Told()
    for inside in (Inside(samples=2, unsplit=NOT_YET), Inside(samples=8, unsplit=NOT_YET), Inside(samples=32)):
        told.hear(Notes(inside=inside))
        assert told.now() == ["inside"]
        assert told.session().inside == inside
        assert told.now() == []


def test_what_was_heard_between_two_tellings_is_told_at_once() -> None:
    told = Told()
    for samples in (2, 4, 6):
        told.hear(Notes(inside=Inside(samples=samples, unsplit=NOT_YET)))
    assert told.now() == ["inside"]
    inside = told.session().inside
    assert inside is not None and inside.samples == 6


def test_the_tail_whenever_there_is_more_of_it() -> None:
    told = Told()
    told.hear(Notes([0.01], (0.01, "5")))
    assert told.now() == [], "one sample has no spread"
    told.hear(Notes([0.03], (0.03, "7")))
    assert told.now() == ["tail"]
    tail = told.session().tail
    assert tail is not None
    assert (tail.samples, tail.p50_ms) == (2, 20.0)
    assert told.now() == []
    told.hear(Notes())
    assert told.now() == []
    told.hear(Notes([0.02], (0.02, "9")))
    assert told.now() == ["tail"]
