"""The guarantee of an answer: differential privacy in numbers and words, and its assumptions."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from safexplain._privacy_loss import PROTECTS, Adjacency, check_adjacency
from safexplain._secure_random import GENERATOR
from safexplain._validate import check_number
from safexplain.errors import ConfigurationError
from safexplain.recourse.preprocessing import PUBLIC_PREPROCESSING
from safexplain.verdict.privacy_statement import PUBLIC, PrivacyStatement, randomness

Per = Literal["model", "answer"]
"""What spends epsilon: the training, once for any number of answers, or each answer."""

PUBLIC_GEOMETRY = (
    "the cost and its scales, the constraints, the target, the norm bound, the clamp and public weights were not"
    " computed from the training data"
)
PRIVATE_GEOMETRY = (
    "the cost and its scales, the constraints, the target, the norm bound and the clamp were not computed from the"
    " training data; weights come from a training with differential privacy, whose epsilon counts once in addition"
)
NO_TIMING = (
    "attackers cannot time answers to within 50 microseconds (larger noise takes longer to draw); if they can, the"
    " service must answer at fixed intervals"
)
FAILURES_HIDDEN = "recipients of answers do not learn whether training failed, nor with which error or warning"
PUBLIC_QUERIES = "queries are not training data, or are asked by their owner: epsilon protects the training records"
VOUCHED = "the model was trained as its privacy statement says; this is its owner's word and was not checked"
NOT_CHARGED = "the provider counts the answers: these were charged to no ledger, and n of them spend n epsilon"


@dataclass(frozen=True)
class Guarantee:
    """Differential privacy of recourse.

    Args:
        mechanism: its name and source.
        per: what spends epsilon: "model" (training, once) or "answer" (each answer; `MeteredRecourse` charges them).
        epsilon: bound on the privacy loss.
        delta: probability with which the bound may fail.
        adjacency: how neighbouring training sets differ.
        released: what is released.
        why: the proof in a sentence.
        statement: of the trained model, or of the model that provides public weights and spends once in addition; None:
            before `fit`, or no privately trained model.
        vouched: whether the statement about a training outside this package is only its owner's word.
        assumptions: conditions of the guarantee.
        preprocessing: digest of the public preprocessing of frames; None: rows are plain numbers.
        ledger: identity of the ledger that was charged (`Ledger.identity`); "": none.
        charges: numbers of the charges there: of the training, if any, then of each answer.

    Raises:
        ConfigurationError: numbers out of range.
    """

    mechanism: str
    per: Per
    epsilon: float
    delta: float
    adjacency: Adjacency
    released: str
    why: str
    statement: PrivacyStatement | None = None
    vouched: bool = False
    assumptions: tuple[str, ...] = ()
    preprocessing: str | None = None
    ledger: str = ""
    charges: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_adjacency(self.adjacency)
        check_number("epsilon", self.epsilon, above=0)
        check_number("delta", self.delta, minimum=0, below=1)
        if bool(self.ledger) != bool(self.charges):
            raise ConfigurationError("a guarantee needs both the ledger and its charges, or neither")

    @property
    def protects(self) -> str:
        """What an observer of the answers cannot infer, up to epsilon and delta."""
        return PROTECTS[self.adjacency]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        listed = {"assumptions": list(self.assumptions), "charges": list(self.charges), "protects": self.protects}
        return {**asdict(self), **listed, "statement": None if self.statement is None else self.statement.to_dict()}

    def __str__(self) -> str:
        once = "once, for any number of answers" if self.per == "model" else "for each answer"
        numbers = f"epsilon {self.epsilon:g}, delta {self.delta:g} ({self.adjacency})"
        text = f"{self.mechanism}: {numbers} {once}. {_sentence(self.why)}"
        return f"{text}. {_sentence(VOUCHED)}" if self.vouched else text


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def assumptions(*, seeded: bool | None, noised: bool = False, preprocessed: bool = False) -> tuple[str, ...]:
    """Assumptions of every mechanism. `seeded`: whether noise comes from a seed of the user (None: a statement records
    its source); `noised`: whether each answer has its own noise."""
    timing = (NO_TIMING,) if noised else ()
    ranges = (PUBLIC_PREPROCESSING,) if preprocessed else ()
    drawn = () if seeded is None else (randomness("" if seeded else GENERATOR, seeded=seeded, whole=noised),)
    return (PUBLIC, PUBLIC_GEOMETRY, *ranges, PUBLIC_QUERIES, FAILURES_HIDDEN, *timing, *drawn)
