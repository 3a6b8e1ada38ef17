"""Anybody's training function, called once for each run; `probe` is what the user calls."""
