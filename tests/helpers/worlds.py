"""Made-up signals whose leak is known, and a policy under which small ones are judged."""

from dataclasses import replace
from typing import Any

import numpy as np

from safexplain.audit import Policy, Signals
from safexplain.audit.signals import hash_examples

LOOSE = Policy(fpr=0.05, max_tpr=0.15, claim="whole", patience=(1,), references=1, uncounted=True)
"""An attacker who asks once, and whatever is released judged together."""

EXCESS = replace(LOOSE, claim="excess")
"""What explanations add to one label."""


def synthetic(
    leak: float = 0.0,
    *,
    examples: int = 300,
    models: int = 9,
    seed: int = 0,
    names: tuple[str, ...] = ("l1",),
    others: tuple[str, ...] = (),
    targets: tuple[int, ...] = (0,),
    group: int = 1,
    **fields: Any,
) -> Signals:
    """Signals that are log-normal and smaller by `leak` on members, the `others` by 3, in natural logarithms; two
    deviations of a model's noise are 1. The examples of a group are near-copies, in or out together."""
    rng = np.random.default_rng(seed)
    groups = np.arange(examples) // group
    units = groups[-1] + 1
    member = (rng.random((models, units)) < 0.5)[:, groups]
    level = rng.normal(0, 0.5, units)

    def signal(by: float) -> np.ndarray:
        noise = (level + rng.normal(0, 0.5, (models, units)))[:, groups]
        return np.exp(noise + (rng.normal(0, 0.05, member.shape) if group > 1 else 0.0) - by * member)

    values = {name: signal(leak) for name in names} | {name: signal(3.0) for name in others}
    meta = {"targets": list(targets), **fields.pop("meta", {})}
    return Signals(member, values, meta=meta, **fields)


def with_label(signals: Signals, wrong: float = 0.6, seed: int = 1) -> Signals:
    """With a label that is never wrong on members, and on this share of the non-members."""
    off = np.random.default_rng(seed).random(signals.membership.shape) < np.where(signals.membership, 0.0, wrong)
    return replace(signals, values={**signals.values, "label": off * 1.0})


def recognised(signals: Signals, seed: int = 0) -> Signals:
    """With inputs, by which the examples are recognised."""
    x = np.random.default_rng([seed, 7]).normal(size=(len(signals), 3))
    return replace(signals, inputs=x, examples=hash_examples(x))


def rows_of(signals: Signals, rows: Any) -> Signals:
    """The signals of some examples, in that order."""
    columns = {n: None if (a := getattr(signals, n)) is None else a[rows] for n in ("inputs", "examples", "groups")}
    values = {name: a[:, rows] for name, a in signals.values.items()}
    return Signals(signals.membership[:, rows], values, meta=signals.meta, **columns)
