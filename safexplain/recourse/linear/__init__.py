"""Exact recourse of a linear score: the cheapest change that raises w.x + b to the target.

`solve` reads the queries. Without limits the answer is a formula; within limits, continuous columns fill in order of
their price, and whole numbers and one-hot groups are a knapsack (`choices`). Constraints on several features at once go
to a mixed-integer program (`program`, solved by HiGHS in `mixed_integer`).
"""
