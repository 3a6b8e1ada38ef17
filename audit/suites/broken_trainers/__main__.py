"""Runs the suite: `python -m audit.suites.broken_trainers --help`."""

from ...shared.run import finish
from .suite import main

finish(main)
