"""What the suites on recourse share: their command line, and what is read from the attacks of a cell."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...shared.run import Parts, Unusable, parser
from .tasks import Plan


def asked(
    suite: str,
    doc: str | None,
    full: Mapping[str, Plan],
    quick: Mapping[str, Plan],
    models: str,
    argv: Sequence[str] | None,
) -> tuple[Namespace, dict[str, Plan], Parts]:
    """Options, the tasks that were asked for, and what is kept of earlier runs.

    Args:
        suite: name.
        doc: for the help.
        full: tasks.
        quick: those of a quick run.
        models: how many are trained by default, in words.
        argv: arguments; None: those of the process.

    Raises:
        Unusable: a task that there is not.
    """
    p = parser(suite, doc)
    p.add_argument("--task", action="append", help="only these tasks (repeat); default: all")
    p.add_argument("--models", type=int, help=f"models a condition (default: {models}, by task)")
    options = p.parse_args(argv)
    plans = quick if options.quick else full
    names = options.task or list(plans)
    if unknown := [name for name in names if name not in plans]:
        raise Unusable(f"unknown tasks {unknown}; known are {list(plans)}")
    chosen = {n: replace(plans[n], models=options.models) if options.models else plans[n] for n in names}
    return options, chosen, Parts(options.cache / suite, __package__)


def strongest(found: dict[str, Any]) -> dict[str, Any]:
    """The attack of a cell with the highest AUC."""
    return max(found["attacks"], key=lambda a: float(a["auc"]))


def biased(title: str, found: dict[str, Any]) -> list[str]:
    """Attacks of a cell that find members where nothing was trained on them, in words."""
    return [
        f"{title}: {a['attack']} on {a['signal']} finds members in the null"
        for a in found["attacks"]
        if abs(a.get("null_auc", 0.5) - 0.5) > 0.05
    ]
