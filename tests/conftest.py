"""Fixtures of all tests, which keep tests of one process apart. Torch must not be imported here."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Before torch is imported, here and in what tests start: the cores are for processes.
os.environ["OMP_NUM_THREADS"] = "1"
# As in an activated environment: tests start ``python`` and ``torchrun`` by name.
os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]

import pytest
from hypothesis import settings

from pipediag import marker, patches
from pipediag.host.passes import Request
from pipediag.measure.machine import environment
from pipediag.session import Session

settings.register_profile("quick", derandomize=True, deadline=None, max_examples=25)
settings.register_profile("thorough", derandomize=True, deadline=None, max_examples=200)

Main = Callable[..., tuple[int, str, str]]
Analyzed = Callable[[Session], list[Request]]


#: More processes than these take memory and share a GPU, and save little time: the longest files set the pace.
MOST_PROCESSES = 4


def processes(config: pytest.Config) -> int:
    """Return one a core, as more would disturb tests of throughput; none for a single file, a GPU or a debugger."""
    chosen = {argument.partition("::")[0] for argument in config.args}
    if (len(chosen) == 1 and chosen.pop().endswith(".py")) or config.option.markexpr == "gpu" or config.option.usepdb:
        return 0
    return max(1, min(int(environment()["cores"]), MOST_PROCESSES))


def pytest_configure(config: pytest.Config) -> None:
    """Draw few examples where slow tests are left out. Test modules are imported later."""
    settings.load_profile("quick" if config.option.markexpr == "not slow" else "thorough")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Spread the tests over processes, file by file, if pytest-xdist is installed and ``-n`` is not given."""
    option = config.option
    if not config.pluginmanager.hasplugin("xdist") or hasattr(config, "workerinput"):
        return
    if option.numprocesses is None:
        option.numprocesses = processes(config)
    if option.numprocesses and option.dist == "no":
        option.dist, option.loadscopereorder = "loadfile", False


@pytest.hookimpl(tryfirst=True)  # before tests are left out by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put tests of whole scripts first: short ones then fill the gaps at the end.

    Of a test with several parameters, cases that bring no new value of any of them run with the slow tests.
    """
    items.sort(key=lambda item: "integration" not in item.path.parts)
    for item in items:
        assert not (lacks := missing_fixtures(item)), f"{item.nodeid}: no fixture {lacks}"
    tests: dict[str, list[tuple[set[Any], pytest.Item]]] = {}
    for item in items:
        if hasattr(item, "callspec") and not any(item.iter_markers("gpu")) and not any(item.iter_markers("slow")):
            tests.setdefault(item.nodeid.partition("[")[0], []).append((values(item, item.callspec.params), item))
    for cases in tests.values():
        for item in repeating(cases):
            item.add_marker(pytest.mark.slow)


def missing_fixtures(item: pytest.Item) -> set[str]:
    """Return the fixtures that a test asks for and that do not exist: pytest does not tell of a skipped test."""
    if not isinstance(item, pytest.Function):
        return set()
    info = item._fixtureinfo
    params = item.callspec.params.keys() if hasattr(item, "callspec") else set()
    return {*info.argnames} - {*info.name2fixturedefs} - {*params, "request"}


def values(item: pytest.Item, params: dict[str, Any]) -> set[Any]:
    """Return what a case has of each ``parametrize``, and of each fixture with parameters."""
    told = [mark.args[0] for mark in item.iter_markers("parametrize")]
    names = [[one.strip() for one in names.split(",")] if isinstance(names, str) else [*names] for names in told]
    names += [[one] for one in params.keys() - {one for group in names for one in group}]
    return {(*group, *(id(params[one]) for one in group)) for group in names}


def repeating(cases: list[tuple[set[Any], pytest.Item]]) -> list[pytest.Item]:
    """Return the cases that are left if, again and again, the one with the most new values is taken.

    Shuffled, as equal lists of values would meet value by value otherwise: each dtype with itself.
    """
    left, seen = random.Random(0).sample(cases, len(cases)), set[Any]()
    while left and not (best := max(left, key=lambda one: len(one[0] - seen)))[0] <= seen:
        seen |= best[0]
        left.remove(best)
    return [item for _, item in left]


def pytest_collection_finish() -> None:
    """Keep what was imported out of every later garbage collection, which a test may wait a second for otherwise."""
    gc.collect()
    gc.freeze()


def installed() -> list[Any]:
    """Return everything in this process that pipediag may hook; nothing of torch if torch is not loaded."""
    importers = [one for one in sys.meta_path if type(one).__module__.startswith("pipediag.")]  # torch adds its own
    hooked = [importers, marker.recorder, threading.excepthook]
    if "torch.utils.data.dataloader" not in sys.modules:
        return hooked
    import torch
    from torch.amp import GradScaler
    from torch.nn.modules import module
    from torch.optim import optimizer
    from torch.utils.data import dataloader

    native = dataloader.DataLoader._get_iterator
    assert native.__module__ == dataloader.__name__, f"{native} stands in for torch's own _get_iterator"
    of_optimizers = [optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks]
    hooks = [*of_optimizers, module._global_forward_pre_hooks]
    return [*hooked, native, torch.save, GradScaler.step, torch.autograd.backward, *map(dict, hooks)]


@pytest.fixture(scope="session", autouse=True)
def nothing_in_the_home_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the results of tests, and of all that they start, out of the user's cache."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """Allow Ctrl-C: a shell lets background processes ignore it, and their children inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def nothing_left_installed() -> Iterator[None]:
    """Fail a test that leaves a patch or hook behind."""
    before = installed()
    yield
    assert patches.LIVE == []
    assert installed()[: len(before)] == before


#: Seconds in which workers have to end before torch ends them. Those of an iterator that an error keeps do not end.
ENDING = 0.5


@pytest.fixture(autouse=True)
def torch_as_it_was() -> Iterator[None]:
    """Reset torch's seed and its counts of compilations, which tests of one process share."""
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.manual_seed(0)
        sys.modules["torch.utils.data._utils"].MP_STATUS_CHECK_INTERVAL = ENDING  # type: ignore[attr-defined]
    yield
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is not None:
        dynamo.counters.clear()


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Main:
    """Run the command line in this process: exit code, standard output, standard error."""
    from pipediag.cli import main as entry

    def run(*argv: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["pipediag", *map(str, argv)])
        with pytest.raises(SystemExit) as leaving:
            entry()
        shown = capsys.readouterr()
        code = leaving.value.code
        assert isinstance(code, int)
        return code, shown.out, shown.err

    return run


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """An empty script."""
    file = tmp_path / "train.py"
    file.touch()
    return file


@pytest.fixture
def analyzed(monkeypatch: pytest.MonkeyPatch) -> Analyzed:
    """Let the measurement return a given session at once, and collect the requests."""
    requests: list[Request] = []

    def prepare(session: Session) -> list[Request]:
        def analyze_script(request: Request, progress: Any) -> Session:
            requests.append(request)
            return session

        monkeypatch.setattr("pipediag.host.passes.analyze_script", analyze_script)
        return requests

    return prepare
