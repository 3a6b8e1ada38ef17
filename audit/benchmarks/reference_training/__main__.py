"""Runs the benchmark: `python -m audit.benchmarks.reference_training --help`."""

from ...shared.run import finish
from .suite import main

finish(main)
