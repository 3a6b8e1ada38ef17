"""What an audit keeps on disk while it runs.

`maps` reads whole maps of all models that do not fit in memory, a block at a time; `pieces` keeps what each finished
model released, so that an interrupted audit is taken up where it stopped. `collect` writes both, `Signals` holds the
maps, and the attacks read them.
"""
