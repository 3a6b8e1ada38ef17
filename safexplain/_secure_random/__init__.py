"""Random numbers that nobody can predict, for the noise and the batches that a privacy guarantee rests on.

`generators` makes them from the operating system's bits, `discrete_laplace` draws noise in whole numbers exactly.
"""
