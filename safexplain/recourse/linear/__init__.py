"""Exact recourse of a linear score: the cheapest change that raises w.x + b to the target.

`solve` reads the queries. Without limits the answer is a formula; within limits continuous columns fill up in order of
their price (`water_filling`). Whole numbers and one-hot groups are a `knapsack`: lists of choices, as far as a bound
(`lagrangian`) leaves them open. What limits several features at once is left to `safexplain.recourse.program`.
"""
