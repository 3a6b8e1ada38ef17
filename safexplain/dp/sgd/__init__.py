"""DP-SGD of whole networks.

`finetune` (`DPFineTuner`) is what users call. `plan` turns a budget into steps and noise, `config` holds the other
choices, `records` the data. Then, step by step: `sampling` draws a Poisson batch, `steps` computes and `clipping`
bounds the gradient of each example, `optimizers` adds the noise (drawn by `sampling`) and moves the weights, and
`train_loop` repeats that, with a `checkpoint` now and then. Loops of one's own train with Opacus; `opacus_engine` says
what they guarantee.
"""
