"""Several scenarios within a time limit, by successive halving (Jamieson and Talwalkar 2016, arXiv 1502.07943).

Every scenario gets the same number of runs; the half with the stronger signs gets twice as many more, until one is
left. Each judgement has the confidence 1 - risk / (scenarios * stages), so by the union bound, the probability that any
of them refutes a correct training is at most the risk. A refutation therefore ends the audit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from safexplain._progress import Progress, silent
from safexplain.audit.canaries.trainer.probe import CanaryProbe
from safexplain.errors import ConfigurationError, RefusedError
from safexplain.verdict.canaries.result import CanaryResult

MIN_RUNS = 20  # fewest runs of a scenario at its first judgement
MAX_RUNS = 20_000  # most runs in total, beyond which more time shows little more


def stages_of(scenarios: int, runs: int) -> list[tuple[int, int]]:
    """Scenarios left at each judgement, and the runs that each of them has had by then.

    Judgements share the runs equally. With too few runs for all scenarios, the last ones are not tried.
    """
    scenarios = max(1, min(scenarios, runs // MIN_RUNS))
    left = [scenarios]
    while left[-1] > 1:
        left.append(math.ceil(left[-1] / 2))
    found, had = [], 0
    for count in left:
        had += max(MIN_RUNS, runs // len(left) // count)
        found.append((count, had - had % 2))
    return found


def runs_within(probe: CanaryProbe, minutes: float) -> int:
    """Runs for each target that take about so many minutes, at most `MAX_RUNS` in all."""
    return min(MAX_RUNS, int(60 * minutes * probe.workers / max(probe.seconds_each, 1e-4))) // probe.targets


def audit_within(
    probes: Mapping[str, CanaryProbe], minutes: float, progress: Progress = silent
) -> tuple[list[CanaryResult], dict[str, str]]:
    """Audit one training function by several scenarios, in about so many minutes.

    Probes are by the name of their scenario, all of the same function, data and claim; their `runs` are not used, and
    the first one's `confidence` is that of the whole.

    Returns:
        The last judgement of each scenario that was tried, at confidences with which all hold together; and the reasons
        why others were not: the training refuses them, there was no time, or a claim was already refuted.

    Raises:
        ConfigurationError: no probes, or minutes not above 0.
        InputError: as `CanaryProbe.run`.
    """
    if not probes or not minutes > 0:
        raise ConfigurationError(f"expected scenarios, and minutes above 0; got {len(probes)} and {minutes!r}")
    first = next(iter(probes.values()))
    plan = stages_of(len(probes), runs_within(first, minutes))
    confidence = 1 - (1 - first.confidence) / (plan[0][0] * len(plan))
    tried = {name: first.alike(probes[name], confidence) for name in [*probes][: plan[0][0]]}
    found: dict[str, CanaryResult] = {}
    others = {name: f"no time for it in {minutes:g} minutes" for name in probes if name not in tried}
    for count, had in plan:
        for name in sorted(tried, key=lambda name: _signs(found[name]) if found else (0.0, 0.0), reverse=True)[:count]:
            tried[name].runs = had
            try:
                found[name] = tried[name].run(lambda stage, *rest, n=name: progress(f"{n}: {stage}", *rest))
            except RefusedError as reason:  # a gradient canary in a loop without an optimizer of Opacus
                others[name] = str(reason)
                continue
            if found[name].verdict == "refuted":
                others |= {name: "another canary refuted the claim" for name in tried if name not in found | others}
                return [*found.values()], others
        tried = {name: probe for name, probe in tried.items() if name in found and found[name].runs == had}
    return [*found.values()], others


def _signs(found: CanaryResult) -> tuple[float, float]:
    """Strength of a canary's signs: its bound at even odds, then the negative error rate."""
    at = found.errors[-1]
    errors = at.false_positives / max(at.negatives, 1) + at.false_negatives / max(at.positives, 1)
    return replace(found, confidence=0.5).epsilon_lower, -errors
