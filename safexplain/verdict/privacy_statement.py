"""What a training run guarantees, to whom, and under which assumptions: for certificates, model cards and auditors."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from safexplain._files import write_whole
from safexplain._privacy_loss import PROTECTS, Epsilons, Steps, check_delta, composed
from safexplain.errors import ConfigurationError, InputError

NOT_PROTECTED = (
    "what the records have in common: the model tells it about everybody, in the data or not",
    "several records of one person: epsilon is for one record",
    "choices made by looking at the data: hyperparameters, seeds or checkpoints picked by their results",
    "losses, gradients, skipped records, errors, warnings and other figures of the training run itself",
)
PRETRAINED = (
    "the data that the starting weights were trained on: attacks find its members through the fine-tuned model"
    " (Abascal, Wu, Oprea and Ullman 2023, arXiv 2306.01181)"
)
PUBLIC = "the options of the training, the architecture, the list of classes and all bounds are public constants"
COUNTED = (
    "the number of records is public: this statement tells it, and the training may depend on it; added or removed then"
    " means that a real record or an empty one stood in its place"
)
SAMPLED = {
    "poisson": "each record joined each batch by its own coin, and batches stay hidden",
    "fixed-size": "each batch was a uniformly random subset of fixed size, and batches stay hidden",
    "full-batch": "every record was in every batch",
}
SEEDED = (
    "batches and noise come from a seed that the user gave: there is no guarantee towards who knows it, or sees two"
    " trainings with it"
)
RANDOMNESS = "noise comes from a pseudo-random generator whose seed stays secret, in floating-point numbers"
TOLERANCE = 2e-3
"""Versions of the accountant may differ by so much in a stated epsilon, absolutely and relatively."""


@dataclass(frozen=True)
class PrivacyStatement:
    """A differential privacy guarantee: mechanism, parameters, and what follows from them.

    Epsilons are computed from the parameters, never stored beside them, so that they cannot disagree.

    Args:
        mechanism: its name and source.
        records: n, of the data actually trained on.
        delta: in [1e-12, 1) for the Gaussian mechanism; 0 for a pure guarantee.
        phases: the steps of the Gaussian mechanism, one after another, on the same records.
        pure_epsilon: of a mechanism without delta, under substitution; or None.
        pure_add_remove: the same under add/remove and zero-out; None: no better bound than `pure_epsilon` is known.
        clipping: how one record's share of a sum was bounded.
        expected_batch_size: the public constant that sums were divided by; sample rates must be this over `records`.
        trained: which parameters were trained.
        pretrained: whether training started from weights that had seen other data.
        seeded: whether batches and noise came from a seed that the user gave.
        count_noised: whether `records` is n with noise that the epsilons pay for, and nothing else depends on n: what
            hides whether a record was there at all. False: n is public.
        weights: `safexplain._digest.weights_digest` of the trained model; "" before training.

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

    def __post_init__(self) -> None:
        if bool(self.phases) == (self.pure_epsilon is not None):
            raise ConfigurationError("a statement has either phases of the Gaussian mechanism or a pure_epsilon")
        if self.records < 1:
            raise ConfigurationError(f"records: expected at least 1, got {self.records}")
        if self.pure_epsilon is not None and (self.delta != 0 or not 0 < self.pure_epsilon < math.inf):
            raise ConfigurationError(
                f"a pure guarantee has a finite epsilon above 0 and delta 0, got {self.pure_epsilon}, {self.delta}"
            )
        if self.pure_add_remove is not None and not 0 < self.pure_add_remove <= (self.pure_epsilon or 0):
            raise ConfigurationError(
                f"pure_add_remove: expected above 0 and at most pure_epsilon {self.pure_epsilon}, got"
                f" {self.pure_add_remove}"
            )
        if self.phases:
            check_delta(self.delta)
        size = self.expected_batch_size
        for phase in self.phases if size is not None else ():
            rate = (size or 0.0) / self.records
            if not math.isclose(phase.sample_rate, rate, rel_tol=1e-9):
                raise ConfigurationError(
                    f"sample_rate {phase.sample_rate:g} is not expected_batch_size / records ="
                    f" {size:g} / {self.records} = {rate:g}; it comes from the data trained on"
                )

    @cached_property
    def epsilons(self) -> Epsilons:
        """Under every adjacency, computed from the parameters."""
        if self.pure_epsilon is not None:
            present = self.pure_epsilon if self.pure_add_remove is None else self.pure_add_remove
            return Epsilons(present, self.pure_epsilon, present, 0.0)
        return composed(self.phases, self.delta)

    @property
    def not_protected(self) -> tuple[str, ...]:
        """What the guarantee does not speak about."""
        return NOT_PROTECTED + ((PRETRAINED,) if self.pretrained else ())

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What must hold for the guarantee."""
        sampled = dict.fromkeys(SAMPLED[p.sampling] for p in self.phases)
        return (PUBLIC, *sampled, *(() if self.count_noised else (COUNTED,)), SEEDED if self.seeded else RANDOMNESS)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, epsilons and words included; `from_dict` reads and checks them."""
        stated = {**asdict(self), "phases": [asdict(p) for p in self.phases]}
        spent = asdict(self.epsilons)
        del spent["delta"]
        return {
            **stated,
            "epsilon": {name: value if math.isfinite(value) else None for name, value in spent.items()},
            "protects": dict(PROTECTS),
            "not_protected": list(self.not_protected),
            "assumptions": list(self.assumptions),
            "accountant": f"dp-accounting {version('dp-accounting')}, privacy loss distributions",
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> PrivacyStatement:
        """The statement that `to_dict` wrote.

        Raises:
            InputError: fields are missing or unknown, or a stated epsilon does not follow from the parameters.
        """
        names = set(cls.__dataclass_fields__)
        derived = {"epsilon", "protects", "not_protected", "assumptions", "accountant"}
        if not isinstance(content, Mapping) or content.keys() != names | derived:
            raise InputError(f"privacy statement: expected the fields {', '.join(sorted(names | derived))}")
        try:
            phases = tuple(Steps(**p) for p in content["phases"])
            found = cls(**{**{name: content[name] for name in names}, "phases": phases})
            stated = {name: math.inf if value is None else float(value) for name, value in content["epsilon"].items()}
        except (TypeError, ValueError, AttributeError) as error:
            raise InputError(f"privacy statement: {error}") from None
        for name in ("add_remove", "substitute", "zero_out"):
            if not math.isclose(stated.get(name, -1), found.epsilons.of(name), rel_tol=TOLERANCE, abs_tol=TOLERANCE):
                raise InputError(
                    f"privacy statement: epsilon under {name} is stated as {stated.get(name)}, but"
                    f" {found.epsilons.of(name):.4f} follows from its parameters"
                )
        return found

    def save(self, path: str | Path) -> Path:
        """Write it as JSON.

        Raises:
            InputError: it cannot be written.
        """
        return write_whole(path, (json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n").encode())

    @classmethod
    def load(cls, path: str | Path) -> PrivacyStatement:
        """Read what `save` wrote, and compute its epsilons again.

        Raises:
            InputError: it cannot be read, is not a statement, or contradicts itself.
        """
        try:
            content = json.loads(Path(path).read_text())
        except (OSError, ValueError) as error:
            raise InputError(f"cannot read the privacy statement {path}: {error}") from None
        return cls.from_dict(content)

    def rows(self) -> dict[str, str]:
        """What a reader asks first, by name."""
        spent = self.epsilons
        rows = {
            "Mechanism": self.mechanism,
            "Clipping": self.clipping,
            "Records": f"about {self.records:,}" if self.count_noised else f"{self.records:,}",
            "Expected batch size": "" if self.expected_batch_size is None else f"{self.expected_batch_size:g}",
            "Steps": "; ".join(_steps(p) for p in self.phases),
            "Trained": self.trained,
            "Delta": f"{self.delta:g}",
            "Epsilon, one record added or removed": _epsilon(spent.add_remove),
            "Epsilon, one record substituted": _epsilon(spent.substitute),
            "Warning": SEEDED if self.seeded else "",
        }
        return {name: value for name, value in rows.items() if value}

    def to_markdown(self) -> str:
        """A section for a model card."""
        table = "\n".join(f"| {name} | {value} |" for name, value in self.rows().items())
        lists = "\n\n".join(
            f"{title}:\n\n" + "\n".join(f"- {line}" for line in lines)
            for title, lines in (
                ("Protected, up to epsilon and delta", [PROTECTS["add_remove"], PROTECTS["substitute"]]),
                ("Not protected", self.not_protected),
                ("Assumed", self.assumptions),
            )
        )
        return f"## Differential privacy\n\n| | |\n|---|---|\n{table}\n\n{lists}\n"

    def __str__(self) -> str:
        return f"{self.mechanism} on {self.records:,} records: {self.epsilons}"


def _steps(phase: Steps) -> str:
    return (
        f"{phase.steps:,} steps with noise multiplier {phase.noise_multiplier:.4g}, {phase.sampling} batches, sample"
        f" rate {phase.sample_rate:.4g}"
    )


def _epsilon(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "infinite: no guarantee"
