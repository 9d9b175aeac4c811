"""The command line of this package: from stored runs to numbers and the page."""

import typer

from analysis.commands.ablate import ablate
from analysis.commands.compare import compare
from analysis.commands.diagnose import diagnose
from analysis.commands.fit import fit
from analysis.commands.forecast import forecast
from analysis.commands.mix import mix
from analysis.commands.preregister import preregister
from analysis.commands.report import report
from analysis.commands.score import score

app = typer.Typer()
for command in (diagnose, compare, fit, ablate, mix, forecast, preregister, score, report):
    app.command()(command)
