"""Runs the suite: `python -m audit.suites.explainers --help`."""

from ...shared.run import finish
from .suite import main

finish(main)
