"""Likelihood ratios: is what was released more like models that saw the example, or like those that did not?

`moments` has means and spreads of the reference signals and the scale on which Gaussians are fitted. From these,
`ratio` scores one number or independent ones (and labels, and densities pooled over all examples), `joint` several that
vary together; `leave_one_out` scores every reference model as if it were the target, in one pass.
"""
