"""How much a client may ask a service that explains: distinct questions a period.

What limits a patient attacker is the number of distinct questions, for labels as for explanations. A question is named
by a digest of model, certificate and canonical input; asked again it is free, as its answer tells nothing new.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from safexplain._validate import check_whole, keep_number
from safexplain.errors import BudgetExhausted, ConfigurationError
from safexplain.ledger import Ledger
from safexplain.ledger.records import PERIODS, begins, renews
from safexplain.ledger.storage.sqlite import PROCESS_CLOCK


@dataclass(frozen=True)
class Limits:
    """What each client may ask.

    Args:
        questions: distinct questions a period.
        looks: distinct questions about one map a period, the first included: those so close to an earlier question
            that they count as another look at its map.
        period: "day", "week" (from Monday), "month", by the calendar in UTC, or "lifetime".
        quantile: share of public rows whose nearest other public row is taken for the same map; how close is close.

    Raises:
        ConfigurationError, ConfigurationTypeError: a value out of range, or of the wrong type.
    """

    questions: int = 1000
    looks: int = 5
    period: str = "day"
    quantile: float = 0.01

    def __post_init__(self) -> None:
        check_whole("Limits questions", self.questions, 1)
        check_whole("Limits looks", self.looks, 1)
        keep_number(self, "quantile", above=0.0, below=1.0)
        if self.period not in PERIODS:
            raise ConfigurationError(f"Limits period: expected one of {', '.join(PERIODS)}, got {self.period!r}")


class Budget:
    """Counts what each client of a service asked, and refuses what is too much; usable from threads.

    Args:
        ledger: where it is counted; None: in this process only, forgotten when it ends.
        limits: of each client.
        public: (n, ...) public rows; None: near-duplicates are not recognised.
        most_looks: looks at one map over all time, the highest patience that the certificate judged; None: no limit.
        subject: what the maps are of, as a digest of the model; looks at maps of different subjects count apart.
    """

    def __init__(
        self,
        ledger: Ledger | None,
        limits: Limits,
        *,
        public: NDArray[Any] | None = None,
        most_looks: int | None = None,
        subject: str = "",
    ) -> None:
        self.limits, self.most_looks = limits, most_looks
        self._asked: dict[str, dict[bytes, int]] = {}
        self._lock = threading.Lock()

    def check(self, client: str, digests: Sequence[bytes], x: NDArray[Any]) -> None:
        """Raise what `charge` would raise now; nothing is recorded.

        Args:
            client: who asks.
            digests: of the questions.
            x: (n, ...) inputs of the questions.

        Raises:
            BudgetExhausted: they do not all fit.
            LedgerError: the ledger cannot be read.
        """
        with self._lock:
            self._fitting(client, digests)

    def charge(self, client: str, digests: Sequence[bytes], x: NDArray[Any]) -> None:
        """Count the questions, all or none; durable when it returns. What this client asked before is free.

        Args:
            client: who asks.
            digests: of the questions.
            x: (n, ...) inputs of the questions.

        Raises:
            BudgetExhausted: they do not all fit; nothing was counted.
            LedgerError: the ledger cannot be written; nothing was counted.
        """
        with self._lock:
            now, new = self._fitting(client, digests)
            self._asked.setdefault(client, {}).update(dict.fromkeys(new, now))

    def describe(self) -> dict[str, Any]:
        """What is counted and how, in JSON types, for readiness."""
        return {"questions": self.limits.questions, "period": self.limits.period, "near_duplicates": False}

    def ping(self) -> None:
        """Raise LedgerError where the ledger cannot be reached."""

    def _fitting(self, client: str, digests: Sequence[bytes]) -> tuple[int, list[bytes]]:
        now, asked = PROCESS_CLOCK(), self._asked.get(client, {})
        begun = begins(self.limits.period, now)
        new = [digest for digest in dict.fromkeys(digests) if digest not in asked]
        used = sum(time >= begun for time in asked.values())
        if new and used + len(new) > self.limits.questions:
            raise BudgetExhausted(
                f"{len(new)} new questions do not fit, {used} of {self.limits.questions} being asked",
                principal=client, requested=len(new), spent=used, budget=self.limits.questions,
                renews=renews(self.limits.period, now),
            )  # fmt: skip
        return now, new
