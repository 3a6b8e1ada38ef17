"""Runs the suite: `python -m audit.benchmarks.audit_cost --help`."""

from ...shared.run import finish
from .suite import main

finish(main)
