"""Runs the suite: `python -m audit.suites.paper_a --help`."""

from ...shared.run import finish
from .suite import main

finish(main)
