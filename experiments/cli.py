"""Commands that run and check the whole study: `repro` and `doctor`."""

from pathlib import Path

import typer

app = typer.Typer()


@app.command()
def repro(
    profile: str | None = typer.Option(
        None, help="Write this profile into params.yaml first: laptop, smoke, gpu or cluster."
    ),
    jobs: int | None = typer.Option(
        None, min=1, help="Training stages side by side; one per CPU core unless given."
    ),
) -> None:
    """Bring the whole study up to date, independent training stages side by side."""
    from experiments.pipeline import find_study, reproduce, set_profile

    study = find_study(Path.cwd())
    if profile is not None:
        set_profile(study, profile)
    raise typer.Exit(reproduce(study, jobs))


@app.command()
def doctor(
    json: bool = typer.Option(False, "--json", help="Print one JSON document instead of a table."),
) -> None:
    """Check what this machine can run; exit 1 if something the laptop profile needs is missing."""
    from experiments.doctor import examine, print_checks

    checks = examine(Path.cwd())
    print_checks(checks, as_json=json)
    raise typer.Exit(0 if all(check.state != "problem" for check in checks) else 1)
