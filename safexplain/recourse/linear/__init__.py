"""Exact recourse of a linear score: the cheapest change that raises w.x + b to the target.

`solve` answers by a formula or lists of `choices`; linked features go to an integer `program`, solved by HiGHS.
"""
