"""Models that give a gradient for every single example.

`prepare` copies a model and changes it: `parameters` chooses what trains (with low-rank `adapters` if asked for),
`replacements` stand in for layers that mix examples or have no rule, `layer_rules` are the rules that Opacus lacks or
has wrong, and `checks` lists what is left, read from the modules, and then tries model and loss on a few rows.
`replacements.restore` is the way back to plain torch.
"""
