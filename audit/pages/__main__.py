"""Writes the pages anew: `python -m audit.pages`."""

from .tables import main

main()
