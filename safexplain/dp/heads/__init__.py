"""DP-SGD of a linear head on a frozen backbone, in closed form.

`features` computes once what the backbone hands to the head, `recipe` says how a head is trained and draws its batches,
and `closed_form` trains one head or many runs at once: clipping needs no example's gradient. `finetune_head` does all
this for `DPFineTuner` where it can.
"""
