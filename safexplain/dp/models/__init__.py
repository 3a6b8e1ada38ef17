"""Models with a gradient for every single sample.

`prepare` copies a model and changes the copy: `parameters` selects what trains (`adapters` adds low-rank ones),
`replacements` replaces layers that mix samples or have no rule, and `layer_rules` adds rules that Opacus lacks or has
wrong. `checks` refuses what remains unsupported, first by its modules and then by running model and loss on a few rows.
`replacements.restore` converts a trained model back to plain torch.
"""
