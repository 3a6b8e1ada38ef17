"""Runs the suite: `python -m audit.suites.cifar10_resnet18 --help`."""

from ...shared.run import finish
from .suite import main

finish(main)
