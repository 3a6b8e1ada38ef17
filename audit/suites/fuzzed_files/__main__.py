"""Runs the suite: `python -m audit.suites.red_team --help`."""

from ...shared.run import finish
from .suite import main

finish(main)
