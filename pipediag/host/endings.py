"""Say why a pass over the script failed, or why nothing could be measured, and what to do about it."""

from __future__ import annotations

import re
import signal

from ..analysis.checks import FILES
from ..analysis.words import first_of
from ..session import Script, Session
from ..session.events import LoaderUse
from .supervision import LONGER_BUDGET, Outcome

#: Number of optimizer steps up to which no step can be timed.
_FEW_STEPS = 2
#: torch's messages about a worker that was killed, with the system's name of the signal, or that has ended.
_WORKER_KILLED = re.compile(r"DataLoader worker \(pid \d+\) is killed by signal: ([^.]*)\.")
_WORKER_EXITED = re.compile(r"DataLoader worker \(pid \d+\) exited unexpectedly with exit code (\d+)")
_WORKER_ENDED = re.compile(r"DataLoader worker \(pid\(s\) [\d, ]+\) exited unexpectedly")
_RANK = re.compile(r"rank \d+: ")
_SIGNALS = {signal.strsignal(number): number.name for number in signal.Signals}
_CAUSES = {
    "SIGKILL": "as the kernel does if memory runs out",
    "SIGBUS": "as if shared memory (/dev/shm) ran out",
    "SIGSEGV": "by an error in native code",
}


def words(outcome: Outcome) -> str:
    """Return the script's own message about its failure, or ""."""
    return outcome.story.error or outcome.story.said


def failure(outcome: Outcome) -> str:
    """Return how the script failed, in its own words if there are any."""
    if outcome.killed:
        return f"it was killed by {_signal(signal.Signals(outcome.killed).name)}"
    error = outcome.story.error
    rank = whose[0] if (whose := _RANK.match(error)) else ""
    if worker := _WORKER_KILLED.search(error):
        return f"{rank}a DataLoader worker was killed by {_signal(_SIGNALS.get(worker[1], worker[1]))}"
    if worker := _WORKER_EXITED.search(error):
        return f"{rank}a DataLoader worker ended by itself, with exit code {worker[1]}"
    if _WORKER_ENDED.search(error):
        return f"{rank}a DataLoader worker was killed, or ended by itself ({error.removeprefix(rank)})"
    return words(outcome) or f"it ended with exit code {outcome.exit_code}"


def _signal(name: str) -> str:
    """Return a signal's name with its usual cause."""
    return f"{name}, {cause}" if (cause := _CAUSES.get(name)) else name


def files_written(script: Script) -> str:
    """Return which files the script has written, as the end of a sentence; "" if there are none."""
    made = [path for path in script.wrote if path not in script.overwrote]
    parts = [f"it wrote {first_of(made, FILES)}"] if made else []
    if script.overwrote:
        parts.append(f"it overwrote {first_of(script.overwrote, FILES)}, which had been there before")
    return f"; {'; '.join(parts)}" if parts else ""


def nth(number: int) -> str:
    """Return an ordinal in figures."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def trouble(history: list[Outcome]) -> str:
    """Return how the last pass failed although an earlier one had not, to continue "your script"; otherwise "".

    An earlier pass that failed in the same way, after training, does not count.
    """
    *earlier, outcome = history
    if not earlier or outcome.interrupted:
        return ""
    run = f"in its {nth(len(history))} run"
    if outcome.exit_code:
        ran_well = outcome.refused or any(not one.exit_code for one in earlier)
        return f"failed {run}: {failure(outcome)}" if ran_well else ""
    if outcome.batches or not (outcome.hung or any(one.batches for one in earlier)):
        return ""
    if outcome.hung:
        return f"asked for no batch {run} and was ended after {outcome.hung:.0f} s"
    return f"drew no batch {run} and ended without an error"


def warn_of_trouble(history: list[Outcome], session: Session, workdir: str | None, again: str | None) -> None:
    """Warn about a pass that failed after others had not; ``again`` is the folder of its repetition, or ""."""
    if again:
        help = f"it was run again in its own folder, {again}"
        session.warn("later-pass-failed", f"your script {trouble(history)}", help)
        return
    gave = sorted({window.attempt for window in session.windows}) or [1]
    passes = f"{'pass' if len(gave) == 1 else 'passes'} {', '.join(map(str, gave))}"
    kept = f" ({passes} gave the reported results)" if session.anything_seen else ""
    workdirs = "use --workdir DIR, or " if workdir is None else ""
    help = f"pipediag repeats a script if one run is too short: {workdirs}make the script repeatable"
    if history[-1].story.error.startswith("EOFError"):
        help = "the first run read standard input to its end: pass the answers as arguments"
    session.warn("later-pass-failed", f"your script {trouble(history)}{kept}", help)


def nothing_measured(history: list[Outcome], budget: float, loader: int | None) -> str:
    """Return why there is nothing to judge, and what to do about it.

    ``budget`` are the seconds that the user gave for measuring, ``loader`` is the number of the loader named, if any.
    """
    first = history[0]
    if len(history) > 1 and not first.batches and first.story.optimizer_steps and history[-1].hung:
        return _no_batch(first)  # the later run looked for a loop of its own, and found none in time
    if problem := trouble(history):
        return (
            f"your script {problem}. Its 1st run was too short to be measured, so it must run again: "
            "let it train for more batches, or make it repeatable"
        )
    outcome = history[-1]
    steps = outcome.story.optimizer_steps
    if outcome.trainers and not steps:
        saw = f"only the loader at {outcome.drawn[0].where}, which does not train" if outcome.drawn else "no loader"
        return (
            f"your script trains in processes that it starts itself ({', '.join(outcome.trainers)}) and that pipediag "
            f"cannot measure; it saw {saw}. Start them as Python scripts, without a shell, by the Python that runs "
            "pipediag, or as a multiprocessing.Process"
        )
    if outcome.hung:
        return _hung(outcome)
    if not outcome.batches:
        return _no_batch(outcome)
    few = 0 < steps <= _FEW_STEPS
    if outcome.story.target is None or (few and not outcome.stopped):
        why = _not_that_loader(loader, outcome.drawn) if loader else ""
        if why := why or _no_training_loader(outcome):
            return why
    if outcome.stopped:
        return (
            f"the budget of {budget:g} s ended your script before one window could be measured; give a longer --budget"
        )
    runs = f" in any of {len(history)} runs" if len(history) > 1 else ""
    return f"your script ended by itself before one window could be measured{runs}; let it train for more batches"


def _hung(outcome: Outcome) -> str:
    if outcome.stuck:
        return f"your script had to be ended before one window could be measured: {outcome.stuck}"
    if not outcome.batches:
        return (
            f"your script asked for no batch in {outcome.hung:.0f} s and was ended; "
            "prepare its data beforehand, so that training begins sooner"
        )
    return (
        "your script stopped asking for batches and had to be ended before one window could be measured; "
        f"{LONGER_BUDGET}"
    )


def _no_batch(outcome: Outcome) -> str:
    story = outcome.story
    if story.loaders:
        where = story.loaders[0].where
        return f"the loader at {where} gave no batch: its dataset is empty, or the script asked for none"
    if story.optimizer_steps:
        return (
            f"the script trained for {story.optimizer_steps} steps and iterated no torch DataLoader, nor does a for "
            "statement or next() of its own give it its batches: it makes them in the body of its loop, or "
            "takes them from a queue. To measure what they cost, make or take them in a generator, and loop over that"
        )
    return (
        "the script iterated no torch DataLoader, nor did a process that it starts for training, so there is nothing "
        "to measure"
    )


def _not_that_loader(asked: int, drawn: list[LoaderUse]) -> str:
    """Return why the loader of ``--loader`` cannot be measured, or ""."""
    chosen = next((loader for loader in drawn if loader.ordinal == asked), None)
    if chosen is None:
        known = ", ".join(f"{loader.ordinal} at {loader.where}" for loader in drawn)
        return f"--loader {asked}: the script iterates {len(drawn)} loader(s): {known}"
    best = max(drawn, key=lambda loader: loader.credits)
    if best.credits <= chosen.credits:
        return ""
    return (
        f"--loader {asked}: hardly any optimizer step follows a batch of the loader at {chosen.where}; "
        f"the one that trains is --loader {best.ordinal}, at {best.where}"
    )


def trains_on_other_batches(outcome: Outcome) -> bool:
    """Return whether a script trains on batches that no DataLoader has given it."""
    story = outcome.story
    unfed = not outcome.drawn or (story.target is None and not _may_be_fed(outcome))
    return story.optimizer_steps > 0 and unfed


def _may_be_fed(outcome: Outcome) -> bool:
    """Return whether the loaders may have given what the optimizer stepped for."""
    # Several optimizers may step for each batch, and the latest batch may not be trained on yet.
    every_batch = any(0 < loader.credits >= loader.draws - 1 for loader in outcome.drawn)
    return every_batch or outcome.story.optimizer_steps <= max((loader.credits for loader in outcome.drawn), default=0)


def _no_training_loader(outcome: Outcome) -> str:
    """Return why no loader is known to train although an optimizer stepped, or "" if that needs no explanation."""
    steps, drawn, few = outcome.story.optimizer_steps, outcome.drawn, _may_be_fed(outcome)
    if not steps or (few and outcome.stopped):
        return ""
    if few:
        return f"your script ended after {steps} optimizer step(s), too few to measure; let it train for more batches"
    return (
        f"the optimizer stepped {steps} times, but hardly ever right after a batch from a loader "
        f"({', '.join(loader.where for loader in drawn)}): batches kept in memory need no loader. "
        "If other batches are loaded, iterate their loader in the training loop"
    )
