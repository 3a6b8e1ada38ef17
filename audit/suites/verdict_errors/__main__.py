"""Runs the suite: `python -m audit.suites.verdict_errors --help`."""

from ...shared.run import finish
from .suite import main

finish(main)
