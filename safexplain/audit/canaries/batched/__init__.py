"""Many trainings side by side, as the rows of one tensor.

`networks` says what the rows are, and sums the clipped gradients of all runs at once; `sampling` draws batches, coins
and noise, and puts the canary where a coin says so; `job` takes the steps of a block of runs; `block_store` keeps
finished blocks and shares the others among devices; `train` builds a job, runs it and scores what was trained.
"""
