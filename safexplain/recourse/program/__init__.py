"""Cheapest recourse as a mixed-integer program, solved by HiGHS: any constraint, with a bound that proves the answer.

`mixed_integer` puts a program together and hands it to HiGHS, `change` holds what one query may become and the
variables of its change, with what they cost and what constraints make of them, and `solve` finds the answer.
"""
