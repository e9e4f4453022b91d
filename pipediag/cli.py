"""The command line: the options of every command, and the one place that catches errors.

The work of a command is in its own module in :mod:`pipediag.commands`, imported when the command runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ._version import __version__
from .errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, PipediagError, UsageError

if TYPE_CHECKING:
    from .host.passes import Request

_SCRIPT = {"ignore_unknown_options": True, "allow_interspersed_args": False}


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="pipediag")
def cli() -> None:
    """Find out where a GPU's wait for data originates.

    Start with:  pipediag demo
    Then:        pipediag analyze train.py --your-own --arguments
    """


_Command = Callable[..., int]
_Decorator = Callable[[_Command], _Command]


def _all(*options: _Decorator) -> _Decorator:
    """Options that stand together, in the order in which ``--help`` shows them."""

    def decorate(function: _Command) -> _Command:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def _checked(context: click.Context, option: click.Parameter, paths: tuple[str, ...]) -> tuple[str, ...]:
    """Check the files to write before anything is measured."""
    from .report import check_output

    for path in paths:
        check_output(path)
    return paths


def _output(help: str) -> _Decorator:
    return click.option("-o", "--output", "outputs", multiple=True, metavar="FILE", callback=_checked, help=help)


def _seconds(name: str, default: float, help: str) -> _Decorator:
    return click.option(name, type=click.FloatRange(min=1), default=default, show_default=True, help=help)


def _gate(help: str, default: float | None = None) -> _Decorator:
    return click.option("--fail-over", type=click.FloatRange(0, 100), metavar="PCT", default=default,
                        show_default=default is not None, help=help)  # fmt: skip


def _measuring(default_budget: float, gate: float | None = None) -> _Decorator:
    """The options of every command that measures one script; ``gate`` is the default of ``--fail-over``."""
    return _all(
        _output("Write a report too; .json, .md or .txt. Repeatable."),
        _seconds("--budget", default_budget, "Seconds to measure for, from the first batch on."),
        _gate("Exit with 3 when input certainly costs more than PCT percent of a step.", gate),
    )


def _rung_names(context: click.Context, option: click.Parameter, text: str | None) -> list[str] | None:
    from .session import RUNG_MEANING, ordered

    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in RUNG_MEANING]
    if unknown or not names:
        raise UsageError(f"--rungs: {', '.join(unknown) or 'none given'}; known: {', '.join(RUNG_MEANING)}")
    return ordered(names)


def _requesting(function: _Command) -> _Command:
    """Give the command one :class:`Request` in place of the options that describe the measurement."""

    @wraps(function)
    def command(
        script: str,
        args: tuple[str, ...],
        module: bool,
        budget: float,
        loader: int | None,
        workdir: str | None,
        rungs: list[str] | None = None,
        apply: bool = False,
        apply_budget: float = 0.0,
        **others: Any,
    ) -> int:
        from .host.passes import Request
        from .host.script import Target

        if workdir is not None and not module:
            script = str(Path(script).resolve())  # in whatever folder it will run
        target = Target(script, list(args), module)
        return function(Request(target, budget, loader, workdir, rungs, apply_budget if apply else 0.0), **others)

    return command


_DECODES = "decode JPEGs on the GPU too, within one level of the CPU's pixels."
_module = click.option("-m", "module", is_flag=True, help="SCRIPT is a module's name, as in python -m.")
_rungs = click.option("--rungs", metavar="NAMES", callback=_rung_names,
                      help="Measure only these rungs, separated by commas.")  # fmt: skip
_script = _all(click.argument("script"), click.argument("args", nargs=-1, type=click.UNPROCESSED))
_hosted = _all(
    _module,
    click.option("--loader", type=click.IntRange(min=1), help="The N-th loader iterated, not the one that trains."),
    click.option("--workdir", type=click.Path(exists=True, file_okay=False),
                 help="Run the script in this directory; one that is refused there is repeated in a folder inside it."),
    _script,
    _requesting,
)  # fmt: skip


@cli.command(context_settings=_SCRIPT)
@_measuring(120.0)
@_rungs
@click.option("--apply", is_flag=True, help="Then move the transforms to the device, and measure whether that pays.")
@_seconds("--apply-budget", 60.0, "Seconds to measure that for, beside the budget.")
@click.option("--approximate", is_flag=True, help=f"With --apply: {_DECODES}")
@click.option("--plan", metavar="FILE", help="With --apply: if it pays, write what pipediag run --plan FILE needs.")
@click.option("--no-knobs", is_flag=True, help="Do not try other settings of the loader once the ladder is known.")
@click.option("--profile", metavar="FILE", help="Then record some steps, fed from the device, as a Chrome trace.")
@_hosted
def analyze(
    request: Request,
    approximate: bool,
    plan: str | None,
    no_knobs: bool,
    profile: str | None,
    outputs: tuple[str, ...],
    fail_over: float | None,
) -> int:
    """Run an unmodified training SCRIPT and say which stage of its input pipeline costs the time.

    Options of pipediag stand before SCRIPT; everything after it is the script's.
    """
    from .commands import analyze as command

    request.knobs, request.approximate = not no_knobs, approximate
    if profile is not None:
        request.profile = str(Path(profile).resolve())
    return command.analyze(request, outputs, fail_over, plan)


@cli.command(context_settings=_SCRIPT)
@_measuring(60.0, gate=5.0)
@_hosted
def audit(request: Request, outputs: tuple[str, ...], fail_over: float) -> int:
    """Check the input pipeline of an unmodified training SCRIPT, before tuning it or a long run.

    Each item of the checklist is passed, failed, or unmeasurable for a reason. Options of pipediag stand before SCRIPT;
    everything after it is the script's.
    """
    from .commands import audit as command

    return command.audit(request, outputs, fail_over)


@cli.command(context_settings=_SCRIPT)
@click.option(
    "--vary",
    "varied",
    multiple=True,
    required=True,
    metavar="NAME=VALUES",
    help="An argument of the script and its values, as in --vary=--batch-size=16,32. Repeat it for a grid.",
)
@_output("Write the table too; repeatable.")
@_seconds("--budget", 60.0, "Seconds to measure each run for.")
@_rungs
@click.option("--apply", is_flag=True, help="Measure each with its transforms moved to the device, too.")
@_seconds("--apply-budget", 30.0, "Seconds to measure that for in each run.")
@_hosted
def sweep(request: Request, varied: tuple[str, ...], outputs: tuple[str, ...]) -> int:
    """Analyse SCRIPT once for each value of some of its arguments, and give one table.

    An argument that stands among the script's is replaced, another one is added. Ctrl-C keeps what was measured.
    """
    from .commands import sweep as command

    return command.sweep(request, varied, outputs)


@cli.command(context_settings=_SCRIPT)
@click.option("--plan", metavar="FILE", help="What analyze --apply --plan FILE has measured to pay.")
@click.option("--approximate", is_flag=True, help=f"Without a plan: {_DECODES}")
@_module
@_script
def run(script: str, args: tuple[str, ...], module: bool, plan: str | None, approximate: bool) -> int:
    """Run an unmodified training SCRIPT to its end, with its transforms moved to the device.

    Nothing is measured. Without a plan, what can be moved is tried and certified first. On any doubt the script goes on
    with its plain loader, and a line on standard error says so.
    """
    from .commands import run as command
    from .host.script import Target

    command.run(Target(script, list(args), module), plan, approximate)


@cli.command()
@_measuring(40.0)
def demo(outputs: tuple[str, ...], budget: float, fail_over: float | None) -> int:
    """Analyse a built-in script with a planted bottleneck; a laptop's CPU will do."""
    from .commands import demo as command

    return command.demo(budget, outputs, fail_over)


@cli.command()
@click.argument("session")
@_output("Write it to a file; repeatable.")
def report(session: str, outputs: tuple[str, ...]) -> int:
    """Show a saved SESSION (a .json written with -o) again, or convert it."""
    from .commands import report as command

    return command.report(session, outputs)


@cli.command()
@click.argument("before")
@click.argument("after")
@_output("Write it to a file; repeatable.")
@_gate("Exit with 3 when the loop certainly makes over PCT percent fewer steps a second than before.")
def compare(before: str, after: str, outputs: tuple[str, ...], fail_over: float | None) -> int:
    """Hold the saved session AFTER against BEFORE: what changed, and whether it is more than chance."""
    from .commands import compare as command

    return command.compare(before, after, outputs, fail_over)


def main() -> None:
    """Entry point: turns results and errors into exit codes."""
    try:
        code = cli.main(standalone_mode=False)
    except click.exceptions.Exit as leaving:
        code = leaving.exit_code
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = EXIT_INTERRUPTED
    except PipediagError as error:
        click.echo(f"pipediag: {error}", err=True)
        code = error.exit_code
    except BrokenPipeError:  # the reader of our output has left
        code = EXIT_FAILED
    sys.exit(code or EXIT_OK)
