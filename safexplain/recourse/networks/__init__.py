"""Recourse of networks, found by search and verified by their own scores.

`search` runs several searches of each query on a `score`. `boundary_search` finds the nearest point of the features
that move continuously, by exact steps on the linearised score; `discrete_search` chooses whole numbers and categories
and improves the choice. What is returned reaches the target and keeps every constraint."""
