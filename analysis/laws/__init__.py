"""Scaling laws. A law is one module of this folder with one `LAW`; adding the file is all it takes."""

from analysis.laws.law import Law, find, names

__all__ = ["Law", "find", "names"]
