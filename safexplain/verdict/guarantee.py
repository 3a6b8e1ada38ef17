"""What holds without an audit: by post-processing (`Guarantee`), or by differential privacy (`Implied`). No torch."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats as distributions

from safexplain._privacy_loss import Adjacency
from safexplain._validate import check_follows, check_number, check_whole, from_table
from safexplain.errors import ConfigurationError, InputError
from safexplain.verdict.privacy_statement import TOLERANCE, PrivacyStatement
from safexplain.verdict.stats.roc import check_confidence, clopper_pearson

Source = Literal["public models", "student"]
SOURCES = get_args(Source)

SAYS = {
    "public models": (
        "Given the explained class, an explanation is computed from the query and from models of public data alone. The"
        " private training records enter only through the label of the query."
    ),
    "student": (
        "Given the explained class, an explanation is computed from the query and from a model of public inputs and"
        " their labels. The private training records enter only through these labels and that of the query, which the"
        " label API releases anyway."
    ),
}
POST_PROCESSING = (
    "So labels and explanations together reveal no more about these records than the labels alone, for any queries and"
    " any attacker, with any knowledge and computing power. No attack has to be run to show this."
)
ASSUMES = (
    "The label of each explained query is released anyway, to the same client.",
    "The training data of the explaining models is public: it contains no private training record and no copy of one,"
    " and it was chosen without looking at them.",
    "Architecture, training and seed of these models, the explainer and its options were chosen without looking at the"
    " private records.",
)
ASSUMES_OF_STUDENT = "The labels of the public inputs may be queried: they count as released."

WORDS = ("sentence", "says", "assumes", "does_not_say")

_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Guarantee:
    """A guarantee by post-processing, with its assumptions and what it does not cover.

    Args:
        source: "public models": trained on public data and its own labels; "student": trained on public inputs and the
            explained model's labels for them.
        method: class of the explainer.
        models: `safexplain.model_digest` of each explaining model, 64 hexadecimal digits.
        public_inputs: SHA-256 of a student's public inputs; else "".
        labels_asked: number of these inputs; else 0.

    Raises:
        ConfigurationError: the facts contradict each other.
    """

    source: Source
    method: str
    models: tuple[str, ...]
    public_inputs: str = ""
    labels_asked: int = 0

    kind: ClassVar[str] = "by construction"

    does_not_say: ClassVar[tuple[str, ...]] = (
        "What the labels themselves reveal about the private records: a client with many queries learns from labels"
        " alone.",
        "The public records: explanations may reveal who is among them.",
        "Agreement of the explaining models with the explained model: it is measured, see `measured`.",
    )

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise ConfigurationError(f"source: expected one of {', '.join(SOURCES)}, got {self.source!r:.60}")
        if not self.method:
            raise ConfigurationError('method: expected the name of an explainer\'s class, got ""')
        digests = self.models
        if not digests or not isinstance(digests, tuple) or not all(map(_DIGEST.fullmatch, digests)):
            raise ConfigurationError(
                f"models: expected a tuple of digests, each of 64 hexadecimal digits; got {self.models!r:.120}"
            )
        check_whole("labels_asked", self.labels_asked, 0)
        student = self.source == "student"
        if student and not (_DIGEST.fullmatch(self.public_inputs) and self.labels_asked and len(digests) == 1):
            raise ConfigurationError(
                "a student is one model with the digest and the number of its public inputs; got"
                f" {len(digests)} models, public_inputs {self.public_inputs!r:.80}, labels_asked {self.labels_asked}"
            )
        if not student and (self.public_inputs or self.labels_asked):
            raise ConfigurationError("public models use no labels: leave out public_inputs and labels_asked")

    @property
    def sentence(self) -> str:
        """The guarantee in one sentence."""
        return (
            f"By construction: {self.method} of {self.explaining} reveals nothing about the private training records"
            " beyond the labels; nothing was audited, and it rests on its assumptions."
        )

    @property
    def explaining(self) -> str:
        """The explaining models in words."""
        if self.source == "student":
            return f"a student of the labels of {self.labels_asked:,} public inputs"
        return f"{len(self.models)} models of public data" if len(self.models) > 1 else "a model of public data"

    @property
    def says(self) -> tuple[str, ...]:
        """What is guaranteed."""
        return (SAYS[self.source], POST_PROCESSING)

    @property
    def assumes(self) -> tuple[str, ...]:
        """The assumptions, which no file can prove."""
        return (*ASSUMES, ASSUMES_OF_STUDENT) if self.source == "student" else ASSUMES

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, texts included."""
        words = {name: list(getattr(self, name)) for name in WORDS if name != "sentence"}
        return {"kind": self.kind, **asdict(self), "models": list(self.models), "sentence": self.sentence, **words}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], *, compare_words: bool = True) -> Guarantee:
        """The guarantee that `to_dict` wrote; `compare_words` unless another version may have phrased its texts.

        Raises `ConfigurationError` for facts that are missing or contradict each other, `InputError` for other texts.
        """
        names = {f.name for f in fields(cls)}
        found = from_table(cls, {name: value for name, value in content.items() if name in names}, "guarantee")
        left_out = () if compare_words else WORDS
        stated, computed = (
            {name: v for name, v in table.items() if name not in left_out} for table in (content, found.to_dict())
        )
        check_follows(stated, computed, "guarantee", "its facts")
        return found

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True)
class Estimate:
    """A number and the ends of its two-sided interval."""

    value: float
    low: float
    high: float

    def __post_init__(self) -> None:
        for name in ("value", "low", "high"):
            object.__setattr__(self, name, check_number(name, getattr(self, name)))
        if not self.low <= self.value <= self.high:
            raise ConfigurationError(f"expected low <= value <= high, got {self.low}, {self.value}, {self.high}")

    @classmethod
    def of_share(cls, successes: int, trials: int, confidence: float = 0.95) -> Estimate:
        """Estimate of a proportion, by `clopper_pearson`."""
        low, high = clopper_pearson(successes, trials, confidence)
        return cls(successes / trials, low, high)

    @classmethod
    def of_mean(cls, values: ArrayLike, confidence: float = 0.95) -> Estimate:
        """Estimate of the mean of independent numbers in [-1, 1], by Student's t."""
        check_confidence(confidence)
        numbers = np.asarray(values, dtype=np.float64).ravel()
        if not len(numbers) or not np.isfinite(numbers).all():
            raise InputError(f"expected at least one number, all finite; got {numbers!r:.60}")
        mean = float(np.clip(numbers.mean(), -1, 1))
        if len(numbers) == 1:
            return cls(mean, -1.0, 1.0)
        width = distributions.t.ppf((1 + confidence) / 2, len(numbers) - 1) * numbers.std(ddof=1) / len(numbers) ** 0.5
        return cls(mean, max(-1.0, mean - float(width)), min(1.0, mean + float(width)))

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class Measured:
    """Agreement and faithfulness of explanations by other models, each with an interval.

    Deletion is the fall of the explained model's probability of its label without the features that a map names,
    insertion its rise with only these (`safexplain.faithfulness`). `native_` are means of explanations of the model
    itself, `deletion_difference` the mean difference on the same example; None: the model returns labels only.
    `fraction` is the largest share of the features that a map names, `agreement` the share of the examples for which
    the explaining models predict the explained model's label.

    Raises:
        ConfigurationError: a number is out of range.
    """

    examples: int
    confidence: float
    fraction: float
    agreement: Estimate
    deletion: Estimate | None = None
    insertion: Estimate | None = None
    native_deletion: Estimate | None = None
    native_insertion: Estimate | None = None
    deletion_difference: Estimate | None = None

    def __post_init__(self) -> None:
        check_whole("examples", self.examples, 1)
        for name in ("confidence", "fraction"):
            object.__setattr__(self, name, check_number(name, getattr(self, name), above=0.0))
        if self.confidence >= 1 or self.fraction > 1:
            raise ConfigurationError(
                f"expected confidence in (0, 1) and fraction in (0, 1], got {self.confidence}, {self.fraction}"
            )

    def rows(self) -> dict[str, str]:
        """Name -> figure with its meaning."""
        share = self.agreement
        agree = f"{share.value:.1%} [{share.low:.1%}, {share.high:.1%}] of {self.examples:,} inputs"
        rows = {"agreement": f"the models predict the explained model's label for {agree}"}
        for name, action in (("deletion", "deleting"), ("insertion", "keeping only")):
            found, native = getattr(self, name), getattr(self, f"native_{name}")
            if found is not None:
                compared = "" if native is None else f"; explanations of the model itself: {native}"
                rows[name] = f"{action} the top {self.fraction:.0%} of the features: {found}{compared}"
        if self.deletion_difference is not None:
            rows["difference"] = f"deletion minus that of explanations of the model itself: {self.deletion_difference}"
        return rows

    def __str__(self) -> str:
        return "\n".join(f"{name}: {text}" for name, text in self.rows().items())


Array = NDArray[np.float64]

DELTAS = 24  # small and large deltas, each of which gives a bound
CELLS = 20_000  # of the midpoint rule, whose area is never below that of a concave curve


def tpr_bound(fpr: ArrayLike, epsilon: float, delta: float) -> Array:
    """() or (n,) largest true-positive rates of any attack at these false-positive rates.

    min(exp(epsilon) FPR + delta, 1 - exp(-epsilon) (1 - delta - FPR)), for one record added or removed (Kairouz, Oh and
    Viswanath 2015, arXiv 1311.0776, Theorem 2.1).
    """
    rates = np.asarray(fpr, dtype=np.float64)
    if not epsilon < math.inf:
        return np.ones_like(rates)
    with np.errstate(over="ignore"):
        rising = np.exp(epsilon) * rates + delta
    return np.asarray(np.clip(np.minimum(rising, 1 - math.exp(-epsilon) * (1 - delta - rates)), 0.0, 1.0))


@dataclass(frozen=True, eq=False)
class RocBound:
    """An upper bound on every attack's ROC curve, from (k,) epsilons at (k,) deltas.

    The smallest `tpr_bound` is the trade-off curve (Dong, Roth and Su 2019, arXiv 1905.02383, Proposition 2.12).
    """

    epsilons: Array
    deltas: Array

    @classmethod
    @lru_cache(maxsize=16)
    def of(cls, statement: PrivacyStatement, adjacency: Adjacency = "add_remove") -> RocBound:
        """The bound of a training."""
        deltas = [0.0]
        if statement.phases:
            deltas = [*np.geomspace(statement.delta, 0.1, DELTAS), *np.linspace(0.1, 0.98, DELTAS)[1:]]
        pairs = [(replace(statement, delta=float(d)).epsilons.of(adjacency), d) for d in deltas]
        finite = np.array([p for p in pairs if p[0] < math.inf], dtype=np.float64).reshape(-1, 2)
        return cls(finite[:, 0], finite[:, 1])

    def __call__(self, fpr: ArrayLike, /) -> Array:
        """() or (n,) largest true-positive rates at these false-positive rates."""
        rates = np.asarray(fpr, dtype=np.float64)
        bounds = [tpr_bound(rates, e, d) for e, d in zip(self.epsilons, self.deltas, strict=True)]
        return np.minimum.reduce(bounds, initial=1.0) if bounds else np.ones_like(rates)

    @property
    def auc(self) -> float:
        """Upper bound on every attack's AUC."""
        return min(1.0, float(self((np.arange(CELLS) + 0.5) / CELLS).mean()))


@dataclass(frozen=True)
class Implied:
    """What a training's privacy statement implies at a policy's false-positive rate, under its assumptions.

    Rates are expectations over the training and the attacked record, with members drawn by independent coins. No attack
    has a true-positive rate above `by_epsilon`, which follows from epsilon and delta (one record added or removed)
    alone, nor above `tpr`, by the mechanism's whole trade-off curve, nor an AUC above `auc`.
    """

    epsilon: float
    delta: float
    fpr: float
    by_epsilon: float
    tpr: float
    auc: float
    pretrained: bool = False
    seeded: bool = False

    @classmethod
    def of(cls, statement: PrivacyStatement, fpr: float) -> Implied | None:
        """From a training's statement; None: its epsilon is infinite."""
        epsilon, delta = statement.epsilons.add_remove, statement.delta
        if not epsilon < math.inf:
            return None
        bound, least = RocBound.of(statement), float(tpr_bound(fpr, epsilon, delta))
        tpr = min(float(bound(fpr)), least)
        return cls(epsilon, delta, float(fpr), least, tpr, bound.auc, statement.pretrained, statement.seeded)

    @property
    def sentence(self) -> str:
        """The implication in words, without a full stop."""
        text = (
            "according to its privacy statement, the training is differentially private with epsilon"
            f" {self.epsilon:.3g} (one record added or removed) at delta {self.delta:g}, so no attack, with any number"
            f" of queries, is expected to find more than {self.tpr:.1%} of the members at a false-positive rate of"
            f" {self.fpr:.1%}, or to reach an AUC above {self.auc:.3f}"
        )
        if self.pretrained:
            text += "; this does not cover the data on which the starting weights were trained"
        if self.seeded:
            text += "; it does not hold against anyone who knows the seed of the noise"
        return text

    def check(self, statement: PrivacyStatement | None) -> None:
        """Raise `InputError` unless it follows from the statement, up to `TOLERANCE`."""
        follows = None if statement is None else Implied.of(statement, self.fpr)
        if follows is None:
            raise InputError("implied: expected a privacy statement with a finite epsilon, from which it follows")
        check_follows(asdict(self), asdict(follows), "implied", "the privacy statement", (TOLERANCE, TOLERANCE))
