"""Reference ("shadow") models, trained like the target on random halves of one pool.

shadows (who trains on what, what is missing) -> training (by recipe or estimator) -> cache (finished models on disk)
"""
