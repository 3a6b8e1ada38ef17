"""What canaries found about a training's epsilon, as a certificate carries it. No torch.

`claim` is what the training is said to keep, and against which canary it is audited; `finding` turns a lower bound
beside a claim into a verdict; `result` counts the errors in the scores of both data sets, computes the bound from them,
and reads back what was written.
"""
