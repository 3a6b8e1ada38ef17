"""Runs the benchmark: `python -m audit.benchmarks.noise --help`."""

import sys

from .suite import main

if __name__ == "__main__":
    sys.exit(main())
