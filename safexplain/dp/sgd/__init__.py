"""DP-SGD of whole networks.

Users call `finetune` (`DPFineTuner`). In each step, `sampling` draws a Poisson batch and the noise, and `steps` bounds
the gradient of each example by `clipping`, adds the noise and updates the weights. `train_loop` repeats this.
"""
