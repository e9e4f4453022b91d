"""Tell what other processes do to a step from what the script's own processes do to it.

A thread that is ready to run and finds no core waits for whatever runs there. The own workers cause as much of that as
they use CPU time themselves, if the kernel shares the cores among threads. If it shares them among groups of processes
(Linux does by session or container), they cause more: the training process and its workers divide the share of one
group, so a millisecond of a worker's CPU time costs the training thread a turn of the other groups, too. The rest is
foreign. So two windows can be compared although other processes left one of them alone: see :func:`foreign_ms`.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from ...session import Account, Session, Window

#: Other processes are reported if they use at least this share of the cores and at least this many cores.
FOREIGN, OTHERS = 0.1, 0.4
#: Share of the cores that a virtual machine's host may take away before the CPU times of windows do not compare.
STOLEN = 0.05
#: Largest share of a step that is taken for waiting for a core.
_MOST_QUEUED = 0.95


def foreign_ms(slow: Window, fast: Window) -> tuple[float, float] | None:
    """Return by how many milliseconds other processes lengthened a step of ``slow`` more than one of ``fast``.

    This is the growth of the run queue that the growth of the own processes' CPU time cannot explain, and at least what
    other processes used more of the CPU: the least, if the cores are shared among groups of processes, and the most, if
    they are shared among threads. Both are negative if ``fast`` was disturbed more. None if a window has no account.
    """
    if slow.account is None or fast.account is None:
        return None
    handed = held_up_ms(slow) - held_up_ms(fast)
    more = slow.account.queue_ms - fast.account.queue_ms + _beside_ms(slow.account, fast.account)
    if more <= 0:
        return more + handed, more + handed
    if fast.account.cpu_ms > 0:  # a thread that computes longer waits for a core more often under the same load
        computes = max(0.0, slow.account.cpu_ms - fast.account.cpu_ms)
        more -= min(more, computes * fast.account.queue_ms / fast.account.cpu_ms)
    before, during = foreign_cores(fast), foreign_cores(slow)
    grown = 0.0 if before is None or during is None else max(0.0, during - before) * slow.ms_per_step
    # CPU time of workers and side threads.
    threads = workers_cpu_ms(slow) - workers_cpu_ms(fast) + slow.account.threads_cpu_ms - fast.account.threads_cpu_ms
    threads = max(0.0, threads)
    part = 1.0 if during is None else slow.evidence["cores_used"] / max(0.01, slow.evidence["cores_busy"])
    groups = threads / max(0.01, min(1.0, part))
    least, most = (max(more - min(more, own), min(more, grown)) + handed for own in (groups, threads))
    return least, most


def _beside_ms(slow: Account, fast: Account) -> float:
    """Return by how many milliseconds a step grows because threads beside the training thread wait for a core.

    They wait at the same time as it does, so only its time on a CPU (it may spin) or blocked can have grown by that.
    """
    beside = slow.threads_queue_ms - fast.threads_queue_ms
    room = slow.cpu_ms + slow.other_ms - fast.cpu_ms - fast.other_ms
    return min(beside, max(0.0, room)) if beside > 0 else max(beside, min(0.0, room))


def held_up_ms(window: Window) -> float:
    """Return the milliseconds per step for which other processes held up the hand-off of batches that lay ready.

    Handing a batch over takes CPU time of both sides only. If other processes use the cores, what the loop is blocked
    beyond that is the worker's waiting for a core.
    """
    account, cores = window.account, foreign_cores(window)
    if account is None or cores is None or cores < OTHERS or "late_ms" not in window.evidence:
        return 0.0
    own = max(account.next_cpu_ms, window.evidence.get("sampler_ms", 0.0))  # the sampler computes, or waits itself
    return max(0.0, account.waits_ms - window.evidence["late_ms"] - own)


def workers_cpu_ms(window: Window) -> float:
    """Return the workers' CPU time in a step of a window; 0 if its batches come from a cache."""
    seen = window.evidence
    made = max(0.0, 1 + seen.get("stock", 0.0) / window.steps)
    return seen.get("worker_ms", 0.0) * seen.get("worker_cpu", 0.0) * made


def wait_ms(window: Window) -> float:
    """Return the milliseconds per step that a window's loop waited for a batch.

    What other processes add is left out: they hold up batches that lie ready, and a thread that wakes up when its batch
    has come may find no core.
    """
    waited, account = window.evidence.get("wait_ms", 0.0), window.account
    if account is None or "next_ms" not in window.evidence:
        return waited
    queued = window.evidence["next_ms"] - account.waits_ms - account.next_cpu_ms
    foreign = queued - workers_cpu_ms(window) - account.threads_cpu_ms
    return max(0.0, waited - max(0.0, min(foreign, account.queue_ms)) - held_up_ms(window))


def without_queueing(window: Window) -> tuple[float, float]:
    """Return the milliseconds of a step, and of its waiting for a batch, in which the thread did not wait for a core.

    In a loop without workers only other processes make it wait, in ``next()`` as in the rest of the step.
    """
    step, waited, account = window.ms_per_step, window.evidence.get("wait_ms", 0.0), window.account
    if account is None or "next_ms" not in window.evidence:
        return step, waited
    queue = min(account.queue_ms, _MOST_QUEUED * step)
    return step - queue, min(waited, account.waits_ms + account.next_cpu_ms)


def foreign_cores(window: Window) -> float | None:
    """Return the cores that other processes used during a window, of those this process may use; None if unknown."""
    seen = window.evidence
    if not {"cores_busy", "cores_used"} <= seen.keys():
        return None
    return max(0.0, seen["cores_busy"] - seen["cores_used"])


def worth_telling(session: Session) -> float:
    """Return the number of cores from which on other processes are worth a word; infinite if nothing can be said.

    Under a quota other processes do not take what this one may use.
    """
    if session.cores is None or session.environment.get("cgroup_quota"):
        return float("inf")
    return max(OTHERS, FOREIGN * session.cores)


def others(session: Session, windows: Iterable[Window]) -> float:
    """Return the cores that other processes used, the median of the windows; 0 if unknown."""
    found = [cores for window in windows if (cores := foreign_cores(window)) is not None]
    return statistics.median(found) if found and worth_telling(session) < float("inf") else 0.0


def stolen(windows: Iterable[Window], cores: float | None) -> bool:
    """Return whether the host of a virtual machine took so much that the CPU times of windows do not compare."""
    taken = [window.account.steal for window in windows if window.account is not None]
    return bool(taken and cores and max(taken) > STOLEN * cores)


def alike(windows: Sequence[Window], tolerance: float) -> list[Window]:
    """Return the windows of one rung without those under a load unlike the others', if at least two remain."""
    seen = [cores for window in windows if (cores := foreign_cores(window)) is not None]
    if len(windows) < 3 or len(seen) < len(windows):
        return list(windows)
    usual = statistics.median_low(seen)
    kept = [window for window, cores in zip(windows, seen, strict=True) if abs(cores - usual) <= tolerance]
    return kept if len(kept) > 1 else list(windows)


def mean_account(windows: Sequence[Window]) -> Account | None:
    """Return the average account of a step over all steps of the windows; None if a window has none."""
    accounts = [(window.steps, window.account) for window in windows if window.account is not None]
    if not accounts or len(accounts) < len(windows):
        return None
    steps = sum(count for count, _ in accounts)
    names = vars(accounts[0][1])
    return Account(**{name: round(sum(n * getattr(one, name) for n, one in accounts) / steps, 4) for name in names})
