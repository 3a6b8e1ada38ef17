"""Runs the suite: `python -m audit.suites.third_party --help`."""

from ...shared.run import finish
from .suite import main

finish(main)
