"""What readers share: open anything, lines, rows, JSON and tables of values; no format in particular."""
