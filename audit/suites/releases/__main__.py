"""Runs the suite: `python -m audit.suites.releases --help`."""

from ...shared.run import finish
from .suite import main

finish(main)
