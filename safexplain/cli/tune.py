"""`safexplain tune`: search for the release that leaks least and keeps most, and audit the one that is chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from safexplain.cli.console import option
from safexplain.cli.options import Options, asks

SEARCH = "Search"
"""Heading of the options of the search."""


@asks
def tune_command(
    given: Options,
    trials: Annotated[int, option("N", "Releases to try.", SEARCH, min=1)] = 100,
    public: Annotated[
        Path | None, option("FILE", "Public examples (x, y); models trained only on these are the comparison.", SEARCH)
    ] = None,
) -> int:
    """Search for the release that leaks least and keeps most utility, then audit the chosen one."""
    from safexplain.cli.run.tune import run_tune

    return run_tune(given, trials, public)
