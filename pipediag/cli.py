"""The command line: the options of every command, and the one place that catches errors.

The work of a command is in a module of :mod:`pipediag.commands`, imported when the command runs.
"""

from __future__ import annotations

import math
import os
import shlex
import sys
from collections.abc import Callable
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ._version import __version__
from .errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, PipediagError, UsageError
from .host.standard_streams import open_closed, put

if TYPE_CHECKING:
    from .commands.results import Results
    from .host.passes import Request

_FILE = click.Path()
_SCRIPT = {"ignore_unknown_options": True, "allow_interspersed_args": False}
_GROUPS = {
    "Measure a training script": ("demo", "analyze", "audit", "sweep"),
    "Look at a training that runs": ("watch",),
    "Train with what was found": ("run",),
    "Use saved results": ("report", "compare"),
}


class _Commands(click.Group):
    """The commands, shown in groups with their whole first sentence."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in _GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, (self.commands[name].help or "").partition("\n")[0]) for name in names])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options before the command; say where those of a script belong that is given without one."""
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption:
            if written := _as_meant(self.commands["analyze"], given):
                raise UsageError(f"{given[0]} stands before a command. To analyse a script: {written}") from None
            raise

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Return the command that is named; say what was meant if there is none."""
        name = args[0]
        if self.get_command(ctx, name) is not None or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        if _is_script(name):
            raise UsageError(f"{name} is no command. To analyse it: {shlex.join(['pipediag', 'analyze', *args])}")
        near = get_close_matches(name, self.commands, 1)
        hint = f". Did you mean {near[0]}?" if near else f"; known: {', '.join(self.commands)}"
        raise UsageError(f"no such command: {name}{hint}")


def _options(command: click.Command) -> dict[str, click.Option]:
    return {name: one for one in command.params if isinstance(one, click.Option) for name in one.opts}


def _is_script(word: str) -> bool:
    return word.endswith(".py") or os.path.isfile(word)


def _as_meant(command: click.Command, words: list[str]) -> str:
    """Return the line with the script's options, which stand before it, behind it; empty if no script is named."""
    rest, ours, theirs = list(words), list[str](), list[str]()
    while rest and not _is_script(rest[0]):
        word = rest.pop(0)
        option = _options(command).get(word.partition("=")[0])
        (ours if option is not None else theirs).append(word)
        if option is not None and not option.is_flag and "=" not in word and rest:
            ours.append(rest.pop(0))
    return shlex.join(["pipediag", str(command.name), *ours, rest[0], *theirs, *rest[1:]]) if rest else ""


def _check_options(script: str) -> None:
    """Check that SCRIPT is none of the unknown options, which are let through as the script's own.

    Raises:
        UsageError: it is one; the message names the option that was meant, or where the script's options belong.
    """
    context = click.get_current_context()
    if not script.startswith("-") or os.path.exists(script):
        return
    command = str(context.info_name)
    near = get_close_matches(script.partition("=")[0], _options(context.command), 1, 0.75)
    hint = f". Did you mean {near[0]}?" if near else ""
    words = sys.argv[sys.argv.index(command) + 1 :]
    if written := _as_meant(context.command, words):
        whose = next(word for word in words if _is_script(word))
        hint += f"{'' if near else '.'} If it is one of {whose}'s, write: {written}"
    raise UsageError(f"no such option: {script}{hint or ' (put options before the script; see --help)'}")


@click.group(
    cls=_Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Defaults come from [tool.pipediag] in the pyproject.toml of the working directory or a folder above it: "
    "budget = 60 for all commands, or for one of them under [tool.pipediag.analyze]. "
    'To complete options with the Tab key, put eval "$(_PIPEDIAG_COMPLETE=bash_source pipediag)" into ~/.bashrc, or '
    "the same with zsh_source into ~/.zshrc.",
)
@click.version_option(__version__, prog_name="pipediag")
@click.pass_context
def cli(context: click.Context) -> None:
    """Find why a GPU waits for data in a training script, and what to change.

    pipediag runs your unmodified script, feeds its running loop from caches at one point of the input pipeline after
    another, and times the loop each time. Its own options stand before the script, the script's after it.

    \b
    Start with:  pipediag demo
    Then:        pipediag analyze train.py --your-own --arguments
    Before CI:   pipediag audit -o audit.html train.py
    """
    from .commands.defaults import defaults
    from .commands.results import say

    if context.invoked_subcommand is None:
        click.echo(context.get_help())
        return
    try:
        folder = Path.cwd()
    except OSError:
        raise UsageError("the working directory was removed: change to one that exists") from None
    context.default_map = defaults(cli, folder, context.invoked_subcommand, say)


_Command = Callable[..., int]
_Decorator = Callable[[_Command], _Command]


def _all(*options: _Decorator) -> _Decorator:
    """Combine options into one decorator; ``--help`` shows them in this order."""

    def decorate(function: _Command) -> _Command:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


class _Number(click.FloatRange):
    """A finite number in a range: NaN passes the comparisons of click's own type."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = float(super().convert(value, param, ctx))
        except OverflowError:  # a whole number of a file
            number = math.inf
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


def _delivering(function: _Command) -> _Command:
    """Give the command one :class:`Results` instead of the options that say where its report goes."""

    @wraps(function)
    def command(
        *given: Any,
        outputs: tuple[str, ...],
        json: bool,
        redact: bool,
        quiet: bool,
        verbose: bool,
        no_save: bool = True,
        **others: Any,
    ) -> int:
        from .commands.results import Results
        from .report import STANDARD_OUTPUT

        files = [path for path in outputs if path != STANDARD_OUTPUT]
        results = Results(files, json or len(files) < len(outputs), verbose - quiet, redact=redact, save=not no_save)
        return function(*given, results=results, **others)

    return command


def _results(help: str, of_a_diagnosis: bool = False) -> _Decorator:
    """The options that say where the report goes."""

    def checked(context: click.Context, option: click.Parameter, paths: tuple[str, ...]) -> tuple[str, ...]:
        from .report import check_output

        for path in paths:
            check_output(path, of_a_diagnosis)
        return paths

    endings = ".json, .md, .txt, .html" + ", or .json.gz for a timeline" * of_a_diagnosis
    return _all(
        click.option("-o", "--output", "outputs", multiple=True, metavar="FILE", callback=checked, type=_FILE,
                     help=f"{help} ({endings}); repeatable. - prints JSON."),
        click.option("--json", is_flag=True, help="Print JSON instead of the report, as -o - does."),
        click.option("--redact", is_flag=True,
                     help="Leave the script's argument values, folders, host names and lines of code out of reports."),
        click.option("-q", "--quiet", is_flag=True, help="Print only the answer, in one line, and no progress."),
        click.option("-v", "--verbose", is_flag=True, help="Print the whole report instead of one screen."),
        _delivering,
    )  # fmt: skip


def _file(name: str, help: str, metavar: str = "FILE") -> _Decorator:
    return click.option(name, type=_FILE, metavar=metavar, help=help)


def _seconds(name: str, default: float, help: str) -> _Decorator:
    return click.option(name, type=_Number(min=1), default=default, show_default=True, help=help)


def _gate(help: str, default: float | None = None) -> _Decorator:
    return click.option("--fail-over", type=_Number(0, 100), metavar="PCT", default=default,
                        show_default=default is not None, help=help)  # fmt: skip


def _measuring(default_budget: float, gate: float | None = None, of_a_diagnosis: bool = True) -> _Decorator:
    """The options of every command that measures one script; ``gate`` is the default of ``--fail-over``."""
    return _all(
        _results("Also write a report to this file", of_a_diagnosis),
        _seconds("--budget", default_budget, "Seconds for measuring, from the first batch on."),
        _gate("Exit with code 3 if the input certainly costs more than PCT percent of a step.", gate),
        click.option("--no-save", is_flag=True, help="Do not keep the result for pipediag report and compare."),
    )


def _remedy(default_budget: float) -> _Decorator:
    return _all(
        click.option("--apply", is_flag=True, help="Then move the transforms to the device, and measure the gain."),
        _seconds("--apply-budget", default_budget, "Seconds for preparing and measuring the remedy, beyond --budget."),
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
    """Give the command one :class:`Request` instead of the options that describe the measurement."""

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
        approximate: bool = False,
        no_knobs: bool = True,
        profile: str | None = None,
        **others: Any,
    ) -> int:
        from .host.passes import Request
        from .host.script import Target

        _check_options(script)
        target = Target.named(script, list(args), module)
        if workdir is not None:
            target = target.absolute()
        seconds = apply_budget if apply else 0.0
        trace = "" if profile is None else str(Path(profile).resolve())
        knobs = not no_knobs
        request = Request(target, budget, loader, workdir, rungs, seconds, approximate, profile=trace, knobs=knobs)
        return function(request, **others)

    return command


_DECODES = "also decode JPEGs on the GPU. Tests found the same pixels as on the CPU; that is not proven."
_price = click.option("--price", type=_Number(0, 1e9, min_open=True), metavar="PER_HOUR",
                      help="Price of one machine hour, in any currency, to say what changes save.")  # fmt: skip
_rungs = click.option("--rungs", metavar="NAMES", callback=_rung_names,
                      help="Measure only these rungs, separated by commas.")  # fmt: skip
_script = _all(
    click.option("-m", "module", is_flag=True, help="SCRIPT is a module's name, as in python -m."),
    click.argument("script", type=_FILE),
    click.argument("args", nargs=-1, type=click.UNPROCESSED),
)
_hosted = _all(
    click.option("--loader", type=click.IntRange(min=1), help="Measure SCRIPT's N-th loader, not the one that trains."),
    click.option("--workdir", type=click.Path(exists=True, file_okay=False),
                 help="Run the script in this directory; a pass that cannot run there again gets a folder inside it."),
    _script,
    _requesting,
)  # fmt: skip


@cli.command(context_settings=_SCRIPT)
@_measuring(120.0)
@_rungs
@_remedy(90.0)
@click.option("--approximate", is_flag=True, help=f"With --apply: {_DECODES}")
@_file("--plan", "With --apply: write the plan for pipediag run if the remedy pays.")
@click.option("--no-knobs", is_flag=True, help="Do not try other loader settings after the ladder.")
@_file("--profile", "Then record some steps on device batches as a Chrome trace.")
@_price
@_hosted
def analyze(request: Request, plan: str | None, results: Results, fail_over: float | None, price: float | None) -> int:
    """Find the stage of SCRIPT's input pipeline that costs time.

    SCRIPT is an unmodified training script, or a command that launches one, as in: pipediag analyze torchrun
    --nproc-per-node 4 train.py. Put pipediag's options before it; everything after it goes to the script.
    """
    from .commands import analyze as command

    return command.analyze(request, results, fail_over, plan, price)


@cli.command(context_settings=_SCRIPT)
@_measuring(60.0, gate=5.0, of_a_diagnosis=False)
@_price
@_hosted
def audit(request: Request, results: Results, fail_over: float, price: float | None) -> int:
    """Check SCRIPT's input pipeline before tuning or a long run.

    Each item of the checklist passes, fails, stays open, was not measured, or does not apply, for a stated reason. The
    exit code is 3 if one fails. SCRIPT is an unmodified training script. Put pipediag's options before it; everything
    after it goes to the script.
    """
    from .commands import analyze as command

    return command.audit(request, results, fail_over, price)


@cli.command(context_settings=_SCRIPT)
@click.option("--vary", "varied", multiple=True, required=True, metavar="NAME=VALUES",
              help="A script argument and its values, as in --vary=--batch-size=16,32. Repeat for a grid.")  # fmt: skip
@_results("Also write the table to this file")
@_seconds("--budget", 60.0, "Seconds for measuring each run.")
@_rungs
@_remedy(30.0)
@_hosted
def sweep(request: Request, varied: tuple[str, ...], results: Results) -> int:
    """Analyse SCRIPT for several values of its arguments.

    The result is one table. A value replaces the script's own, or is added if the script has none. Ctrl-C keeps what
    was measured.
    """
    from .commands import sweep as command

    return command.sweep(request, varied, results)


@cli.command(context_settings=_SCRIPT)
@_file("--plan", "The plan written by analyze --apply --plan FILE.")
@click.option("--approximate", is_flag=True, help=f"Without a plan: {_DECODES}")
@_file("--cache-dir", "Keep what library calls read and decode in a file in DIR, for later runs too.", "DIR")
@_script
def run(
    script: str, args: tuple[str, ...], module: bool, plan: str | None, approximate: bool, cache_dir: str | None
) -> int:
    """Run SCRIPT to its end with its transforms moved to the device.

    SCRIPT is an unmodified training script. Nothing is measured. Without a plan, pipediag first tests and certifies
    which transforms can move. On any doubt the script continues with its plain loader, and a line on standard error
    says so.
    """
    from .commands import run as command
    from .host.script import Target

    _check_options(script)
    command.run(Target.named(script, list(args), module), plan, approximate, cache_dir)


@cli.command()
@click.argument("pid", type=click.IntRange(min=1), required=False)
@click.option("--all", "every", is_flag=True, help="Watch all trainings of this user, one after another.")
@_seconds("--seconds", 20.0, "Seconds to watch.")
@click.option("--live", is_flag=True, help="Draw the screen again every few seconds, until Ctrl-C.")
@_results("Also write a report to this file")
def watch(pid: int | None, every: bool, seconds: float, live: bool, results: Results) -> int:
    """See whether a training that already runs waits for data.

    The training process PID is not touched: its stacks are read from outside. Without PID, the only training of this
    user is watched, or several are listed to choose from.
    """
    from .commands import watch as command

    return command.watch(pid, every, seconds, live, results)


@cli.command()
@_measuring(40.0)
def demo(results: Results, budget: float, fail_over: float | None) -> int:
    """Analyse a built-in script; no GPU is needed."""
    from .commands import analyze as command

    return command.demo(budget, results, fail_over)


@cli.command()
@click.argument("session", type=_FILE, required=False)
@_results("Write it to this file instead", of_a_diagnosis=True)
@click.option("--diff", is_flag=True, help="Print only the change to the script that a measured gain offers.")
@_price
def report(session: str | None, results: Results, diff: bool, price: float | None) -> int:
    """Show or convert the last analysis or a saved one.

    Without SESSION, a .json written with -o, it is the last analysis that was started in this folder.
    """
    from .commands import report as command

    return command.report(session, results, price, diff)


@cli.command()
@click.argument("before", type=_FILE, required=False)
@click.argument("after", type=_FILE, required=False)
@_results("Write it to this file instead")
@_gate("Exit with code 3 if the loop certainly makes over PCT percent fewer steps/s than before.")
def compare(before: str | None, after: str | None, results: Results, fail_over: float | None) -> int:
    """Compare the last two analyses of a script, or saved ones.

    BEFORE and AFTER are .json files written with -o. Without them, the last two analyses of one script that were
    started in this folder are compared; with BEFORE alone, the last analysis is compared with it. The comparison says
    what changed, and whether it is more than chance.
    """
    from .commands import report as command

    return command.compare(before, after, results, fail_over)


def main() -> None:
    """Run the command line; turn results and errors into exit codes."""
    open_closed()
    try:
        code = cli.main(prog_name="pipediag", standalone_mode=False)
    except click.exceptions.Exit as leaving:
        code = leaving.exit_code
    except click.ClickException as error:
        place = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "pipediag"
        code = _failed(f"{error.format_message()} See: {place} --help", error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        code = EXIT_INTERRUPTED
    except PipediagError as error:
        code = _failed(str(error), error.exit_code)
    except OSError as error:  # such as a full disk
        where = f"{error.filename}: " if error.filename else ""
        code = _failed(f"{where}{error.strerror or error}", EXIT_FAILED)
    put("", sys.stdout)  # flush: Python would print an error of its own if that failed at its end
    sys.exit(code or EXIT_OK)


def _failed(message: str, code: int) -> int:
    from .commands.results import say

    say(message)
    return code
