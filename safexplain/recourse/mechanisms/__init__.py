"""Mechanisms: scores from which answers are differentially private.

`dp_model` answers from a private model any number of times, `laplace_score` adds noise to each, `metered` charges them.
"""
