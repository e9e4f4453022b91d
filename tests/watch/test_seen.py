from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from pipediag.analysis import diagnose_session
from pipediag.analysis.ranks.merging import job_session
from pipediag.analysis.summary import summarise
from pipediag.analysis.verdict import so_far
from pipediag.errors import NothingMeasured
from pipediag.measure.account import Times
from pipediag.report import RENDERERS, screen
from pipediag.session import Rank, Session
from pipediag.session.private import redacted
from pipediag.watch.processes import Training
from pipediag.watch.sampling import Stack, Thread
from pipediag.watch.seen import Seen, Stretch, session_of
from pipediag.watch.steps import Look

from .made import (
    BACKWARD_CALL,
    CALL,
    EACH,
    FETCH,
    IN_ITER,
    IN_NEXT,
    IN_WORKER,
    MAIN,
    PACKAGES,
    POLL,
    SCRIPT,
    STEP_CALL,
    Texts,
    frame,
    local,
)

ITEM = (*IN_WORKER, FETCH, EACH, frame("Pictures.__getitem__", SCRIPT, 7))
WAITS_FOR_WORK = (*IN_WORKER, *POLL)
TEXTS = Texts({(SCRIPT, 7): "return self.transform(Image.open(path))"})


class Figures:
    """Evidence of known figures."""

    def __init__(self, **figures: float) -> None:
        self.figures = figures

    def finish(self, steps: int) -> dict[str, float]:
        return dict(self.figures)


def seen(
    loop: list[Stack],
    workers: Sequence[list[Stack]] = (),
    numbers: tuple[int, int] | None = None,
    **more: Any,
) -> Seen:
    """Return ten seconds of a loop and its workers; ``numbers`` are those of its counter at both ends."""
    main = Thread(5, 5, "MainThread", loop)
    others = [Thread(6 + number, 6 + number, "MainThread", stacks) for number, stacks in enumerate(workers)]
    looks = [{5: Look(at, 5, local(MAIN, step=step))} for at, step in zip((0.0, 10.0), numbers or (), strict=False)]
    training = Training(5, ("train.py", "--token", "abc"), "/home/me")
    stretch = Stretch(10.0, [main, *others], len(others))
    figures = Figures(**more.pop("evidence", {}))
    return Seen(training, TEXTS, figures, 0.0, {}, 10.0, stretches=[stretch], looks=looks, **more)  # type: ignore[arg-type]


def starving() -> Session:
    loop = [IN_NEXT, IN_NEXT, IN_NEXT, (*MAIN, CALL)] * 20
    return session_of(seen(loop, [[ITEM] * 9 + [WAITS_FOR_WORK]] * 2, (10, 211), spent=[(10.0, Times(2.0, 1.0))] * 2))


def test_a_loop_that_waits_for_its_workers() -> None:
    session = starving()
    assert session.watched is not None and session.watched.shares == {
        "data": 0.75,
        "start": 0,
        "trains": 0.25,
        "other": 0,
    }
    assert session.watched.steps_by == f"the loop's own counter step, {SCRIPT}:40"
    assert sum(one.steps for one in session.observed) == 201
    assert sum(one.waited for one in session.observed) == pytest.approx(7.5, rel=1e-3)
    assert sum(one.seconds for one in session.observed) == pytest.approx(10.0)
    first = session.observed[0]
    # Two workers work nine tenths of 10 s for 201 batches; of their 9 s each they run 2 s and wait 1 s for a core.
    assert first.worker_ms == pytest.approx(1000 * 18 / 201)
    assert first.evidence["worker_cpu"] == pytest.approx(2 / 9)
    assert first.evidence["worker_blocked"] == pytest.approx(6 / 9)
    assert session.loader is not None
    assert (session.loader.dataset, session.loader.num_workers, session.loader.where) == ("Pictures", 2, f"{SCRIPT}:40")
    assert session.script.argv == ["train.py", "--token", "***"]
    assert session.inside is not None and session.inside.lines[0].where == f"{SCRIPT}:7"
    assert [(one.code, one.message) for one in session.warnings] == [
        ("blocked", "the workers are blocked 67 % of the time that batches take")
    ]


@pytest.mark.parametrize(("read", "told"), [(2.5, "2.5 MB a batch"), (0.0, "next to nothing")])
def test_what_blocked_workers_read(read: float, told: str) -> None:
    """It is told only if their counters could be read."""
    workers, spent = [[ITEM] * 9 + [WAITS_FOR_WORK]] * 2, [(10.0, Times(2.0, 1.0))] * 2
    session = session_of(seen([IN_NEXT] * 80, workers, (10, 211), spent=spent, evidence={"disk_read_mb": read}))
    assert session.warnings[0].message.endswith(f"; they read {told} from storage")


def test_its_report_says_how_it_is_known_and_what_would_prove_it() -> None:
    diagnosis = diagnose_session(starving())
    assert (diagnosis.verdict.bottleneck, diagnosis.verdict.level) == ("load", "observed")
    assert "from outside at 80 moments in 10 s" in diagnosis.verdict.sentence
    shown = screen.write(summarise(diagnosis))
    assert shown.startswith("YOUR TRAINING WAITS FOR DATA 75 % OF EVERY STEP (")
    assert "observed from\noutside for 10 s)" in shown
    assert "to prove it: cd /home/me && pipediag analyze train.py --token '***'\n" in shown
    assert "/home/me" not in screen.write(summarise(diagnose_session(redacted(starving()))))


def test_steps_that_cannot_be_counted_are_not_invented() -> None:
    session = session_of(seen([IN_NEXT, (*MAIN, CALL)] * 40, [[ITEM] * 10]))
    assert not session.counts_steps
    summary = summarise(diagnose_session(session))
    assert summary.headline == "Your training waits for data 50 % of its time"
    assert (summary.rates, summary.unit) == ([], "each second")
    assert summary.causes[0].ms == pytest.approx(500)


def test_a_loop_that_does_not_wait() -> None:
    session = session_of(seen([(*MAIN, CALL), (*MAIN, BACKWARD_CALL)] * 100, [[WAITS_FOR_WORK] * 20], (5, 400)))
    diagnosis = diagnose_session(session)
    assert diagnosis.verdict.bottleneck == "none"
    assert summarise(diagnosis).headline == "Your training hardly waits for data"


def test_without_workers_the_lines_are_those_of_the_loops_own_thread() -> None:
    here = (*IN_NEXT[:3], FETCH, EACH, frame("Pictures.__getitem__", SCRIPT, 7))
    session = session_of(seen([here, here, (*MAIN, CALL)] * 20, numbers=(1, 51)))
    assert session.workers == 0 and session.loader is not None and not session.loader.plain_iterable
    assert session.inside is not None and [line.where for line in session.inside.lines] == [f"{SCRIPT}:7"]
    assert session.observed[0].worker_ms == pytest.approx(1000 * 10 * 2 / 3 / 50)


def test_what_else_matters_is_said() -> None:
    loop = [IN_ITER, (*MAIN, CALL), (*MAIN, CALL), (*MAIN, CALL)] * 10
    evidence = {"cores_busy": 3.5, "cores_used": 2.0}
    session = session_of(seen(loop, evidence=evidence, threads={5: Times(4.0, 2.0)}, ended=True))
    told = {one.code: one.message for one in session.warnings}
    assert told["ended"] == "process 5 ended after 10 s of watching"
    assert told["starts"] == "25 % of the time goes into starting the loader for an epoch"
    assert told["queued"] == "the loop's thread waits 20 % of the time for a core"
    assert told["foreign-load"].startswith("other processes use 1.5 of ")


def test_a_process_of_which_nothing_was_seen() -> None:
    with pytest.raises(NothingMeasured, match="process 5 runs no Python"):
        session_of(seen([]))


#: A loop that calls a function of its own, which may make its batches.
CALLS = (*MAIN, frame("Replay.sample", SCRIPT, 21), frame("Tree.find", SCRIPT, 9))


def test_a_loop_of_which_it_is_not_seen_where_its_batches_come_from() -> None:
    """It may wait for data: nothing is said of it, but which line of the loop takes the time."""
    texts = Texts({(SCRIPT, 40): "batch = replay.sample(256)"})
    found = replace(seen([(*MAIN, CALL), CALLS, CALLS, (*MAIN, STEP_CALL)] * 20), source=texts)
    diagnosis = diagnose_session(session_of(found))
    assert (diagnosis.verdict.bottleneck, diagnosis.verdict.certain) == ("inconclusive", False)
    shown = screen.write(summarise(diagnosis))
    assert shown.startswith("IT IS OPEN WHETHER YOUR TRAINING WAITS FOR DATA (it draws from no loader,")
    told = "- 50 % of the time it runs batch = replay.sample(256) (me/train.py:40): if that"
    assert told in " ".join(shown.split())
    assert "Nothing to gain" not in shown
    assert so_far(diagnosis.session) == ["the loop was seen to draw from no loader, generator or queue yet"]


def test_a_loop_that_does_little_but_train() -> None:
    """It hardly waits, wherever its batches come from."""
    session = session_of(seen([CALLS] + [(*MAIN, STEP_CALL), (*MAIN, CALL)] * 40))
    assert diagnose_session(session).verdict.bottleneck == "none"


#: A thread that does what is no part of a training: it makes data ready, or imports modules.
PREPARES = (*MAIN, frame("prepare", SCRIPT, 12), frame("dumps", "/usr/lib/python3.9/json/__init__.py", 30))
#: A thread that reads pictures: before a loop, or for its steps.
READS = (*MAIN, frame("prepare", SCRIPT, 12), frame("Image.resize", f"{PACKAGES}/PIL/Image.py", 30))


@pytest.mark.parametrize("stack", [PREPARES, READS])
def test_a_process_that_does_not_train_yet(stack: Stack) -> None:
    """Nothing is said of its waiting: it has no loop."""
    told = rf"process 5 neither trains nor draws batches yet. It is at {SCRIPT}:12. Watch it later, or longer if"
    with pytest.raises(NothingMeasured, match=told):
        session_of(seen([stack] * 40))


def test_a_loop_that_reads_in_its_body() -> None:
    session = session_of(seen([READS] * 30 + [(*MAIN, CALL)] + [READS] * 99))
    assert session.watched is not None and session.watched.shares["data"] == 0.99


@pytest.mark.parametrize("before", [PREPARES, READS])
def test_what_is_before_the_training_does_not_count(before: Stack) -> None:
    found = seen([IN_NEXT, (*MAIN, CALL)] * 40)
    found.stretches.insert(0, Stretch(10.0, [Thread(5, 5, "MainThread", [before] * 40)], 0))
    watched = session_of(found).watched
    assert watched is not None
    assert (watched.seconds, watched.shares["data"], watched.shares["other"]) == (10.0, 0.5, 0.0)
    found = seen([PREPARES] * 60 + [IN_NEXT, (*MAIN, CALL)] * 20)
    watched = session_of(found).watched
    assert watched is not None
    assert (watched.seconds, watched.shares["data"], watched.shares["other"]) == (4.0, 0.5, 0.0)


def test_a_loop_that_only_waits() -> None:
    """Its interval has no width, and none is shown. How fast it would be is not known: none of its steps was seen."""
    counted = diagnose_session(session_of(seen([IN_NEXT] * 80, [[ITEM] * 10], (10, 211))))
    assert [rate.name for rate in summarise(counted).rates] == ["now"]
    shown = screen.write(summarise(diagnose_session(session_of(seen([IN_NEXT] * 80, [[ITEM] * 10])))))
    assert "100 % OF ITS TIME (observed from outside for 10 s)" in shown


def test_its_json_is_a_session_like_any_other() -> None:
    session = starving()
    again = Session.from_dict(session.to_dict())
    assert again == session
    assert diagnose_session(again).to_dict() == diagnose_session(session).to_dict()


def test_the_ranks_of_a_job_stand_on_the_screen_the_longest_wait_first() -> None:
    sessions = {}
    for rank, waits in enumerate((1, 3)):
        loop = [IN_NEXT] * waits + [(*MAIN, CALL)] * 2
        sessions[rank] = session_of(seen(loop * 20, [[ITEM] * 10], (10, 211)))
        sessions[rank].ranks = [Rank(rank, 2, "here", workers=1)]
    summary = summarise(diagnose_session(job_session(sessions)))
    assert summary.findings == [("rank 1", "60 %"), ("rank 0", "33 %")]
    assert summary.headline == "Your training waits for data 60 % of every step"


def test_of_many_workers_only_some_are_sampled() -> None:
    made = seen([IN_NEXT, (*MAIN, CALL)] * 40, [[ITEM] * 10, [ITEM] * 10], (10, 211))
    made.stretches = [Stretch(10.0, made.stretches[0].threads, 16)]
    session = session_of(made)
    assert session.workers == 16
    assert session.observed[0].worker_ms == pytest.approx(1000 * 16 * 10 / 201)


@pytest.mark.parametrize("ending", [".txt", ".md", ".html"])
def test_every_report_has_the_command_that_proves_it(ending: str) -> None:
    shown = re.sub("</?span[^>]*>", "", str(RENDERERS[ending](diagnose_session(starving()))))
    assert "cd /home/me && pipediag analyze" in html.unescape(shown)


def test_stacks_that_were_not_read_whole_do_not_count() -> None:
    broken: list[Stack] = [(CALL,), (), IN_NEXT[3:]]
    session = session_of(seen([*([IN_NEXT, (*MAIN, CALL)] * 40), *broken], numbers=(10, 211)))
    assert session.watched is not None and session.watched.looks == 80
    assert session.watched.steps_by
