"""`safexplain tune`: search for the release that leaks least and keeps most, and audit the one that is chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from safexplain.cli.options import Question, asks

SEARCH = "Search"
"""Heading of the options of the search."""


@asks
def tune_command(
    question: Question,
    space: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Search space: default, or deepleak for DeepLeak's own.",
            rich_help_panel=SEARCH,
        ),
    ] = "default",
    trials: Annotated[int, typer.Option(min=1, metavar="N", help="Releases to try.", rich_help_panel=SEARCH)] = 100,
    public: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Public examples (x, y); models trained only on these are the comparison.",
            rich_help_panel=SEARCH,
        ),
    ] = None,
) -> int:
    """Search for the release that leaks least and keeps most utility, then audit the chosen one."""
    from safexplain.cli.run.tune import run_tune

    return run_tune(question, space, trials, public)
