"""Reference ("shadow") models, trained like the target on random halves of one pool."""
