"""What canaries found about a training's epsilon, as a certificate carries it. No torch.

`claim` holds the claim, the canaries and the base class of findings; `result` counts errors in the scores of both data
sets, computes the bound and reads findings back; `white_box` holds the checks of a training's steps.
"""
