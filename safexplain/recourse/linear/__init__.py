"""Exact recourse of a linear score: the cheapest change that raises w.x + b to the target."""
