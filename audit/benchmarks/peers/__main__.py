"""Runs the benchmark: `python -m audit.benchmarks.peers`."""

from ...shared.run import finish
from .suite import main

finish(main)
