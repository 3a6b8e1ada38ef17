"""Reference ("shadow") models, trained like the target on random halves of one pool.

recipe (how) -> training (by recipe or estimator) -> cache (finished models on disk) -> shadows (members of each model)
"""
