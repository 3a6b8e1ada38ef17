"""Asking models: what they release natively and hardened, and which property of it carries a leak."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from safexplain._digest import model_digest
from safexplain._progress import Progress, named
from safexplain.audit import Signals, collect_signals, side_by_side
from safexplain.audit.attacks.scoring import FEWEST_FOR_NULL
from safexplain.audit.attacks.suite import fitting
from safexplain.audit.root_cause import Ablation, root_cause, sample
from safexplain.audit.root_cause import sentence as cause_sentence
from safexplain.cli.plan import Plan, Pool
from safexplain.cli.release import Output, gives_probabilities
from safexplain.hardening.hardening import Hardening


def describe(pools: Sequence[Pool], plan: Plan, name: str, hardening: Hardening | None) -> dict[str, Any]:
    """What signals say about how they came about."""
    meta: dict[str, Any] = {
        "explainer": plan.method.row.name,
        "output": plan.method.output,
        "options": repr(sorted(plan.method.options.items())),
        "release": name,
        "seed": plan.seed,
        "recipe": plan.recipe,
        "asked": repr((plan.queries, plan.classes)),
        "references": len(pools[0].shadows.models) - 1,
    }
    if hardening is not None:
        meta["hardening"] = hardening.to_json()
    return meta


def ask(
    pools: Sequence[Pool], plan: Plan, name: str, hardening: Hardening | None, keep: bool, progress: Progress
) -> Signals:
    """What every model releases. The attacker knows the hardening, not the key: reference models have another one."""
    meta = describe(pools, plan, name, hardening)
    released = plan.method.explain(keyed(hardening, plan.seed, "target"))
    attackers = plan.method.explain(keyed(hardening, plan.seed, "references"))
    parts = []
    for i, pool in enumerate(pools):
        stage = f"explaining ({name}{f', pool {i + 1}' if len(pools) > 1 else ''})"
        parts.append(
            collect_signals(
                pool.asked,
                pool.population,
                [released, *[attackers] * (len(pool.asked.models) - 1)],
                batch_size=plan.batch_size,
                keep_attributions=keep,
                targets=(0,),
                null=pool.null,
                queries=None if hardening is None else replace(plan.queries, keep_maps=keep),
                classes=plan.classes or None,
                meta={**meta, "subject": model_digest(pool.shadows.models[0]).hex()},
                progress=named(progress, stage),
            )
        )
    return side_by_side(parts)


def find_cause(
    pools: Sequence[Pool], plan: Plan, native: Signals, keep: bool, progress: Progress
) -> tuple[tuple[Ablation, ...], str]:
    """Which property of the native maps carries the leak; the other output is asked about too, where there is one."""
    if len(native.models) < FEWEST_FOR_NULL:
        return (), ""
    other = None
    name: Output = "logit" if plan.method.output == "probability" else "probability"
    if not gives_probabilities(pools[0].shadows.models[0], pools[0].population.x[:8]):
        method = replace(plan.method, output=name, softmax=name == "probability")
        stage = named(progress, f"explaining the {name}")
        other = ask(pools, replace(plan, method=method), "native", None, keep, lambda _, *done: stage("", *done))
    looked_at = sample(native, plan.policy, trains=any(r.learns for r in fitting(native)), seed=plan.seed)
    causes = root_cause(
        native,
        rows=looked_at.rows,
        seed=plan.seed,
        fpr=plan.policy.fpr,
        other_output=other,
        other_name=name,
        progress=named(progress, "root cause"),
    )
    return causes, f"{cause_sentence(causes)} {looked_at.says}" if causes else ""


def keyed(hardening: Hardening | None, seed: int, whose: str) -> Hardening | None:
    """The hardening with a key of this audit's own, one for the target and another for the reference models."""
    if hardening is None:
        return None
    return hardening.with_key(hashlib.blake2b(f"audit {seed} {whose}".encode(), digest_size=32).digest())
