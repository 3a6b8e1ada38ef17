"""Writes the pages anew: `python -m audit.pages`."""

from .pages import main

main()
