"""Many trainings side by side, as the rows of one tensor.

`networks` says what the rows are, and sums the clipped gradients of all runs at once; `sampling` draws batches, coins
and noise, and puts the canary where a coin says so; `blocks` keeps finished blocks of runs and shares the others among
devices; `train` takes the steps of a block, and scores what was trained.
"""
