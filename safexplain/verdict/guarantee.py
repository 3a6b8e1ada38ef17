"""What holds by construction, without an audit: explanations of models that never saw the private training data.

A function of public data, and of what the label API says anyway, tells nothing more about the private records than that
API does (post-processing). That is a sentence with assumptions, not a measurement; `Guarantee` states both in words
that its few facts determine. `Measured` is what such explanations are worth: how often the models behind them predict
what the explained model predicts, and whether the features that they name carry its predictions. No torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats as distributions

from safexplain._validate import check_follows, check_number, check_whole, from_table
from safexplain.errors import ConfigurationError, InputError
from safexplain.verdict.stats.roc import check_confidence, clopper_pearson

__all__ = ["SOURCES", "Estimate", "Guarantee", "Measured"]

Source = Literal["public models", "student"]
SOURCES = get_args(Source)

SAYS = {
    "public models": (
        "Given the class that is explained, an explanation is computed from the query, and from models of public data"
        " alone. The private training records enter through the label of the query, and through nothing else."
    ),
    "student": (
        "Given the class that is explained, an explanation is computed from the query, and from a model of public"
        " inputs and their labels. The private training records enter through these labels and that of the query,"
        " which the label API tells anyway, and through nothing else."
    ),
}
POST_PROCESSING = (
    "So labels and explanations of any queries tell about these records what the labels tell, and no more, to every"
    " attacker, however patient, and whatever is known and computed. No attack has to be run to show it."
)
ASSUMES = (
    "The label of each explained query is released anyway, to the same client.",
    "The data on which the explaining models were trained is public: no private training record, nor a copy of one, is"
    " in it, and it was not chosen by looking at them.",
    "Architecture, training and seed of these models, the explainer and its options were chosen without looking at the"
    " private records.",
)
ASSUMES_OF_STUDENT = "The labels of the public inputs may be asked for: they count as released."

_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Guarantee:
    """A guarantee by post-processing: what it says, what it assumes, and what it does not say.

    The words follow from the facts given here, and are compared when a guarantee is read.

    Args:
        source: "public models": trained on public data and its own labels; "student": trained on public inputs and the
            labels that the explained model gave them.
        method: class of the explainer.
        models: `safexplain.model_digest` of each explaining model, 64 hexadecimal digits.
        public_inputs: SHA-256 of the inputs whose labels a student learned from; else "".
        labels_asked: how many they are; else 0.

    Raises:
        ConfigurationError: the facts contradict each other.
    """

    source: Source
    method: str
    models: tuple[str, ...]
    public_inputs: str = ""
    labels_asked: int = 0

    kind: ClassVar[str] = "by construction"
    """Nothing was audited; a certificate of an audit is "by audit"."""

    does_not_say: ClassVar[tuple[str, ...]] = (
        "What the labels themselves tell about the private records: a client who asks patiently learns from labels"
        " alone.",
        "Anything about the public records: the explanations may tell who is among them.",
        "That the explained model decides as the explaining models do: how far they agree is measured, see `measured`.",
    )
    """What a reader might take it for, and it is not."""

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise ConfigurationError(f"source: expected one of {', '.join(SOURCES)}, got {self.source!r:.60}")
        if not self.method:
            raise ConfigurationError("method: expected the name of an explainer's class, got none")
        digests = self.models
        if not digests or not isinstance(digests, tuple) or not all(map(_DIGEST.fullmatch, digests)):
            raise ConfigurationError(
                f"models: expected a tuple of digests, each of 64 hexadecimal digits; got {self.models!r:.120}"
            )
        check_whole("labels_asked", self.labels_asked, 0)
        student = self.source == "student"
        if student and not (_DIGEST.fullmatch(self.public_inputs) and self.labels_asked and len(digests) == 1):
            raise ConfigurationError(
                "a student is one model, with the digest of the public inputs that it learned from, and how many they"
                f" are; got {len(digests)} models, public_inputs {self.public_inputs!r:.80} and {self.labels_asked}"
            )
        if not student and (self.public_inputs or self.labels_asked):
            raise ConfigurationError("public models ask for no labels: leave out public_inputs and labels_asked")

    @property
    def sentence(self) -> str:
        """The guarantee in one sentence."""
        return (
            f"By construction: {self.method} of {self.explaining} tells nothing about the private training records that"
            " the labels do not tell; nothing was audited, and it rests on its assumptions."
        )

    @property
    def explaining(self) -> str:
        """Which models explain, in words."""
        if self.source == "student":
            return f"a student of the labels of {self.labels_asked:,} public inputs"
        return f"{len(self.models)} models of public data" if len(self.models) > 1 else "a model of public data"

    @property
    def says(self) -> tuple[str, ...]:
        """What is guaranteed."""
        return (SAYS[self.source], POST_PROCESSING)

    @property
    def assumes(self) -> tuple[str, ...]:
        """What must hold for it, which nobody can see in a file."""
        return (*ASSUMES, ASSUMES_OF_STUDENT) if self.source == "student" else ASSUMES

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, words included; `from_dict` reads and compares them."""
        words = {name: list(getattr(self, name)) for name in ("says", "assumes", "does_not_say")}
        return {"kind": self.kind, **asdict(self), "models": list(self.models), "sentence": self.sentence, **words}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Guarantee:
        """The guarantee that `to_dict` wrote.

        Raises:
            ConfigurationError: facts are missing or contradict each other.
            InputError: something does not follow from them.
        """
        names = {f.name for f in fields(cls)}
        found = from_table(cls, {name: value for name, value in content.items() if name in names}, "guarantee")
        check_follows(content, found.to_dict(), "guarantee", "its facts, or did in the version that wrote it")
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
        """Of a proportion, by `clopper_pearson`: exact, coverage at least `confidence`."""
        low, high = clopper_pearson(successes, trials, confidence)
        return cls(successes / trials, low, high)

    @classmethod
    def of_mean(cls, values: ArrayLike, confidence: float = 0.95) -> Estimate:
        """Of the mean of independent numbers in [-1, 1], by Student's t; [-1, 1] of a single one.

        Raises:
            InputError: no number, or one that is not finite.
        """
        check_confidence(confidence)
        numbers = np.asarray(values, dtype=np.float64).ravel()
        if not len(numbers) or not np.isfinite(numbers).all():
            raise InputError(f"expected finite numbers, at least one; got {numbers!r:.60}")
        mean = float(np.clip(numbers.mean(), -1, 1))
        if len(numbers) == 1:
            return cls(mean, -1.0, 1.0)
        width = distributions.t.ppf((1 + confidence) / 2, len(numbers) - 1) * numbers.std(ddof=1) / len(numbers) ** 0.5
        return cls(mean, max(-1.0, mean - float(width)), min(1.0, mean + float(width)))

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class Measured:
    """What explanations by other models are worth, each with an interval.

    Deletion is how far the explained model's probability of its label falls when the features that a map names are
    deleted; insertion how far it rises when only they are kept; see `safexplain.faithfulness`.

    Args:
        examples: on which it was measured.
        confidence: of each interval.
        fraction: of the features that a map names at most.
        agreement: share of the examples of which the explaining models predict the explained model's label.
        deletion: mean over the examples, of these explanations; None: the model gives labels only.
        insertion: likewise.
        native_deletion: of explanations of the model itself.
        native_insertion: likewise.
        deletion_difference: mean of deletion minus native deletion of the same example.

    Raises:
        ConfigurationError: a number that is none.
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
                f"confidence lies in (0, 1) and fraction in (0, 1], got {self.confidence}, {self.fraction}"
            )

    def rows(self) -> dict[str, str]:
        """What a reader asks, by name."""
        share = self.agreement
        agree = f"{share.value:.1%} [{share.low:.1%}, {share.high:.1%}] of {self.examples:,} inputs"
        rows = {"agreement": f"the models predict the explained model's label for {agree}"}
        for name, does in (("deletion", "deleting"), ("insertion", "keeping only")):
            own, native = getattr(self, name), getattr(self, f"native_{name}")
            if own is not None:
                beside = "" if native is None else f"; explanations of the model itself: {native}"
                rows[name] = f"{does} the top {self.fraction:.0%} of the features: {own}{beside}"
        if self.deletion_difference is not None:
            rows["difference"] = f"in deletion, to explanations of the model itself: {self.deletion_difference}"
        return rows

    def __str__(self) -> str:
        return "\n".join(f"{name}: {text}" for name, text in self.rows().items())
