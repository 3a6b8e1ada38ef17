"""Results of audits from made-up scores, for what shows them: no model is trained, and no attack is run."""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from safexplain.audit.certify import conclude
from safexplain.audit.report.root_cause import by_slice, most_exposed
from safexplain.verdict.judgement import Control, Role, at_level
from safexplain.verdict.policy import Policy
from safexplain.verdict.result import AuditResult
from safexplain.verdict.thresholds import by_score

POLICY = Policy(fpr=0.1, max_tpr=0.4, max_excess=0.2, patience=(1, 5, 200), references=8)
WHOLE = replace(POLICY, claim="whole")
CONTROLS = (
    Control("blind baseline", None, "the inputs are not in the signals, so a shift cannot be looked for", {}),
    Control("null model", False, "Stacked finds nothing in the releases of a reference model", {"auc": 0.51}),
    Control("shuffled membership", False, "with members drawn at random, 6 of 200 audits find more", {"share": 0.03}),
    Control("references", False, "100% of the examples have reference models on both sides", {"share": 1.0}),
    Control("recipe", False, "the target's losses are 1 times those of the references", {"of_tolerated": 0.2}),
)


@dataclass(frozen=True)
class Row:
    """What `conclude` looks at of a row of the suite."""

    name: str
    signal: str
    role: Role
    level: int


@cache
def audited(
    leak: float = 0.0,
    policy: Policy = POLICY,
    *,
    examples: int = 3000,
    labels: bool = True,
    group: int = 1,
    few: int | None = None,
    targets: int = 1,
    parts: int = 0,
    exposed: int = 0,
    seed: int = 7,
    **changes: Any,
) -> AuditResult:
    """What attacks find in explanations that move members' scores by `leak` standard deviations.

    Labels move them by .2 at one query and by more at several, and explanations add to that independently. `few`: only
    the first so many attacks of each level; `parts`: how many classes the examples have; `exposed`: members listed.
    """
    rng = np.random.default_rng(seed)
    groups = np.arange(examples) // group
    member = (rng.random(groups.max() + 1) < 0.5)[groups]
    rows: list[Row] = []
    scores = []
    for level in policy.patience:
        told = rng.normal(size=examples) + (0.2 + 0.05 * np.log(level)) * member
        shown = rng.normal(size=examples) + leak * (0.8 + 0.05 * np.log(level)) * member
        weak = shown + rng.normal(0, 0.5, examples)
        loss = rng.normal(size=examples) + 1.0 * member
        both = (0.2 * told + leak * shown) / np.hypot(0.2, leak)
        found: list[tuple[str, str, Role, Any]] = [
            ("LikelihoodRatio", at_level("l1", level), "explanation", shown),
            ("Threshold", at_level("l1", level), "explanation", weak),
        ]
        if labels:
            found += [
                ("LabelPatience", at_level("label", level), "label", told),
                ("Stacked", f"{at_level('explanation', level)}+label", "explanation+label", both),
                ("LikelihoodRatio", f"{at_level('l1', level)}+label", "explanation+label", both),
                *(
                    ("LikelihoodRatio", f"{at_level(s, level)}+label", "explanation+label", told + 0.1 * weak * leak)
                    for s in ("l2", "variance", "mean", "positive", "sparsity")
                ),
            ]
        found += [
            ("LikelihoodRatio", at_level("loss", level), "loss", loss),
            ("Threshold", at_level("loss", level), "loss", loss + rng.normal(size=examples)),
            ("RMIA", at_level("loss", level), "loss", loss + rng.normal(size=examples)),
        ]
        for name, signal, role, s in found[:few]:
            rows.append(Row(name, signal, role, level))
            scores.append(np.asarray(s, dtype=np.float64))
    together = groups if group > 1 else None
    orders = [by_score(s, 0) for s in scores]
    result = conclude(rows, scores, orders, member, policy, groups=together, targets=targets)  # type: ignore[arg-type]
    if parts:
        classes = {"class": np.arange(examples) % parts}
        found_by = scores[next(i for i, a in enumerate(result.attacks) if a is result.strongest)]
        changes |= {
            "slices": by_slice(found_by, member, classes, policy),
            "exposed": most_exposed(found_by, member, exposed),
        }
    return replace(result, **{"controls": CONTROLS, "references": 16, "uses": 1, **changes})


def of_targets(*leaks: float, policy: Policy = POLICY) -> AuditResult:
    """Several targets, each judged on its own; the one that leaks most is shown in full."""
    n = len(leaks)
    found = [audited(leak, policy, targets=n, seed=7 + i, target=i) for i, leak in enumerate(leaks)]
    first = int(np.argmax(leaks))
    return replace(found[first], others=tuple(r for i, r in enumerate(found) if i != first))
