"""Benchmarks of ledgers: how fast they are, and what is left after processes were killed."""
