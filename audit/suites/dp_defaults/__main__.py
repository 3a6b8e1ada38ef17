"""Runs the suite: `python -m audit.suites.dp_defaults --help`."""

from ...shared.run import finish
from .suite import main

finish(main)
