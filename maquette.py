"""The command `maquette`: binds the command lines of the packages together and maps errors to exit codes.

Exit codes: 0 done, 1 the check or run failed or the disk is full, 2 the user's input is wrong, 130 interrupted.
An exception that is none of these is a mistake in Maquette and keeps its traceback.

Nothing that takes a while to import is imported before `main` is there to be interrupted.
"""

import os
import sys

TYPE_CHECKING = False  # as in `typing`, whose import takes a while
if TYPE_CHECKING:
    from types import FrameType

    import typer

COMMAND_LINES = (
    "experiments.cli",
    "experiments.study_cli",
    "replicas.cli",
    "replicas.data.cli",
    "logs.cli",
    "analysis.cli",
)
"""Modules with a `typer.Typer` called `app`; they import torch, pandas and the like inside functions only."""


def command_line() -> "typer.Typer":
    """The whole command line: the `app` of each package, its commands at the top level."""
    from importlib import import_module

    import typer

    app = typer.Typer(
        name="maquette",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )

    @app.callback()
    def options(
        _version: bool = typer.Option(
            False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ) -> None:
        """Scale models of openly trained language models, their curves laid over the public ones."""

    for module in COMMAND_LINES:
        app.add_typer(import_module(module).app)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        import typer

        print(f"maquette {version('maquette-lm')}")
        raise typer.Exit


def _is_first_process() -> bool:
    """False in all but the first of the processes that torchrun or Slurm started: all find the same mistake."""
    return (os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or "0") == "0"


def main() -> None:
    """Entry point of the `maquette` command."""
    try:
        import signal

        # also where it was ignored, as under a script's `maquette ... &`: who signals it means it
        signal.signal(signal.SIGINT, _interrupt)
        _run()
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _interrupt(_number: int, frame: "FrameType | None") -> None:
    """Raise KeyboardInterrupt; in the middle of an import, where nothing is at work yet, end at once instead.

    There some libraries take the exception for a missing feature: they swallow it or fail over something else.
    """
    while frame is not None:
        if frame.f_globals.get("__name__") == "importlib._bootstrap":
            os._exit(130)
        frame = frame.f_back
    raise KeyboardInterrupt


def _run() -> None:
    import errno

    from experiments.configuration import InputError
    from experiments.orphans import stop_with_parent
    from experiments.preloaded import run_preloaded
    from experiments.telemetry import telemetry_off

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
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS):
            raise
        where = f"{error.filename}: " if error.filename else ""
        print(
            f"maquette: {where}{error.strerror}; see to that disk and run the same command again",
            file=sys.stderr,
        )
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
