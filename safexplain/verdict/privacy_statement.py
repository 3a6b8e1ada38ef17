"""The privacy guarantee of a training run and its assumptions, for certificates, model cards and auditors."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, get_args

from safexplain._digest import trained_digest
from safexplain._files import write_atomically
from safexplain._privacy_loss import MAX_RECORDS, PROTECTS, Adjacency, Epsilons, Steps, check_delta, composed
from safexplain._validate import check_follows, check_number, from_table, whole_number
from safexplain.errors import ConfigurationError, InputError, RefusedError
from safexplain.verdict import strict_json

IN_COMMON = "what the records have in common: the model tells it about everybody, in the data or not"
SEVERAL = "several records of one person: epsilon is for one record"
OTHER_NAMES = (
    "rows of one person under two names, and several persons together: epsilon is for the rows that go by one name"
)
CHOICES = "choices made by looking at the data: hyperparameters, seeds or checkpoints picked by their results"
NEVER = ("losses, gradients, skipped records, errors, warnings and other figures of the training run itself",)
PRETRAINED = (
    "the data that the starting weights were trained on: attacks find its members through the fine-tuned model"
    " (Abascal, Wu, Oprea and Ullman 2023, arXiv 2306.01181)"
)
PUBLIC = "the options of the training, the architecture, the list of classes and all bounds are public constants"
COUNTED = (
    "the number of records is public: this statement contains it, and the training may depend on it; adding or removing"
    " a record then means that an empty record is replaced by a real one, or the reverse"
)
OWN_LOOP = (
    "the owner wrote the training loop, and only its accountant's history is known: batches came from the accounted"
    " loader, each record's gradient was clipped before noise was added, and the loss was the mean of the records' own"
    " losses",
    "no layer mixed the records of a batch, and nothing else that shaped the weights or their choice was computed from"
    " the records: no statistics of data, starting weights, learning rates, checkpoints or further passes",
    "all steps that shaped the weights are counted here, except those of an earlier training whose weights were loaded"
    " without its count",
)
"""Assumptions about a user's own loop, which `safexplain canaries` tests."""
PERSONS_PROTECTED: dict[Adjacency, str] = {
    "add_remove": "whether a person, with all of their rows, was in the training data",
    "substitute": "the contents and number of a person's rows, even if it is known that the person was in the data",
    "zero_out": "whether a person's rows or empty ones were used, given the number of persons",
}
SAMPLED = {
    "poisson": "each record joined each batch independently at random, and batches stay hidden",
    "fixed-size": "each batch was a uniformly random subset of fixed size, and batches stay hidden",
    "full-batch": "every record was in every batch",
}
SEEDED = (
    "batches and noise come from a seed set by the user: there is no guarantee against anyone who knows it, or who sees"
    " two trainings with it"
)
RANDOMNESS = "noise comes from a pseudo-random generator whose seed stays secret, in floating-point numbers"
SECURE = "noise and random batches come from {}, in {} numbers"
Unit = Literal["record", "person"]

_LATER = frozenset({"unit", "rows_per_person", "own_loop", "generator"})
"""Left out of JSON at their defaults, so that older statements keep their digest."""

MOST_PHASES = 1000

TOLERANCE = 2e-3
"""Absolute and relative difference of a stated epsilon that is allowed between accountants' versions."""


def randomness(generator: str, *, seeded: bool, whole: bool = False) -> str:
    """The assumption about the source of noise; `generator` is "" if it is not cryptographic."""
    if seeded:
        return SEEDED
    return SECURE.format(generator, "whole" if whole else "floating-point") if generator else RANDOMNESS


@dataclass(frozen=True)
class PrivacyStatement:
    """A differential privacy guarantee: mechanism and parameters, from which the epsilons are computed.

    Args:
        mechanism: its name and source.
        records: n, the number of records (or persons) actually trained on.
        delta: in [1e-12, 1) for the Gaussian mechanism; 0 for a pure guarantee.
        phases: the steps of the Gaussian mechanism, in order, on the same records.
        pure_epsilon: of a mechanism without delta, under substitution; or None.
        pure_add_remove: the same under add/remove and zero-out; None: no better bound than `pure_epsilon` is known.
        clipping: how one record's share of a sum was bounded.
        expected_batch_size: public constant that sums were divided by; sample rates must be this over `records`.
        trained: which parameters were trained.
        pretrained: training started from weights that had seen other data.
        seeded: batches and noise came from a user's seed.
        count_noised: `records` is n with noise that the epsilons account for, and nothing else depends on n, so that
            even a record's presence is hidden. False: n is public.
        weights: digest of the trained model; "" before training.
        unit: neighbouring data sets differ in one "record", or in one "person" with all of their rows. Batches are then
            of persons, and `clipping` bounds the sum over a person's rows.
        rows_per_person: largest number of a person's rows; with unit "person" only.
        own_loop: the loop was the user's own, known only from the accountant's history.
        generator: the cryptographic generator of noise and batches, in words; "" for any other, or a seed.

    Raises:
        ConfigurationError: the parameters contradict each other.
    """

    mechanism: str
    records: int
    delta: float
    phases: tuple[Steps, ...] = ()
    pure_epsilon: float | None = None
    pure_add_remove: float | None = None
    clipping: str = ""
    expected_batch_size: float | None = None
    trained: str = "all parameters"
    pretrained: bool = False
    seeded: bool = False
    count_noised: bool = False
    weights: str = ""
    unit: Unit = "record"
    rows_per_person: int | None = None
    own_loop: bool = False
    generator: str = ""

    def __post_init__(self) -> None:
        if self.unit not in get_args(Unit):
            raise ConfigurationError(f"unit: expected one of {', '.join(get_args(Unit))}, got {self.unit!r}")
        if (self.unit == "person") != (self.rows_per_person is not None):
            raise ConfigurationError(
                f'rows_per_person belongs to unit="person", got {self.rows_per_person!r} and {self.unit!r}'
            )
        if self.rows_per_person is not None:
            whole_number("rows_per_person", self.rows_per_person, 1)
        if bool(self.phases) == (self.pure_epsilon is not None):
            raise ConfigurationError("a statement has either phases of the Gaussian mechanism or a pure_epsilon")
        if len(self.phases) > MOST_PHASES:
            raise ConfigurationError(
                f"phases: expected at most {MOST_PHASES:,}, got {len(self.phases):,}; join equal steps"
            )
        if whole_number("records", self.records, 1) > MAX_RECORDS:
            raise ConfigurationError(f"records: expected at most {MAX_RECORDS:g}")
        if self.expected_batch_size is not None:
            check_number("expected_batch_size", self.expected_batch_size, above=0.0)
        if self.pure_epsilon is not None and (self.delta != 0 or not 0 < self.pure_epsilon < math.inf):
            raise ConfigurationError(
                f"a pure guarantee needs a finite epsilon above 0 and delta 0, got {self.pure_epsilon}, {self.delta}"
            )
        if self.pure_add_remove is not None and not 0 < self.pure_add_remove <= (self.pure_epsilon or 0):
            raise ConfigurationError(
                f"pure_add_remove: expected a number above 0 and at most pure_epsilon {self.pure_epsilon}, got"
                f" {self.pure_add_remove}"
            )
        if self.phases:
            check_delta(self.delta)
        size = self.expected_batch_size
        for phase in self.phases:
            if size is not None and not math.isclose(phase.sample_rate, size / self.records, rel_tol=1e-9):
                raise ConfigurationError(
                    f"sample_rate: expected expected_batch_size / records = {size:g} / {self.records} ="
                    f" {size / self.records:g}, of the data trained on, got {phase.sample_rate:g}"
                )

    @cached_property
    def epsilons(self) -> Epsilons:
        """Epsilons under every adjacency."""
        if self.pure_epsilon is None:
            return composed(self.phases, self.delta)
        present = self.pure_add_remove or self.pure_epsilon
        return Epsilons(present, self.pure_epsilon, present, 0.0)

    def check_model(self, model: Any) -> None:
        """Raise `RefusedError` unless it is about this torch module or fitted estimator."""
        if not self.weights:
            raise RefusedError(
                "the privacy statement names no weights, so nothing binds it to this model. Pass that of the finished"
                " training (`privacy_`, `trained.statement`), or vouch for your own: statement.bound_to(model)"
            )
        if (found := trained_digest(model)) != self.weights:
            raise RefusedError(
                f"the privacy statement is about other weights than this {type(model).__name__}'s: expected"
                f" {self.weights[:16]}..., got {found[:16]}...; the model was changed since, or the statement is of"
                " another one: pass that of this model's training"
            )

    def bound_to(self, model: Any) -> PrivacyStatement:
        """This statement, bound to the weights of a model. You vouch that it was trained as stated; nothing checks it.

        Raises:
            RefusedError: this is about another model already.
            ConfigurationError: not a model, or not fitted.
        """
        if self.weights:
            self.check_model(model)
        return replace(self, weights=trained_digest(model))

    @property
    def not_protected(self) -> tuple[str, ...]:
        """What the guarantee does not cover."""
        several = OTHER_NAMES if self.unit == "person" else SEVERAL
        return (IN_COMMON, several, CHOICES, *NEVER, *((PRETRAINED,) if self.pretrained else ()))

    @property
    def protects(self) -> dict[Adjacency, str]:
        """What an observer of the model cannot tell, up to epsilon and delta."""
        return PERSONS_PROTECTED if self.unit == "person" else PROTECTS

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What must hold for the guarantee."""
        sampled = dict.fromkeys(SAMPLED[p.sampling] for p in self.phases)
        counted = () if self.count_noised else (COUNTED,)
        lines = (PUBLIC, *sampled, *counted, randomness(self.generator, seeded=self.seeded))
        if self.unit == "person":
            lines = tuple(line.replace("record", "person") for line in lines)
        return lines + (OWN_LOOP if self.own_loop else ())

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, epsilons and texts included."""
        stated = {**asdict(self), "phases": [*map(asdict, self.phases)]}
        for later in fields(self):
            if later.name in _LATER and stated[later.name] == later.default:
                del stated[later.name]
        return {
            **stated,
            "epsilon": self._by_adjacency,
            "protects": dict(self.protects),
            "not_protected": list(self.not_protected),
            "assumptions": list(self.assumptions),
            "accountant": f"dp-accounting {version('dp-accounting')}, privacy loss distributions",
        }

    @property
    def _by_adjacency(self) -> dict[str, float | None]:
        spent = {name: self.epsilons.of(name) for name in get_args(Adjacency)}
        return {name: value if math.isfinite(value) else None for name, value in spent.items()}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> PrivacyStatement:
        """The statement that `to_dict` wrote; `InputError` if its epsilons do not follow."""
        names = {f.name for f in fields(cls)}
        derived = {"epsilon", "protects", "not_protected", "assumptions", "accountant"}
        needed = (names | derived) - _LATER
        if not isinstance(content, Mapping) or not needed <= content.keys() <= names | derived:
            raise InputError(f"privacy statement: expected the fields {', '.join(sorted(needed))}")
        given = {name: content[name] for name in names & content.keys()}
        try:
            found = from_table(cls, given, "its table")
            check_follows(content["epsilon"], found._by_adjacency, "epsilon", "its parameters", (TOLERANCE, TOLERANCE))
        except (TypeError, ValueError, AttributeError, OverflowError) as error:
            raise InputError(f"privacy statement: {error!s:.500}") from None
        return found

    def save(self, path: str | Path) -> Path:
        """Write it as JSON, or raise `InputError`."""
        return write_atomically(path, (json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n").encode())

    @classmethod
    def load(cls, path: str | Path) -> PrivacyStatement:
        """Read what `save` wrote, or raise `InputError`."""
        return cls.from_dict(strict_json.load(path, "privacy statement"))

    def rows(self) -> dict[str, str]:
        """The most important facts, by name."""
        spent = self.epsilons
        rows = {
            "Mechanism": self.mechanism,
            "Clipping": self.clipping,
            f"{self.unit}s".capitalize(): f"about {self.records:,}" if self.count_noised else f"{self.records:,}",
            "Rows of a person": "" if self.rows_per_person is None else f"at most {self.rows_per_person:,}",
            "Expected batch size": "" if self.expected_batch_size is None else f"{self.expected_batch_size:g}",
            "Steps": "; ".join(_steps(p) for p in self.phases),
            "Trained": self.trained,
            "Delta": f"{self.delta:g}",
            f"Epsilon, one {self.unit} added or removed": _epsilon(spent.add_remove),
            f"Epsilon, one {self.unit} substituted": _epsilon(spent.substitute),
            "Warning": SEEDED if self.seeded else "",
        }
        return {name: value for name, value in rows.items() if value}

    def to_markdown(self) -> str:
        """A section for a model card."""
        table = "\n".join(f"| {name} | {value} |" for name, value in self.rows().items())
        lists = "\n\n".join(
            f"{title}:\n\n" + "\n".join(f"- {line}" for line in lines)
            for title, lines in (
                ("Protected, up to epsilon and delta", [self.protects["add_remove"], self.protects["substitute"]]),
                ("Not protected", self.not_protected),
                ("Assumed", self.assumptions),
            )
        )
        return f"## Differential privacy\n\n| | |\n|---|---|\n{table}\n\n{lists}\n"

    def __str__(self) -> str:
        spent = str(self.epsilons).replace("one record", f"one {self.unit}")
        return f"{self.mechanism} on {self.records:,} {self.unit}s: {spent}"


def _steps(phase: Steps) -> str:
    return (
        f"{phase.steps:,} steps with noise multiplier {phase.noise_multiplier:.4g}, {phase.sampling} batches, sample"
        f" rate {phase.sample_rate:.4g}"
    )


def _epsilon(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "infinite: no guarantee"
