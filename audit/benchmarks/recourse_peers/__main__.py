"""Runs the benchmark: `python -m audit.benchmarks.recourse_peers`."""

from ...shared.run import finish
from .suite import main

finish(main)
