"""From signals to a verdict: which attacks are run, what is measured, and when it is called a leak.

Every explanation attack is judged by a Clopper-Pearson bound on its true-positive rate at the policy's false-positive
rate:

    leak          some lower bound lies above max_tpr, and above the upper bound of the false-positive rate there
    certified     every upper bound lies at or below max_tpr
    inconclusive  otherwise

The bounds hold together for all judged attacks with the policy's confidence (Bonferroni). They speak of the scored
examples at the threshold that realised the false-positive rate among them. That this threshold is itself an estimate
keeps a leak from being proven where there is none (the second condition), but is not yet in the bounds themselves.
Attacks on the label and on the loss are shown beside, not judged: what they find is not the explanation's doing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from safexplain.audit.attacks import Attack, LabelLikelihoodRatio, LikelihoodRatio, Threshold
from safexplain.audit.names import ATTACK_NAMES, SIGNAL_NAMES, WHOLE_MAP
from safexplain.audit.shadows import Progress, silent
from safexplain.audit.signals import Signals
from safexplain.audit.stats import RateAtFpr, RocCurve, auc_interval, clopper_pearson, roc, tpr_at_fpr
from safexplain.errors import ConfigurationError, InputError

Verdict = Literal["certified", "leak", "inconclusive"]
Role = Literal["explanation", "label", "loss"]

EXIT_CODES: dict[Verdict, int] = {"certified": 0, "leak": 1, "inconclusive": 3}
"""Exit code of the command line for each verdict; 2 is unusable input."""

SHOWN_FPRS = (0.001, 0.01, 0.05, 0.1)
"""False-positive rates at which every attack is reported, beside the policy's."""

MOST_TARGETS = 64
"""Most models that take turns as the target; more would only cost time, as each example is scored once."""


@dataclass(frozen=True)
class Policy:
    """What counts as a leak, written down before anything is measured.

    Args:
        fpr: share of non-members that the attacker may wrongly accuse.
        max_tpr: largest tolerated share of members found at that rate; chance is `fpr`.
        confidence: of the verdict as a whole.

    Raises:
        ConfigurationError: a value outside of (0, 1), or max_tpr below fpr (no model can be that good).
    """

    fpr: float = 0.01
    max_tpr: float = 0.03
    confidence: float = 0.95

    def __post_init__(self) -> None:
        for name in ("fpr", "max_tpr", "confidence"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
                raise ConfigurationError(f"policy: {name} lies in (0, 1), got {value!r}")
        if self.max_tpr < self.fpr:
            raise ConfigurationError(
                f"policy: max_tpr {self.max_tpr:g} is below the false-positive rate {self.fpr:g};"
                " guessing alone finds that share of the members"
            )


@dataclass(frozen=True)
class Row:
    """One attack on one signal."""

    name: str
    attack: Attack
    signal: str
    role: Role


EXPLANATION_SCALARS = ("variance", "l1", "l2")
SUITE: tuple[Row, ...] = (
    *(Row("Threshold", Threshold(), s, "explanation") for s in EXPLANATION_SCALARS),
    *(Row("LikelihoodRatio", LikelihoodRatio(), s, "explanation") for s in EXPLANATION_SCALARS),
    Row("LikelihoodRatio", LikelihoodRatio(), WHOLE_MAP, "explanation"),
    Row("LabelLikelihoodRatio", LabelLikelihoodRatio(), "label", "label"),
    Row("Threshold", Threshold(), "loss", "loss"),
    Row("LikelihoodRatio", LikelihoodRatio(), "loss", "loss"),
)
"""The attacks that are run, as far as the signals are there; other float signals get Threshold and LikelihoodRatio."""


@dataclass(frozen=True, eq=False)
class AttackResult:
    """What one attack found.

    Args:
        attack, signal, role: which attack on what.
        curve: its ROC over the scored examples.
        rates: its TPR at each reported false-positive rate, with Clopper-Pearson intervals.
    """

    attack: str
    signal: str
    role: Role
    curve: RocCurve
    rates: tuple[RateAtFpr, ...]

    @property
    def auc(self) -> float:
        """Area under the ROC; 0.5 is chance."""
        return self.curve.auc

    @property
    def title(self) -> str:
        """Readable name."""
        attack = ATTACK_NAMES.get(self.attack, self.attack)
        return f"{attack.lower()} of the {SIGNAL_NAMES.get(self.signal, self.signal)}"

    @property
    def code(self) -> str:
        """Name as the JSON has it."""
        return f"{self.attack} on {self.signal}"

    def at(self, fpr: float) -> RateAtFpr:
        """The rate at one of the reported false-positive rates."""
        return next(r for r in self.rates if r.fpr == fpr)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        low, high = auc_interval(self.curve)
        return {
            "attack": self.attack,
            "signal": self.signal,
            "role": self.role,
            "auc": self.auc,
            "auc_low": low,
            "auc_high": high,
            "balanced_accuracy": self.curve.balanced_accuracy,
            "tpr": [
                {k: getattr(r, k) for k in ("fpr", "realised_fpr", "tpr", "low", "high", "confidence")}
                for r in self.rates
            ],
        }


@dataclass(frozen=True, eq=False)
class AuditResult:
    """All attacks under one policy, and what follows.

    Args:
        policy: what counts as a leak.
        attacks: in the order of the suite.
        members, non_members: examples scored, each once.
        references: models that stood in for the target; 0 when only thresholds could be tried.
    """

    policy: Policy
    attacks: tuple[AttackResult, ...]
    members: int
    non_members: int
    references: int

    @property
    def judged(self) -> tuple[AttackResult, ...]:
        """The attacks that the verdict rests on: those on the explanation."""
        return tuple(a for a in self.attacks if a.role == "explanation")

    @property
    def judged_confidence(self) -> float:
        """Confidence of each judged interval, so that all of them hold together (Bonferroni)."""
        return 1 - (1 - self.policy.confidence) / max(len(self.judged), 1)

    def bounds(self, attack: AttackResult) -> tuple[float, float]:
        """Interval of the attack's TPR at the policy's false-positive rate that the verdict uses."""
        rate = attack.at(self.policy.fpr)
        return clopper_pearson(rate.true_positives, rate.members, self.judged_confidence)

    def proven(self, attack: AttackResult) -> bool:
        """Whether the attack surely finds more members than the policy allows, and more than it accuses wrongly.

        The second bound matters where the policy allows little more than chance or the non-members are few: the true
        false-positive rate at a threshold that realised 1 % among 50 of them may well be 4 %.
        """
        rate = attack.at(self.policy.fpr)
        accused = clopper_pearson(rate.false_positives, rate.non_members, self.judged_confidence)[1]
        return self.bounds(attack)[0] > max(self.policy.max_tpr, accused)

    @property
    def strongest(self) -> AttackResult:
        """The judged attack that finds most members at the policy's false-positive rate."""
        return max(self.judged, key=lambda a: (a.at(self.policy.fpr).tpr, a.auc))

    @property
    def verdict(self) -> Verdict:
        """Derived from the bounds, see the module."""
        bounds = [self.bounds(a) for a in self.judged]
        if any(self.proven(a) for a in self.judged):
            return "leak"
        if all(high <= self.policy.max_tpr for _, high in bounds) and self.references > 0:
            return "certified"
        return "inconclusive"

    @property
    def exit_code(self) -> int:
        """0 certified, 1 leak, 3 inconclusive."""
        return EXIT_CODES[self.verdict]

    @property
    def sentence(self) -> str:
        """The verdict in plain words."""
        p, best = self.policy, self.strongest
        low, high = self.bounds(best)
        found = (
            f"the strongest attack ({best.title}) finds {best.at(p.fpr).tpr:.1%} of the members"
            f" (between {low:.1%} and {high:.1%}) while accusing at most {p.fpr:.1%} of the non-members"
        )
        match self.verdict:
            case "leak":
                return f"Leak proven: {found}; the policy allows {p.max_tpr:.1%}."
            case "certified":
                return f"Certified: {found}; all attacks stay below the policy's {p.max_tpr:.1%}."
            case "inconclusive":
                why = "the interval is too wide to decide" if self.references else "without reference models only weak"
                why += "" if self.references else " attacks could run, so nothing can be certified"
                return f"Inconclusive: {found}; the policy allows {p.max_tpr:.1%}, and {why}."

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        p = self.policy
        return {
            "verdict": self.verdict,
            "sentence": self.sentence,
            "policy": {"fpr": p.fpr, "max_tpr": p.max_tpr, "confidence": p.confidence},
            "members": self.members,
            "non_members": self.non_members,
            "references": self.references,
            "judged": [
                {"attack": a.attack, "signal": a.signal, "low": self.bounds(a)[0], "high": self.bounds(a)[1]}
                for a in self.judged
            ],
            "judged_confidence": self.judged_confidence,
            "attacks": [a.to_dict() for a in self.attacks],
        }


def audit(
    signals: Signals,
    policy: Policy | None = None,
    *,
    suite: Sequence[Row] | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> AuditResult:
    """Run every attack that fits the signals and judge them under the policy.

    Each example is scored once: against the one target, or, where several models may be targets, against one of them
    drawn at random, with all other models as references. Scored examples are then independent.

    Args:
        signals: what was released.
        policy: default `Policy()`.
        suite: attacks to run instead of those that fit.
        seed: of the assignment of examples to targets.
        progress: told after each attack.

    Raises:
        InputError: no attack fits, or the scored examples are all members or all non-members.
    """
    policy = policy or Policy()
    rows = fitting(signals) if suite is None else list(suite)
    if not any(r.role == "explanation" for r in rows):
        raise InputError(
            f"no explanation signal among {sorted(signals.values)}; expected l1, l2, variance or attributions"
        )
    target_of = assign(signals, seed)
    member = signals.membership[target_of, np.arange(signals.examples)]
    fprs = sorted({*SHOWN_FPRS, policy.fpr})
    results = []
    for i, row in enumerate(rows):
        curve = roc(_scores(signals, row, target_of), member)
        rates = tuple(tpr_at_fpr(curve, fpr=f, confidence=policy.confidence) for f in fprs)
        results.append(AttackResult(row.name, row.signal, row.role, curve, rates))
        progress("attacking", i + 1, len(rows))
    references = len(signals.membership) - 1 if any(not isinstance(r.attack, Threshold) for r in rows) else 0
    return AuditResult(policy, tuple(results), int(member.sum()), int((~member).sum()), references)


def fitting(signals: Signals) -> list[Row]:
    """The rows of the suite whose signal is there; without reference models only thresholds; unknown signals too."""
    present = {*signals.values, *([WHOLE_MAP] if signals.attributions is not None else [])}
    known = {r.signal for r in SUITE}
    extra = [
        Row(name, attack, signal, "explanation")
        for signal in signals.values
        if signal not in known
        for name, attack in (("Threshold", Threshold()), ("LikelihoodRatio", LikelihoodRatio()))
    ]
    alone = len(signals.membership) < 3
    return [r for r in (*SUITE, *extra) if r.signal in present and not (alone and not isinstance(r.attack, Threshold))]


def assign(signals: Signals, seed: int) -> NDArray[np.int64]:
    """(n,) the target that each example is scored against."""
    rng = np.random.default_rng([seed, 0xA551])
    targets = np.array(signals.targets)
    if len(targets) > MOST_TARGETS:
        targets = np.sort(rng.choice(targets, MOST_TARGETS, replace=False))
    chosen: NDArray[np.int64] = targets[rng.integers(len(targets), size=signals.examples)]
    return chosen


def _scores(signals: Signals, row: Row, target_of: NDArray[np.int64]) -> NDArray[np.float64]:
    values = signals.attributions if row.signal == WHOLE_MAP else signals.values.get(row.signal)
    if values is None:
        raise InputError(f"signal {row.signal!r} is not there; found {sorted(signals.values)}")
    scores = np.zeros(signals.examples)
    for t in np.unique(target_of):
        others = np.arange(len(values)) != t
        mine = target_of == t
        if isinstance(row.attack, Threshold):
            scores[mine] = row.attack(values[t, mine])
        else:
            scores[mine] = row.attack(values[t], values[others], signals.membership[others])[mine]
    return scores
