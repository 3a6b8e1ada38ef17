"""Which score an answer may be made from, so that it is differentially private, and what is promised of it.

`mechanism` has the parameters, the checks and the `Guarantee` that all share. `dp_model` trains a private model once
and answers from it, any number of times. Where that is not possible, each answer pays: `stable_score` bounds what a
record may change, `laplace` adds the noise on integers, `laplace_score` and `public_direction` release it. `metered`
charges answers to a ledger.
"""
