"""What an answer promises: differential privacy in numbers and in words, and what it rests on.

A guarantee comes from one of two places: from the privacy statement of the model that answers (`per` "model"), or from
the noise on each answer (`per` "answer"), which `MeteredRecourse` charges to a ledger before the answer leaves.
"""

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
"""Spent once, by training, however many answers follow; or by each answer anew."""

PUBLIC_GEOMETRY = (
    "the cost and its scales, the constraints, the target, the norm bound, the clamp and public weights were not"
    " computed from the training data"
)
PRIVATE_GEOMETRY = (
    "the cost and its scales, the constraints, the target, the norm bound and the clamp were not computed from the"
    " training data; weights were, by a training with differential privacy, which counts once besides"
)
NO_TIMING = (
    "nobody times answers to some 50 microseconds, as drawing larger noise takes longer; a service that can be timed"
    " answers at fixed intervals"
)
FAILURES_HIDDEN = "whether training failed, with which error or warning, is not told to who is given answers"
PUBLIC_QUERIES = "queries are not training data, or their owner is who asks: epsilon protects the training records"
VOUCHED = "the model was trained as its privacy statement says: that is its owner's word, and nothing here checks it"
NOT_CHARGED = "whoever gives the answers counts them: these were charged to no ledger, and n of them spend n epsilon"


@dataclass(frozen=True)
class Guarantee:
    """Differential privacy of recourse.

    Args:
        mechanism: its name and source.
        per: what spends epsilon: "model" (training, once) or "answer" (each query's answer; n answers at most n times).
        epsilon: bound on the privacy loss.
        delta: of the same.
        adjacency: what a neighbouring training set differs in.
        released: what leaves.
        why: the proof in a sentence.
        statement: of the trained model, or of the model that public weights come from, which spends once besides the
            answers; None before `fit`, and where there is no model that was trained privately.
        vouched: whether the statement is the word of who gave it, about a training that was not this package's.
        assumptions: what must hold.
        preprocessing: digest of the public preprocessing between people's frames and the rows that it holds for; None
            where rows come as they are.
        ledger: identity of the ledger that it was charged to (`Ledger.identity`); "" for none.
        charges: numbers of the charges there: of the training, where there was one, and then of each answer in turn.

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
            raise ConfigurationError("a guarantee names the ledger and the charges in it, or neither")

    @property
    def protects(self) -> str:
        """What an observer of the answers cannot tell, up to epsilon and delta."""
        return PROTECTS[self.adjacency]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        listed = {"assumptions": list(self.assumptions), "charges": list(self.charges), "protects": self.protects}
        return {**asdict(self), **listed, "statement": None if self.statement is None else self.statement.to_dict()}

    def __str__(self) -> str:
        once = "once, for any number of answers" if self.per == "model" else "for each answer"
        numbers = f"epsilon {self.epsilon:g}, delta {self.delta:g} ({self.adjacency})"
        told = f"{self.mechanism}: {numbers} {once}. {_sentence(self.why)}"
        return f"{told}. {_sentence(VOUCHED)}" if self.vouched else told


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def assumptions(*, seeded: bool | None, noised: bool = False, preprocessed: bool = False) -> tuple[str, ...]:
    """What every mechanism of this package assumes.

    Args:
        seeded: whether noise comes from a seed that the user gave; None: a statement says where it came from.
        noised: each answer has noise of its own.
        preprocessed: there is a `Preprocessing`.
    """
    timing = (NO_TIMING,) if noised else ()
    ranges = (PUBLIC_PREPROCESSING,) if preprocessed else ()
    drawn = () if seeded is None else (randomness("" if seeded else GENERATOR, seeded=seeded, whole=noised),)
    return (PUBLIC, PUBLIC_GEOMETRY, *ranges, PUBLIC_QUERIES, FAILURES_HIDDEN, *timing, *drawn)
