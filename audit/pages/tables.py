"""The tables and lists of results on the pages of docs/evidence, made from audit/results/*.json."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..benchmarks import tables as benchmark_tables
from ..benchmarks.peers import tables as peer_tables
from ..shared.run import markdown
from ..suites.attack_table import tables as attack_tables
from ..suites.bound_errors import tables as bound_tables
from ..suites.broken_trainers import tables as trainer_tables
from ..suites.dithering import tables as dithering_tables
from ..suites.dp_attacks import tables as dp_tables
from ..suites.dp_defaults import tables as default_tables
from ..suites.explainers import tables as explainer_tables
from ..suites.fuzzed_files import tables as fuzz_tables
from ..suites.paper_a import tables as paper_a_tables
from ..suites.paper_b_recourse import tables as recourse_tables
from ..suites.paper_c_canaries import tables as canary_tables
from ..suites.paper_d import tables as paper_d_tables
from ..suites.paper_e_tmi import tables as tmi_tables
from ..suites.releases import tables as release_tables
from ..suites.verdict_errors import tables as verdict_tables


def red_team(found: dict[str, Any]) -> str:
    """Each attack on verdicts, noise and files, before and now."""
    rows = [(r["attack"], r["before"], r["after"]) for r in found["results"]["attacks"]]
    return markdown(("attack", "version 0.1", "now"), rows, left=3)


TABLES: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    **{name: ("explainers", make) for name, make in explainer_tables.TABLES.items()},
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
    **{name: ("paper_a", make) for name, make in paper_a_tables.TABLES.items()},
    **{name: ("dp_attacks", make) for name, make in dp_tables.TABLES.items()},
    **{name: ("dp_defaults", make) for name, make in default_tables.TABLES.items()},
    **{name: ("dithering", make) for name, make in dithering_tables.TABLES.items()},
    **{name: ("releases", make) for name, make in release_tables.TABLES.items()},
    "releases: order": ("releases_order", release_tables.order),
    **{name: ("paper_e_tmi", make) for name, make in tmi_tables.TABLES.items()},
    **{name: ("paper_d", make) for name, make in paper_d_tables.TABLES.items()},
    **{name: ("verdict_errors", make) for name, make in verdict_tables.TABLES.items()},
    **{name: ("recourse_evidence", make) for name, make in recourse_tables.TABLES.items()},
    "recourse: networks": ("recourse_networks", recourse_tables.networks),
}
"""Name in a page's prose -> (result, what makes the table from it)."""
