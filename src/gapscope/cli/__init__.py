"""Command line: one file per command, heavy packages imported on first use."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Iterable
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from gapscope.base.environment import version
from gapscope.base.errors import BudgetSpent, GapscopeError
from gapscope.cli import (
    advise,
    check,
    correct,
    data,
    demo,
    doctor,
    estimate,
    explain,
    forecast,
    gap,
    labels,
    leaderboard,
    learning_curve,
    listing,
    measure,
    out_of_sample,
    pool,
    report,
    study,
)
from gapscope.cli.options import NO_ANSWER
from gapscope.cli.output import print_json, print_lines, start_notes
from gapscope.cli.pipes import tolerate_closed_streams
from gapscope.cli.progress import handle_interrupts


class _Commands(TyperGroup):
    """All commands: one that is stopped says so, with status 130."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        with handle_interrupts(resumes=False):
            return super().invoke(ctx)


app = typer.Typer(
    name="gapscope",
    cls=_Commands,
    help="Find what limits a neural network, from its training data alone.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
)


def _show_version(value: bool) -> None:
    if value:
        print_lines(f"gapscope {version()}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Show the version."
    ),
) -> None:
    """Find what limits a neural network, from its training data alone."""
    start_notes()


app.command("demo")(demo.demo)
app.command("measure")(measure.measure)
app.command("compare")(measure.compare)
app.command("check")(check.check)
app.command("explain")(explain.explain)
app.command("labels")(labels.labels)
app.command("correct")(correct.correct)
app.command("forecast")(forecast.forecast)
app.command("out-of-sample")(out_of_sample.out_of_sample)
app.command("learning-curve")(learning_curve.learning_curve)
app.add_typer(listing.app, name="list")
app.add_typer(advise.app, name="advise")
app.add_typer(data.app, name="data")
app.add_typer(pool.app, name="pool")
app.command("estimate")(estimate.estimate)
app.add_typer(gap.app, name="gap")
app.command("leaderboard")(leaderboard.leaderboard)
app.add_typer(study.app, name="study")
app.command("report")(report.report)
app.command("doctor")(doctor.doctor)


def _handle_sigterm(number: int, frame: object) -> None:
    """Treat SIGTERM like Ctrl-C: end workers and keep finished runs."""
    raise KeyboardInterrupt


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, *rest: object
) -> None:
    """Print a warning as one line, without file and line number."""
    print_lines(f"note: {message}", err=True, color=typer.colors.YELLOW)


def _stop(message: str, notes: Iterable[str] = (), status: int = 1) -> NoReturn:
    """Exit after a message on standard error, and with --json an object that holds it."""
    print_lines(f"error: {message}", err=True, color=typer.colors.RED)
    for note in notes:
        print_lines(f"  ({note})", err=True)
    if "--json" in sys.argv:
        print_json({"error": message})
    sys.exit(status)


def main() -> None:
    """Run the command line. Errors of gapscope become one message and exit code 1, or 3 if the time was too short."""
    # Read when torch is imported: threads that wait sleep. Beside another process they else take most of the time (a
    # check of 600 rows on two cores: 15 s, not 5 s), and budgets count what they take.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    signal.signal(signal.SIGTERM, _handle_sigterm)
    warnings.showwarning = _show_warning
    tolerate_closed_streams()
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except GapscopeError as error:
        status = NO_ANSWER if isinstance(error, BudgetSpent) else 1
        _stop(str(error), getattr(error, "__notes__", ()), status)
    except OSError as error:
        # a path that the system refuses, such as one that is too long; anything else is a defect
        if not isinstance(error.filename, str):
            raise
        path = error.filename
        if len(path) > 60:
            path = f"{path[:60]}..."
        _stop(f"{path}: {error.strerror}. Pass another path.")
