"""`--rejudge`: bounds and verdicts of a result anew, from its counts; what a verdict says may have changed.

Nothing is trained. Counts, seconds and the paper's estimator stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safexplain.verdict.canaries.claim import Claim
from safexplain.verdict.canaries.result import CanaryResult, Errors, counted

from ...shared.run import Unusable, rounded, write_json


def rejudge(path: Path) -> int:
    """Rewrite a result of these suites; 0.

    Raises:
        Unusable: there is none.
    """
    if not path.is_file():
        raise Unusable(f"--rejudge: there is no result {path} whose counts could be judged")
    content, changed = json.loads(path.read_text()), 0
    for repeats in repeats_in(content["results"]):
        for one in repeats:
            before = one["verdict"]
            one.update(judged(one))
            for gone in ("power", "keeps_claim"):  # of version 0.2.0
                one.pop(gone, None)
            changed += one["verdict"] != before
    for claim, scenario, found in by_runs_in(content["results"]):
        found["detectable"] = detectables(claim, scenario, found["counts"])
        found.pop("power", None)
    write_json(path, rounded(content))
    print(f"{path.name}: {changed} verdicts changed")
    return 0


def repeats_in(value: Any) -> Iterator[list[dict[str, Any]]]:
    """The repeats of every cell, however deep."""
    if isinstance(value, dict):
        if isinstance(value.get("repeats"), list):
            yield value["repeats"]
        for part in value.values():
            yield from repeats_in(part)


def judged(one: dict[str, Any]) -> dict[str, Any]:
    """What follows from the counts of one repeat."""
    found = counted(one).to_dict()
    return {name: value for name, value in found.items() if name not in ("seconds", "seconds_per_run")}


def by_runs_in(results: dict[str, Any]) -> Iterator[tuple[Claim, Any, dict[str, Any]]]:
    """What Figure 5 has of each number of runs, with the claim and the scenario."""
    for at in results.get("5", {}).get("rates", {}).values():
        for scenario, cell in at["cells"].items():
            for found in cell:
                yield Claim.from_dict(at["claim"]), scenario, found


def detectables(claim: Claim, scenario: Any, counts: list[list[int]]) -> list[float | None]:
    """What Figure 5's repeats would have found, of which only the counts of the last step are kept."""
    step, found = claim.mechanism.steps if claim.mechanism else 1, []
    for false_positives, negatives, false_negatives, positives in counts:
        errors = (Errors(step, 0.0, false_positives, negatives, false_negatives, positives),)
        found.append(CanaryResult(scenario, claim, "pld", 0.95, errors, negatives + positives, 0.0).detectable)
    return found
