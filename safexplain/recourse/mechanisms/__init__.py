"""Which score an answer may be made from, so that it is differentially private.

`mechanism` has the parameters and checks that all share. `dp_model` trains a private model once, or takes one
(`private_model`), and answers from it, any number of times. Where that is not possible, each answer pays:
`laplace_score` bounds what a record may change the score by, `laplace` draws the noise, on integers. `metered` charges
answers to a ledger.
"""
