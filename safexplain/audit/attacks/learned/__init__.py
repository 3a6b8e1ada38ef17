"""A classifier of whole attribution maps, trained on those of reference models.

`attack` draws the maps that may be trained on, weighs them and trains, keeping the epoch that does best on held-out
reference models; `classifier` is what it trains: maps at unit size, their size and shape in a few numbers, a network.
"""
