"""The tables on the pages of docs/evidence, made from audit/results/*.json."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from ..benchmarks import tables as benchmark_tables
from ..benchmarks.peers import tables as peer_tables
from ..shared.run import markdown
from ..suites.attack_table import tables as attack_tables
from ..suites.bound_errors import tables as bound_tables
from ..suites.broken_trainers import tables as trainer_tables
from ..suites.fuzzed_files import tables as fuzz_tables
from ..suites.paper_b_recourse import tables as recourse_tables
from ..suites.paper_c_canaries import tables as canary_tables
from ..suites.releases import tables as release_tables

Table = Callable[[dict[str, Any]], str]
"""Makes a table from a result."""

SUITES = Path(__file__).parents[1] / "suites"
HEAD = r"---\n((?:\w+: .*\n)+)---\n"
"""Head of the `page.md` of a suite that is found by it: title, shows, needs and time, a line each."""


def red_team(found: dict[str, Any]) -> str:
    """Each attack on verdicts, noise and files, before and now."""
    rows = [(r["attack"], r["before"], r["after"]) for r in found["results"]["attacks"]]
    return markdown(("attack", "version 0.1", "now"), rows, left=3)


def pages_with_head() -> list[Path]:
    """Each `page.md` that begins with a head."""
    return [path for path in sorted(SUITES.glob("*/page.md")) if re.match(HEAD, path.read_text())]


def _of_suites() -> Iterator[tuple[str, tuple[str, Table]]]:
    """The tables of every suite that has `TABLES` in its `tables.py`, or in the `__main__.py` of a single file."""
    for page in sorted(SUITES.glob("*/page.md")):
        single = page in pages_with_head() and not (page.parent / "tables.py").is_file()
        if single or (page.parent / "tables.py").is_file():
            module = import_module(f"audit.suites.{page.parent.name}.{'__main__' if single else 'tables'}")
            yield from ((name, (page.parent.name, make)) for name, make in getattr(module, "TABLES", {}).items())


TABLES: dict[str, tuple[str, Table]] = {
    **dict(_of_suites()),
    **{f"attack_table: {name}": ("attack_table", getattr(attack_tables, name)) for name in ("scores", "changes")},
    "red_team": ("red_team", red_team),
    "fuzzed_files": ("fuzzed_files", fuzz_tables.fuzzed_files),
    "bound_errors": ("bound_errors", bound_tables.bound_errors),
    **{name: ("canary_power", make) for name, make in bound_tables.TABLES.items()},
    "broken_trainers": ("broken_trainers", trainer_tables.broken_trainers),
    "broken_trainers: right": ("broken_trainers", trainer_tables.right_trainers),
    "canary_figure3": ("canary_figure3", canary_tables.on_data),
    "canary_scratch": ("canary_scratch", canary_tables.on_data),
    "canary_training": ("canary_training", canary_tables.training),
    **benchmark_tables.TABLES,
    **{name: ("frozen/peers", make) for name, make in peer_tables.TABLES.items()},
    "releases: order": ("releases_order", release_tables.order),
    **{name: ("recourse_evidence", make) for name, make in recourse_tables.TABLES.items()},
    "recourse: networks": ("recourse_networks", recourse_tables.networks),
}
"""Name in the prose of a page -> its result, and the function that makes the table from it."""
