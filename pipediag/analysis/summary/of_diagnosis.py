"""Sum up a diagnosis: the answer, where the time goes, what to do, what to be careful of."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Sequence
from dataclasses import replace

from ...session import CACHED, DECODED, HANDED_OVER, LOADED_ONCE, HotLine, Place, Session, Watched
from ...session.events import UNMEASURABLE
from ...session.remedies import elsewhere
from ..amortised import with_amortised
from ..diagnosis import Diagnosis, Recommendation, Stage
from ..numbers.hot_lines import within
from ..numbers.intervals import Interval
from ..numbers.loop_and_workers import OF_THE_WORKERS
from ..thresholds import GATE, RESOLUTION
from ..trials.remedy import Outcome, best, commands_to_keep, outcomes, remedy_of, why_none
from ..trials.threads import outcome as fewer_threads
from ..verdict import OBSERVED, PROVEN, decided, draws_unseen
from ..waterfall import culprit, ranked, worker_parts
from ..words import STAGES, counted, few_of, job, loop_of, number, percent, span
from .parts import Action, Rate, StageCost, Summary, Tone, file, short, shortened, shorter_paths

#: Seconds for remedies that were left open for want of time.
_LONGER = "300"
#: Largest numbers of lines for stages, of actions and of notes.
_CAUSES, ACTIONS, _NOTES = 4, 3, 2
#: Maximum number of parts of the workers' work that are named, and the least share of their time.
_DONE, _MATTERS = 2, 0.15
#: The end of the built-in example's path.
_DEMO = os.path.join("pipediag", "demo", "train.py")
#: Share of a step from which on the rest of it is too little to estimate a rate from.
_ALL = 0.98
#: Warnings that a reader must know before anything else, the most important first.
_FIRST = (
    "script-failed",
    "later-pass-failed",
    "kept-batches",
    "hung",
    UNMEASURABLE,
    "elsewhere",
    "training-not-restored",
    "start-seen-once",
    "keeps-samples",
    "paused",
    "foreign-load",
    "tipping-over",
    "full-cpu",
    "more-workers-than-cores",
    "writes-in-place",
)


def of_diagnosis(diagnosis: Diagnosis) -> Summary:
    lines, rest = _where(diagnosis)
    actions, (careful, notes) = _actions(diagnosis), _careful(diagnosis)
    session, nothing = diagnosis.session, diagnosis.nothing_to_gain
    if not nothing and not actions and diagnosis.recommendations:
        smaller = counted(len(diagnosis.recommendations), "smaller one")
        nothing = f"No change alone gains more than {percent(GATE)}; the report has {smaller}."
    findings, why = [], why_none(session)
    if session.watched is not None:  # how long each rank waits, the longest first
        waits = [(o.wait_ms / o.step_ms, o.rank) for o in session.ranks if o.wait_ms is not None and o.step_ms]
        findings = [(f"rank {rank}", percent(share)) for share, rank in sorted(waits, reverse=True)]
    return replace(
        answer(diagnosis),
        subject=_subject(session),
        rates=_rates(diagnosis),
        holding=diagnosis.straggler.sentence if diagnosis.straggler else "",
        basis=_basis(diagnosis, [piece for line in lines for piece in line]),
        causes=[_line(diagnosis, line, lines) for line in lines],
        rest=rest,
        actions=actions,
        nothing_to_gain=nothing,
        tried=shorter_paths(session, f"--apply kept nothing: {why}") if why else "",
        next=_next(diagnosis, actions),
        careful=careful,
        notes=notes,
        unit="each step" if session.counts_steps else "each second",
        findings_title="Waits for data, by rank" if session.watched and session.ranks else "",
        findings=findings,
    )


def answer(diagnosis: Diagnosis) -> Summary:
    """Return the headline, its figures and how certain they are."""
    session = diagnosis.session
    verdict, starved, loop = diagnosis.verdict, _starved(diagnosis), loop_of(session)
    if starved is None:
        return Summary(f"Too little was seen to say what data costs your {loop}", tone="doubtful")
    cost = data_costs(diagnosis)
    if session.watched is not None:
        return _watched(diagnosis, starved, session.watched)
    if verdict.bottleneck == "inconclusive":
        why = ", ".join(filter(None, [span(starved), verdict.uncertain]))
        return Summary("It is open whether data costs time", f"{cost} of every step", why, "doubtful")
    how = f"not certain: {verdict.uncertain}" if verdict.uncertain else "certain"
    if verdict.level == OBSERVED:
        how = f"seen in {counted(session.steps_seen, 'step')}"
    elif verdict.bottleneck == "none" and decided(starved) is None:  # it hardly waits, but few windows tell
        how = f"not certain, but it waits for less than {percent(GATE)}"
    certain = ", ".join(filter(None, [span(starved), how]))
    if verdict.bottleneck == "none":
        return Summary(f"Your {loop} loses no time to data", f"{cost} of every step", certain, "good")
    tone: Tone = "bad" if verdict.band == "severe" else "doubtful"
    if verdict.bottleneck == "contention":
        return Summary(f"Workers slow your {loop} down", f"{cost} of every step", certain, tone)
    return Summary(f"Data costs your {loop} {cost} of every step", "", certain, tone)


def _watched(diagnosis: Diagnosis, starved: Interval, watched: Watched) -> Summary:
    """Return the answer about a loop that was only seen from outside: what it waits, not what data costs it."""
    session, found = diagnosis.session, diagnosis.verdict.bottleneck
    share = f"{data_costs(diagnosis)} of {'every step' if session.counts_steps else 'its time'}"
    certain = ", ".join(filter(None, [span(starved), f"observed from outside for {watched.seconds:g} s"]))
    if draws_unseen(session):
        why = f"it draws from no loader, generator or queue, observed from outside for {watched.seconds:g} s"
        return Summary("It is open whether your training waits for data", "", why, "doubtful")
    if found == "inconclusive":
        return Summary("It is open whether your training waits for data", share, certain, "doubtful")
    if found == "none":
        return Summary("Your training hardly waits for data", share, certain, "good")
    tone: Tone = "bad" if diagnosis.verdict.band == "severe" else "doubtful"
    return Summary(f"Your training waits for data {share}", "", certain, tone)


def data_costs(diagnosis: Diagnosis) -> str:
    """Return the share of a step that data costs as text; "?" if it is unknown."""
    starved = _starved(diagnosis)
    return percent(max(0.0, starved.value)) if starved is not None else "?"


def _starved(diagnosis: Diagnosis) -> Interval | None:
    """Return the share of a step that data costs, what it costs between the steps included."""
    starved = diagnosis.verdict.starved
    if starved is None:
        return None
    return with_amortised(starved, diagnosis.ladder.ms("baseline").value, diagnosis.between_steps)


def _subject(session: Session) -> str:
    """Return what was measured: script, data, ranks and device."""
    argv, loader, name = session.script.argv, session.loader, session.script.line
    if argv:
        name = argv[1] if argv[0] == "-m" and len(argv) > 1 else argv[0]
        if session.ranks and not argv[0].endswith(".py"):  # behind a launcher: what the ranks run, if clear
            name = next((word for word in argv[1:] if word.endswith(".py")), name)
        name = os.path.basename(name)
    parts = [name]
    if loader is not None and loader.plain_iterable:
        parts += [loader.dataset, "no DataLoader"]
    elif loader is not None:
        batch = [f"batches of {loader.batch_size}"] if loader.batch_size else []
        workers = counted(loader.num_workers, "worker") if loader.num_workers else "no workers"
        parts += [loader.dataset, *batch, workers]
    parts += filter(None, [job(session.ranks)])
    device = session.device.get("name") or session.device.get("type")
    return ", ".join([*parts, f"on {device if device != 'cpu' else 'the CPU'}"] if device else parts)


def _rates(diagnosis: Diagnosis) -> list[Rate]:
    """Return the loop's rate now, and the rate if data were free."""
    ladder = diagnosis.ladder
    if not ladder.has("baseline") or not diagnosis.session.counts_steps:
        return []
    step = ladder.ms("baseline").value + sum(cost.ms.value for cost in diagnosis.between_steps)
    now = Rate("now", 1000.0 / step)
    if ladder.intervened and ladder.ceiling in CACHED:
        possible = Rate("possible", 1000.0 / ladder.best.value, "if data were free")
    elif (starved := _starved(diagnosis)) is not None and starved.value < _ALL:
        possible = Rate("possible", now.steps_per_s / (1 - starved.value), "estimated")
    else:
        return [now]
    return [now, possible] if possible.steps_per_s > now.steps_per_s else [now]


def _where(diagnosis: Diagnosis) -> tuple[list[list[Stage]], list[StageCost]]:
    """Return the pieces of the input's cost that have lines of their own, and the rest by kind.

    The verdict's stage is first, then single pieces that certainly matter, the most expensive first. Other pieces of
    one stage are one kind. A kind that is larger than a line is one too, so that no part of the rest is.
    """
    if not diagnosis.verdict.finds_cost:
        return [], []
    verdict, between = diagnosis.verdict.bottleneck, diagnosis.between_steps
    left = 1.0 - sum(cost.share for cost in between)
    steps = (replace(piece, share=left * piece.share) for piece in diagnosis.waterfall if piece.stage != "compute")
    pieces = ranked([*steps, *between])  # in the steps and between them
    top = next(iter(diagnosis.amortised if verdict == "startup" else (p for p in pieces if p.stage == verdict)), None)
    lines, kinds = [], dict[str, list[Stage]]()
    for piece in pieces:
        if piece.share >= GATE and piece.ms.low > 0:
            lines.append([piece])
        elif piece.ms.value > 0:
            kinds.setdefault(piece.stage, []).append(piece)
    if top is not None and top in (kind := kinds.get(top.stage, [])):
        alone = 2 * top.ms.value > _ms(kind)
        kinds[top.stage] = [piece for piece in kind if alone and piece is not top]
        lines.append([top] if alone else kind)
    least = min(map(_ms, lines), default=math.inf)
    kinds = {stage: kind for stage, kind in kinds.items() if kind}
    lines += [kinds.pop(stage) for stage, kind in [*kinds.items()] if _ms(kind) > least]
    lines.sort(key=lambda line: (top not in line, -_ms(line)))
    lines, more = lines[:_CAUSES], lines[_CAUSES:]
    rest = [_line(diagnosis, line, lines) for line in sorted([*more, *kinds.values()], key=_ms, reverse=True)]
    tiny = [one for one in rest if one.share < RESOLUTION]
    if len(tiny) > 1:
        together = StageCost(
            f"{len(tiny)} other stages together", sum(one.ms for one in tiny), sum(one.share for one in tiny)
        )
        rest = [*(one for one in rest if one not in tiny), together]
    model = [piece for piece in diagnosis.waterfall if piece.stage == "compute" and diagnosis.ladder.intervened]
    return lines, [*rest, *(_line(diagnosis, [piece], []) for piece in model)]


def _ms(pieces: list[Stage]) -> float:
    return sum(piece.ms.value for piece in pieces)


def _line(diagnosis: Diagnosis, pieces: list[Stage], lines: list[list[Stage]]) -> StageCost:
    """Return one piece, or several of one kind, as a line. ``lines`` are those that have one of their own."""
    session, most, share = diagnosis.session, pieces[0], sum(piece.share for piece in pieces)
    if len(pieces) > 1:
        named = any(line[0].stage == most.stage and line is not pieces for line in lines)
        largest = f"most: {_name(most)} {number(most.ms.value)} ms"
        note = ", ".join(filter(None, [largest, _place(session, most)]))
        kind = {"load": "lines of loading", "collate": "lines of collating"}.get(most.stage, STAGES[most.stage])
        name = f"{len(pieces)} {'other ' * named}{kind} together"
        return StageCost(name, _ms(pieces), share, note=note)
    uncertain = most.ms.low <= 0 < most.ms.value
    note = f"{number(max(0.0, most.ms.low))} to {number(most.ms.high)} ms" if uncertain else ""
    if most.stage == "transform" and (line := _inside(diagnosis, most)) is not None:
        apart = most.culprit is None or line.where != most.culprit.where
        at = f", {short(session, line.where)}" if apart else ""
        note = "; ".join(filter(None, [note, f"most of it: {line.name}{at}"]))
    if most.stage == "contention":
        # What takes most of the workers' time, with its place unless a line shows it.
        works = ranked([part for part in worker_parts(diagnosis.ladder) if part.share >= _MATTERS])[:_DONE]
        shown, told = {_name(line[0]) for line in lines}, []
        for part in works:
            place = _place(session, part) if _name(part) not in shown else ""
            told.append(f"{_name(part)} {percent(part.share)}" + (f" ({place})" if place else ""))
        note = "; ".join(filter(None, [note, f"their work: {', '.join(told)}" if told else ""]))
    return StageCost(_name(most), most.ms.value, share, _place(session, most), note)


def _inside(diagnosis: Diagnosis, piece: Stage) -> HotLine | None:
    """Return the line at which a transform of the user's spends most of its time, if it is not the transform's own."""
    place, inside = piece.culprit, diagnosis.session.inside
    if place is None or inside is None or not inside.timed:
        return None
    links = [link for link in inside.links if (link.name, link.where) == (place.name, place.where)]
    for link in links:
        module = os.path.splitext(link.where.rpartition(":")[0])[0].replace(os.sep, ".")
        if link.origin not in ("", "__main__", "__mp_main__") and not module.endswith(link.origin):
            return None  # a library's: the place is where it is made
    if not links:
        return None
    share = sum(link.cost.wall_ms for link in links) / inside.whole.wall_ms
    others = {link.name for link in inside.links} - {place.name}
    return within(inside, place.name, others, share)


def _name(piece: Stage) -> str:
    if piece.links:
        return few_of(piece.links)
    return "loading and transforms" if piece.stage == "load" and "transform" in piece.covers else STAGES[piece.stage]


def _place(session: Session, piece: Stage) -> str:
    """Return the user's line for a piece; for code in a library, the line that makes it if known, and the library's.

    A stage that is torch's own is at the loader's line.
    """
    places = (piece.culprit, culprit(session, piece.stage), session.loader and Place("", session.loader.where))
    place = next((one for one in places if one and one.where), Place(""))
    return ", ".join(short(session, where) for where in (place.made, place.where) if where)


def _basis(diagnosis: Diagnosis, causes: list[Stage]) -> str:
    """Return how the causes are known; empty if there are none."""
    if not causes:
        return ""
    if not any(piece.stage in OF_THE_WORKERS for piece in causes):
        return "measured with cached batches" if diagnosis.ladder.intervened else "as timed in the loop"
    alone = diagnosis.session.loader is not None and not diagnosis.session.loader.num_workers
    basis = "timed in the code that makes batches" if alone else "split by the workers' time"
    if diagnosis.session.of_rank is not None:
        basis = f"rank {diagnosis.session.of_rank}, {basis}"
    return f"{basis}, proven by caching" if diagnosis.verdict.level == PROVEN else basis


def _actions(diagnosis: Diagnosis) -> list[Action]:
    """Return the remedy that pays as measured, then the recommendations with a gain above the gate or unknown."""
    session, kept = diagnosis.session, best(diagnosis.session)
    found = [_keep(session, kept)] if kept is not None and kept.applied else []
    worth = [one for one in diagnosis.recommendations if one.gain is None or one.gain.value >= 1 + GATE]
    worth.sort(key=lambda one: one.id == "more-cores")  # last: it costs money
    done = {"offload", *(["cache"] if kept is not None and kept.rung == LOADED_ONCE else [])} if found else set()
    return [*found, *(advice(session, one) for one in worth if one.id not in done)][:ACTIONS]


def _keep(session: Session, kept: Outcome) -> Action:
    """Return the action that keeps a remedy that pays."""
    remedy = remedy_of(session, kept.rung)
    assert remedy is not None and kept.speedup is not None, "it pays"
    if kept.rung == LOADED_ONCE:
        title = "Keep samples in memory after the first epoch" + (", move transforms" if remedy.moved else "")
    elif kept.rung == HANDED_OVER:
        title = "Hand batches over through re-used page-locked memory"
    elif kept.rung == DECODED:
        title = f"Decode JPEGs on the device, move {few_of(remedy.moved_names) or 'nothing else'} there"
    else:
        title = f"Move {few_of(remedy.moved_names) or 'transforms'} to the device"
    proof = remedy.proof
    equal = bool(remedy.moved) and proof is not None and proof.passed and not any(one.largest for one in proof.apart)
    apart = elsewhere(proof.elsewhere or []) if proof is not None else ""
    pixels = ", pixels equal" if equal and not apart else ""
    if apart and equal and proof is not None:
        apart = f"pixels equal on {counted(proof.samples, 'sample')}; {apart}"
    commands = (shortened(session, command) for command in commands_to_keep(remedy, kept, session.script))
    return Action(title, f"{number(kept.speedup.value)}x measured{pixels}", tuple(filter(None, (apart, *commands))))


def advice(session: Session, one: Recommendation) -> Action:
    """Return a recommendation as an action."""
    gain = ""
    if one.gain is not None:
        how = "measured" if one.measured else "at most" if one.at_most else "predicted"
        gain = f"{number(one.gain.value)}x {how}"
    argv = session.script.argv
    if one.id in ("offload", "cache") and one.measured is None and argv and not outcomes(session):
        return Action(one.title, gain, (f"to try it: {shortened(session, _trying(session))}",))
    if "--profile" in one.how and argv:
        command = _analyze(session, "--profile", "trace.json")
        return Action(one.title, gain, (f"to see what it consists of: {shortened(session, command)}",))
    how = one.how.splitlines()[0].split("; ")[0]
    where = session.loader.where if session.loader is not None else ""
    if where:
        how = how.replace(f"in the DataLoader that is iterated at {where}", f"in the DataLoader at {where}")
    return Action(one.title, gain, (shorter_paths(session, how),))


def _trying(session: Session) -> str:
    """Return the command that tries the remedies."""
    return _analyze(session, "--apply", "--plan", "plan.json")


def _analyze(session: Session, *options: str) -> str:
    """Return the command that measures the same script again, with more options."""
    return shlex.join(["pipediag", "analyze", *options, *session.script.options, *session.script.argv])


def _next(diagnosis: Diagnosis, actions: Sequence[Action]) -> str:
    """Return the next command to type, complete; empty if there is none, as of a loop in this process."""
    session, kept = diagnosis.session, best(diagnosis.session)
    script = session.script
    if not script.argv:
        return ""
    if session.watched is not None:
        command, folder = shlex.join(["pipediag", "analyze", *script.argv]), session.watched.folder
        return f"to prove it: {f'cd {shlex.quote(folder)} && {command}' if folder else command}"
    if script.argv[0].endswith(_DEMO):
        return "next, with your own script: pipediag analyze train.py --its --arguments"
    if kept is not None and kept.applied and (remedy := remedy_of(session, kept.rung)) is not None:
        return f"next: {commands_to_keep(remedy, kept, script)[0]}"
    if (trial := fewer_threads(session)) is not None and trial.pays:  # the other figures hold for too many threads
        return f"next, with what helped: OMP_NUM_THREADS={trial.threads} {_analyze(session)}"
    if diagnosis.verdict.bottleneck == "inconclusive":
        given = dict(zip(script.options[::2], script.options[1::2], strict=False))
        longer = {**given, "--budget": f"{2 * float(given.get('--budget', 120)):g}"}
        options = [word for option in longer.items() for word in option]
        return f"next, for an answer: {shlex.join(['pipediag', 'analyze', *options, *script.argv])}"
    if diagnosis.verdict.bottleneck != "none" and any(one.open for one in outcomes(session)):
        command = _analyze(session, "--apply", "--plan", "plan.json", "--apply-budget", _LONGER)
        return f"next, for an answer: {command}"
    if any(line.startswith("to try it: ") for action in actions for line in action.lines):
        return f"next: {_trying(session)}"
    return f"after a change: {_analyze(session)} && pipediag compare" if actions else ""


def _careful(diagnosis: Diagnosis) -> tuple[list[str], int]:
    """Return what to know before trusting the result, and the number of further notes."""
    warnings = [one for one in diagnosis.warnings if one.code != "wrote-files"]
    urgent = sorted((one for one in warnings if one.code in _FIRST), key=lambda one: _FIRST.index(one.code))[:_NOTES]
    script, told, ran = diagnosis.session.script, [one.message for one in urgent], list[str]()
    if script.argv and (script.passes > 1 or script.wrote):
        ran = [f"the script ran {'once' if script.passes < 2 else f'{script.passes} times'}"]
        made = [path for path in script.wrote if path not in script.overwrote]
        for verb, paths in (("overwrote", script.overwrote), ("wrote", made)):
            ran[0] += f" and {verb} {few_of(list(map(file, paths)))}" if paths else ""
    # The first is the last that a short screen keeps.
    return ran + told if script.overwrote else told + ran, len(warnings) - len(urgent)
