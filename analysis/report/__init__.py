"""The report: one self-contained HTML page with interactive figures, and the same figures as PNGs."""
