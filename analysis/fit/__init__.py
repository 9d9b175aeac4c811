"""Fits of scaling laws: points in, estimate with intervals out, then predictions, optima and plots."""

from analysis.fit.estimate import Fit, describe, estimate, fit_law
from analysis.fit.points import ladder_points, table_points

__all__ = ["Fit", "describe", "estimate", "fit_law", "ladder_points", "table_points"]
