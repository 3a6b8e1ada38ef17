"""What a recourse mechanism promises, in numbers and in words: for ledgers, certificates and compliance officers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from safexplain._privacy_loss import PROTECTS, Adjacency, check_adjacency
from safexplain.errors import ConfigurationError
from safexplain.verdict.privacy_statement import PUBLIC, RANDOMNESS, SEEDED, PrivacyStatement

Per = Literal["model", "answer"]
"""Spent once, by training, however many answers follow; or by each answer anew."""

PUBLIC_GEOMETRY = (
    "the cost and its scales, the constraints, the target, the norm bound, the clamp and public weights or directions"
    " were not computed from the training data"
)
UNTIMED = (
    "nobody times answers to some 50 microseconds, as drawing larger noise takes longer; a service that can be timed"
    " answers at fixed intervals"
)
UNTOLD = "whether training failed, with which error or warning, is not told to who is given answers"
PUBLIC_QUERIES = "queries are not training data, or their owner is who asks: epsilon protects the training records"


@dataclass(frozen=True)
class Guarantee:
    """Differential privacy of recourse, as its parameters give it.

    Args:
        mechanism: its name and source.
        is_private: whether there is a guarantee at all.
        per: what spends epsilon: "model" (training, once) or "answer" (each query's answer; n answers at most n times).
        epsilon: bound on the privacy loss; None where there is no guarantee.
        delta: of the same; None where there is no guarantee.
        adjacency: what a neighbouring training set differs in.
        released: what leaves.
        why: the proof in a sentence, or why there is no guarantee.
        statement: of the trained model; None before `fit`, and for mechanisms without a private model.
        assumptions: what must hold.

    Raises:
        ConfigurationError: a guarantee without numbers, or numbers without a guarantee.
    """

    mechanism: str
    is_private: bool
    per: Per
    epsilon: float | None
    delta: float | None
    adjacency: Adjacency
    released: str
    why: str
    statement: PrivacyStatement | None = None
    assumptions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_adjacency(self.adjacency)
        if self.is_private != (self.epsilon is not None) or self.is_private != (self.delta is not None):
            raise ConfigurationError("a guarantee has an epsilon and a delta, and without one there are neither")

    @property
    def protects(self) -> str:
        """What an observer of the answers cannot tell, up to epsilon and delta; "" where nothing is promised."""
        return PROTECTS[self.adjacency] if self.is_private else ""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        plain = {**asdict(self), "assumptions": list(self.assumptions), "protects": self.protects}
        return {**plain, "statement": None if self.statement is None else self.statement.to_dict()}

    def __str__(self) -> str:
        if not self.is_private:
            return f"{self.mechanism}: NOT private. {self.why}"
        once = "once, for any number of answers" if self.per == "model" else "for each answer"
        return f"{self.mechanism}: epsilon {self.epsilon:g}, delta {self.delta:g} ({self.adjacency}) {once}. {self.why}"


def assumptions(*, seeded: bool, noised: bool = False) -> tuple[str, ...]:
    """What every mechanism of this package assumes.

    Args:
        seeded: noise comes from a seed that the user gave.
        noised: each answer has noise of its own.
    """
    timing = (UNTIMED,) if noised else ()
    return (PUBLIC, PUBLIC_GEOMETRY, PUBLIC_QUERIES, UNTOLD, *timing, SEEDED if seeded else RANDOMNESS)
