"""Cheapest recourse as a mixed-integer program, solved by HiGHS: any constraint and cost, with a bound that proves it.

`mixed_integer` puts a program together and hands it to HiGHS, `curves` bound what a change of one column costs by
straight lines, `moves` are the variables of a change and its constraints, and `solve` goes through the queries.
"""
