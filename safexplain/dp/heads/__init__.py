"""DP-SGD of a linear head on a frozen backbone, in closed form.

`features` computes the head's inputs once. `closed_form` trains one head or many at once by a `HeadRecipe`: clipping
them needs no gradient of a single example. `finetune_head` joins both for `DPFineTuner`.
"""
