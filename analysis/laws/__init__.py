"""Scaling laws. A law is one module of this folder with one `LAW`; adding the file is all it takes."""

from analysis.laws.law import AllocationLaw, Law, find, find_any, names

__all__ = ["AllocationLaw", "Law", "find", "find_any", "names"]
