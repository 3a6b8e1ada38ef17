"""Exact recourse of a linear score: the cheapest change that raises w.x + b to the target.

`solve` reads the queries. Without limits the answer is a formula; within limits continuous columns fill up in order of
their price (`water_filling`). Whole numbers and one-hot groups are a `knapsack`: a beam search, bounded from below by
the relaxation in `lagrangian`.
"""
