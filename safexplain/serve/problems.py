"""Errors as a client sees them: a status and a sentence about the request, and nothing that was computed (RFC 9457)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from safexplain.errors import (
    BudgetExhausted,
    CertificateError,
    InputError,
    LedgerError,
    ProhibitedReasonError,
    RefusedError,
    RequestError,
    UnavailableError,
)


@dataclass(frozen=True)
class Problem:
    """An answer in application/problem+json.

    Args:
        status: of HTTP.
        type: the kind of problem, at the end of a URN.
        title: the same for all of a type.
        detail: what was expected, what came and what to do.
        field: of the request, where one is wrong.
        renews: when the budget does (RFC 3339), None: never; only of the type "budget".
        retry_after: seconds, for the header Retry-After; 0: it is not given.
    """

    status: int
    type: str
    title: str
    detail: str
    field: str = ""
    renews: str | None = None
    retry_after: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The members of the body."""
        found: dict[str, Any] = {"type": f"urn:safexplain:problem:{self.type}", "title": self.title}
        found |= {"status": self.status, "detail": self.detail}
        found |= {"field": self.field} if self.field else {}
        return found | ({"renews": self.renews} if self.type == "budget" else {})


def problem_of(error: BaseException) -> Problem:
    """What a client is told about an error: sentences of this package about the request, and nothing else.

    Args:
        error: raised by `Service` or while a request was read; of any other the client learns nothing.
    """
    if isinstance(error, RequestError):
        return Problem(error.status, "request", "The request cannot be answered", str(error), error.field)
    if isinstance(error, BudgetExhausted):
        spent = (429, "budget", "The budget of this client is spent", str(error))
        if error.renews is None:
            return Problem(*spent)
        seconds = math.ceil((error.renews - datetime.now(UTC)).total_seconds())
        renews = error.renews.isoformat().replace("+00:00", "Z")
        return Problem(*spent, renews=renews, retry_after=max(1, seconds))
    if isinstance(error, UnavailableError):
        return Problem(503, "unavailable", "The service cannot answer now", str(error), retry_after=1)
    if isinstance(error, LedgerError):
        said = "the ledger cannot be reached, and no new question is answered without it; ask again later"
        return Problem(503, "unavailable", "The service cannot answer now", said, retry_after=5)
    if isinstance(error, CertificateError | RefusedError):
        said = "the certificate does not hold for what is served; the operator is told in the log"
        return Problem(503, "certificate", "Nothing certified can be served", said)
    if isinstance(error, ProhibitedReasonError):
        return Problem(422, "reasons", "There are no reasons to give", "the operator is told why in the log")
    if isinstance(error, InputError):  # raised behind the checks of the service: its words may hold anything
        return Problem(422, "request", "The request cannot be answered", "the model cannot take this input")
    return Problem(500, "internal", "Internal error", "the request failed; the operator is told in the log")
