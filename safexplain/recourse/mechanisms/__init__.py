"""Mechanisms: scores from which answers are differentially private.

`mechanism` holds the shared parameters and checks. `dp_model` trains a private model once, or takes one
(`private_model`), and answers from it any number of times. Otherwise each answer spends budget: `laplace_score` bounds
the influence of a record on the score and adds noise to it. `metered` charges answers to a ledger.
"""
