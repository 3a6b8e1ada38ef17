"""DP-SGD of whole networks.

Users call `finetune` (`DPFineTuner`). `plan` turns a budget into steps and noise and holds the other options; `records`
holds the data. In each step, `sampling` draws a Poisson batch and the noise, `steps` computes the gradient of each
example, bounds it by `clipping`, adds the noise and updates the weights. `train_loop` repeats this and saves
checkpoints. For a training loop with Opacus, `opacus_engine` states the guarantee.
"""
