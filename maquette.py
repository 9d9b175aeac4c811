"""The command `maquette`: binds the command lines of the packages together and maps errors to exit codes.

Exit codes: 0 done, 1 the check or run failed, 2 the user's input is wrong, 130 interrupted. An exception
that is none of these is a mistake in Maquette and keeps its traceback.
"""

import os
import sys
from importlib import import_module
from importlib.metadata import version

import typer

from experiments.configuration import InputError
from experiments.orphans import stop_with_parent
from experiments.preloaded import run_preloaded
from experiments.telemetry import telemetry_off

COMMAND_LINES = (
    "experiments.cli",
    "experiments.study_cli",
    "replicas.cli",
    "replicas.data.cli",
    "logs.cli",
    "analysis.cli",
)
"""Modules with a `typer.Typer` called `app`; they import torch, pandas and the like inside functions only."""


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"maquette {version('maquette-lm')}")
        raise typer.Exit


def _options(
    _version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Scale models of openly trained language models, their curves laid over the public ones."""


def command_line() -> typer.Typer:
    """The whole command line: the `app` of each package, its commands at the top level."""
    app = typer.Typer(
        name="maquette",
        callback=_options,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    for module in COMMAND_LINES:
        app.add_typer(import_module(module).app)
    return app


def _is_first_process() -> bool:
    """False in all but the first of the processes that torchrun or Slurm started: all find the same mistake."""
    return (os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or "0") == "0"


def main() -> None:
    """Entry point of the `maquette` command."""
    telemetry_off()
    stop_with_parent()
    try:
        if (code := run_preloaded()) is not None:
            raise SystemExit(code)
        command_line()()
    except InputError as error:
        if _is_first_process():
            print(f"maquette: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
