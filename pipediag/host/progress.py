"""Show the progress on standard error: one changing line on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TextIO

from ..analysis.remedy import DECODING, HAND_OFF, remedy_of
from ..analysis.sentences import number, so_far
from ..analysis.trials import under_way
from ..report.terminal import columns, printable, shown_by
from ..session import DECODED, HANDED_OVER, LOADED_ONCE, REMEDIED, REMEDIES, Loader, Rung, Session, settings_of
from ..session.events import Applying, FirstBatch, Looking, Pass, Progress, Tick, Trying
from .standard_streams import put

if TYPE_CHECKING:
    from .passes import Request

_TRYING = {
    DECODED: "testing on samples what can move to the device, with JPEGs decoded there too",
    REMEDIED: "testing on samples which transforms can move to the device",
    LOADED_ONCE: "testing on samples what is the same in every epoch",
    HANDED_OVER: "trying the hand-off alone",
}

_RUNS = "running the script"
#: Seconds between plain lines, and between changes of the line on a terminal.
_EVERY, _EVERY_LIVE = 10.0, 1.0


def duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def really_runs(request: Request) -> str:
    """Return what the user must know before a script is measured."""
    where = f" in {request.workdir}" if request.workdir is not None else ""
    return f"it really runs{where}, several times if it is short, and writes its files"


def opening(request: Request) -> str:
    """Return what will happen to a script that is measured alone, and how long it can take."""
    longest = duration(request.budget + request.apply) + " and a profile" * bool(request.profile)
    return f"{_RUNS}: {really_runs(request)}; measuring takes {longest} at most, plus its own start-up"


class ProgressLine:
    """The progress display: the present activity, the share of the time used, and the best answer so far.

    Args:
        seconds: maximum time for measuring, from the first batch on; 0 if unknown.
        quiet: show nothing.

    Attributes:
        first_words: what to say when the script begins to run.
    """

    def __init__(self, stream: TextIO, seconds: float = 0.0, quiet: bool = False) -> None:
        self.first_words = _RUNS
        self._stream = stream
        self._live = stream.isatty()
        self._quiet = quiet
        self._seconds = seconds
        self._began = self._said = self._drawn = time.monotonic()
        self._first_batch: float | None = None
        self._doing = ""
        self._answer = ""
        self._shown = False

    def __call__(self, event: object, session: Session) -> None:
        match event:
            case Tick():
                self._refresh(_EVERY_LIVE)
            case Pass(number, why):
                self._began = time.monotonic()
                self._begin(why or self.first_words, f"the script is starting{f' (run {number})' * (number > 1)}")
            case FirstBatch():
                self._first_batch = self._first_batch or time.monotonic()
                self._doing = "waiting for the training loop's first steps"
            case Loader():
                place = f"training loader at {event.where}: {event.dataset}, {event.num_workers} workers"
                self._begin(f"{place}; measuring", "measuring")
            case Progress(rung, round_):
                self._step(rung, round_, session)
            case Applying(ended="", budget=budget) if budget:
                self._begin(f"{_remedy(session)}; measuring whether it pays", "measuring whether the remedy pays")
            case Applying(rung=rung):
                self._begin(_TRYING[rung])
            case Trying():
                self._begin("after the ladder: trying other loader settings")
            case Looking(at) if at:
                self._begin(f"after the ladder: recording {at}")
            case Rung(available=False, exists=True):
                self._say(f"{_named(event.name, session)}: {event.why_not}")

    def _begin(self, text: str, doing: str = "") -> None:
        """Print what begins now; ``doing`` is its short form for the lines that follow."""
        self._doing = doing or text
        self._say(text)

    def _step(self, rung: str, round_: int, session: Session) -> None:
        self._doing = f"round {round_}, {_named(rung, session)}{_estimate(session)}"
        seen = so_far(session) if round_ > 0 else ""
        if seen and not self._answer:
            self._say(seen)
        self._answer = seen
        self._refresh(0.0)

    def _refresh(self, every: float) -> None:
        """Show the present activity; on a terminal at most once in ``every`` seconds."""
        now = time.monotonic()
        if self._live and now - self._drawn >= every:
            self._drawn = now
            line = shown_by(printable(f"pipediag: {self._line(now)}"), self._stream)
            self._put("\r\x1b[K" + line[: columns(self._stream) - 1])
            self._shown = not self._quiet
        elif not self._live and now - self._said >= _EVERY:
            self._say(self._line(now))

    def _line(self, now: float) -> str:
        if self._first_batch is None or not self._seconds:
            text = f"{self._doing}, {now - self._began:.0f} s so far"
        else:
            used = min(self._seconds, now - self._first_batch)
            share = f"{100 * used / self._seconds:.0f} % of the time used"
            text = f"{share}, {self._seconds - used:.0f} s left at most: {self._doing}"
        return f"{text}; {self._answer}" if self._answer else text

    def _say(self, text: str) -> None:
        self.clear()
        self._said = time.monotonic()
        self._put(f"pipediag: {printable(text)}\n")

    def _put(self, text: str) -> None:
        if not self._quiet:
            put(text, self._stream)

    def clear(self) -> None:
        """Remove the live line before other output."""
        if self._shown:
            self._put("\r\x1b[K")
            self._shown = False


def _named(rung: str, session: Session) -> str:
    """Return the name of a rung for readers: the settings for a rung that tries some."""
    number = settings_of(rung)
    return rung if number is None or session.knobs is None else session.knobs.tried[number - 1].written


def _remedy(session: Session) -> str:
    """Return what the remedy under way does as text."""
    rung = under_way(session) or HANDED_OVER
    remedy = remedy_of(session, rung)
    if rung == HANDED_OVER or remedy is None:
        return HAND_OFF
    if remedy.keeping is not None and not remedy.moved:
        return f"samples are loaded once ({remedy.keeping.what})"
    also = [DECODING] if rung == DECODED else ["samples are loaded once"] if rung == LOADED_ONCE else []
    return f"moved to the device: {', '.join([*also, *remedy.moved_names])}"


def _estimate(session: Session) -> str:
    """Return the known speeds of baseline, ceiling and remedies as text."""
    latest = {w.rung: 1000.0 / w.ms_per_step for w in session.windows}
    parts = [f"{name} {number(latest[name])}" for name in ("baseline", "device", *REMEDIES) if name in latest]
    return f" ({', '.join(parts)} steps/s)" if parts else ""
