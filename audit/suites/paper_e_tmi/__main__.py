"""Runs the suite: `python -m audit.suites.paper_e_tmi --help`."""

from ...shared.run import finish
from .suite import main

finish(main)
