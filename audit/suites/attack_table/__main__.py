"""Runs the suite: `python -m audit.suites.attack_table --help`."""

from ...shared.run import finish
from .suite import main

finish(main)
