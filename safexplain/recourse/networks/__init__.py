"""Recourse of networks, found by search and verified by their own scores.

`search` runs several searches for each query on a `score`. `boundary_search` finds the nearest point in continuous
features, by exact steps on the linearised score; `discrete_search` chooses whole numbers and categories and improves
the choice. All answers reach the target and satisfy the constraints."""
