"""Every error that safexplain raises on purpose, and the warnings it gives.

Messages say what was expected, what came, and what to do. Each class also derives from the built-in that Python users
would catch (`ValueError`, `TypeError`, ...), so that existing `except` clauses keep working.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any


def near(word: str, known: Iterable[str]) -> str:
    """What a message adds about a name that does not exist: the one that was probably meant, or nothing.

    >>> near("LikelyhoodRatio", ["Threshold", "LikelihoodRatio"]), near("xyz", ["Threshold"])
    ('; did you mean LikelihoodRatio?', '')
    """
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.7)
    return f"; did you mean {by_lower[close[0]]}?" if close else ""


class SafexplainError(Exception):
    """Base of every error that safexplain raises on purpose."""


class InputError(SafexplainError, ValueError):
    """Data, a model file or an argument cannot be used: unreadable, wrong shape, out of range, not finite."""


class ConfigurationError(SafexplainError, ValueError):
    """A hardening, recipe or policy has a value that makes no sense."""


class ConfigurationTypeError(ConfigurationError, TypeError):
    """A hardening, recipe or policy has a value of the wrong type."""


class RefusedError(SafexplainError, RuntimeError):
    """The request would release more than the hardened arrays, or a result that is not what its name says."""


class CertificateError(SafexplainError, ValueError):
    """A certificate cannot be relied on: damaged, altered, not signed as asked for, or of something else."""


class MissingExtraError(SafexplainError, ImportError):
    """An optional dependency is not installed; the message names the extra that brings it."""


@contextmanager
def brought_by(extra: str) -> Iterator[None]:
    """Imports of what an extra of this package brings.

    Raises:
        MissingExtraError: one of them is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        said = f'{error.name} is not installed: pip install "safexplain[{extra}]"'
        raise MissingExtraError(said, name=error.name) from error


class ProhibitedReasonError(SafexplainError, ValueError):
    """A column that may be no reason is one: there is no explanation to give, and the model may not be used so."""


class NotHardenedError(SafexplainError, ImportError):
    """A module named after a library has no hardened version of this name; the message says which names it has."""


class InfeasibleError(SafexplainError, ValueError):
    """Some queries have no recourse within the constraints; what was found for the others is in `result`.

    Attributes:
        result: the whole `Recourse`, invalid rows included.
        rows: positions of the queries without an answer.
    """

    def __init__(self, message: str, *, result: Any = None, rows: Any = ()) -> None:
        super().__init__(message)
        self.result = result
        self.rows = rows


class BudgetExhausted(SafexplainError, RuntimeError):
    """A release would take an account past its privacy budget; nothing was charged and nothing was released.

    Attributes:
        principal: whose account, or None for all principals together.
        requested: epsilon of the release that was refused.
        spent: epsilon spent so far.
        budget: epsilon that may be spent.
        renews: when the budget renews (UTC), or None: never.
    """

    def __init__(
        self,
        message: str,
        *,
        principal: str | None = None,
        requested: float = 0.0,
        spent: float = 0.0,
        budget: float = 0.0,
        renews: datetime | None = None,
    ) -> None:
        super().__init__(message)
        self.principal = principal
        self.requested = requested
        self.spent = spent
        self.budget = budget
        self.renews = renews


class RequestError(InputError):
    """A request to a service cannot be answered as it is; the message may be shown to whoever sent it.

    Attributes:
        field: of the request, by name; "": none in particular.
        status: of HTTP.
    """

    def __init__(self, message: str, *, field: str = "", status: int = 422) -> None:
        super().__init__(message)
        self.field = field
        self.status = status


class UnavailableError(SafexplainError, RuntimeError):
    """A service cannot answer now: it is closed or overloaded; asking again later may help."""


class LedgerError(SafexplainError, RuntimeError):
    """A ledger cannot be used: locked, read-only, damaged, or written by a newer version."""


class NoKeyWarning(UserWarning):
    """Noise without a key: this process drew its own, and another process or a restart will draw another."""


class WeakKeyWarning(UserWarning):
    """The noise key is so short that it can be guessed."""


class PredictedClassWarning(UserWarning):
    """One output stands for two classes: the values of each row speak for the predicted one, natively for class 1."""


class OpaqueModelWarning(UserWarning):
    """The explained callable hides its model, so the noise cannot be tied to the model's parameters."""


class TrainingModeWarning(UserWarning):
    """The explained model is in training mode: dropout and batch statistics make its answers others each time."""


class DataWarning(UserWarning):
    """The data do not look like what the model was trained on: they were prepared otherwise, perhaps."""


class UsesWarning(UserWarning):
    """Uses of certification examples cannot be counted: another configuration on them will not be noticed."""


class WeakDeltaWarning(UserWarning):
    """Delta is so large that a mechanism which publishes a record outright could meet it."""


class PrivacyWarning(UserWarning):
    """Training with differential privacy does something that its user may not expect; the message says what."""
