"""Runs the suite: `python -m audit.suites.fuzzed_files --help`."""

from ...shared.run import finish
from .suite import main

finish(main)
