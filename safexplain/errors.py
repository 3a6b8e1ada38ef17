"""Errors and warnings of safexplain. Each error also derives from the built-in that Python users would catch."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint for an unknown name: the known name that was probably meant, or "".

    >>> did_you_mean("LikelyhoodRatio", ["Threshold", "LikelihoodRatio"]), did_you_mean("xyz", ["Threshold"])
    ('; did you mean LikelihoodRatio?', '')
    """
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.7)
    return f"; did you mean {by_lower[close[0]]}?" if close else ""


class SafexplainError(Exception):
    """Base of every error that safexplain raises on purpose."""


class InputError(SafexplainError, ValueError):
    """Data, a model file or an argument is unusable: unreadable, of the wrong shape, out of range or not finite."""


class ConfigurationError(SafexplainError, ValueError):
    """A hardening, recipe, policy or other configuration has an invalid value."""


class ConfigurationTypeError(ConfigurationError, TypeError):
    """A hardening, recipe, policy or other configuration has a value of the wrong type."""


class RefusedError(SafexplainError, RuntimeError):
    """The request would release more than the hardened arrays, or something other than its name promises."""


class CertificateError(SafexplainError, ValueError):
    """A certificate cannot be trusted: damaged, altered, without the expected signature, or about something else."""


class MissingExtraError(SafexplainError, ImportError):
    """An optional dependency is missing; the message names the extra that installs it."""


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Run imports that need an extra of this package; MissingExtraError: a module is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        message = f'{error.name} is not installed; install the extra: pip install "safexplain[{extra}]"'
        raise MissingExtraError(message, name=error.name) from error


class ProhibitedReasonError(SafexplainError, ValueError):
    """A prohibited column influences the decision: no explanation can be given, and the model must not be used."""


class NotHardenedError(SafexplainError, ImportError):
    """A module named after a library has no hardened version of this name; the message lists its names."""


class InfeasibleError(SafexplainError, ValueError):
    """Some queries have no recourse within the constraints; `result` holds the answers to the others.

    Attributes:
        result: the whole `Recourse`, invalid rows included.
        rows: positions of the queries without recourse.
    """

    def __init__(self, message: str, *, result: Any = None, rows: Any = ()) -> None:
        super().__init__(message)
        self.result, self.rows = result, rows


class BudgetExhausted(SafexplainError, RuntimeError):
    """A release would exceed a privacy budget; nothing was charged and nothing was released.

    Attributes:
        principal: owner of the account; None: all principals together.
        requested: epsilon of the release that was refused.
        spent: epsilon spent so far.
        budget: the limit on epsilon.
        renews: when the budget renews (UTC); None: never.
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
        self.principal, self.renews = principal, renews
        self.requested, self.spent, self.budget = requested, spent, budget


class RequestError(InputError):
    """A request to a service is invalid; the message may be shown to the client.

    Attributes:
        field: name of the invalid field of the request; "": none in particular.
        status: HTTP status code.
    """

    def __init__(self, message: str, *, field: str = "", status: int = 422) -> None:
        super().__init__(message)
        self.field, self.status = field, status


class UnavailableError(SafexplainError, RuntimeError):
    """A service is closed or overloaded; a later request may succeed."""


class LedgerError(SafexplainError, RuntimeError):
    """A ledger is unusable: locked, read-only, damaged, or written by a newer version."""


class NoKeyWarning(UserWarning):
    """The noise has no key: this process drew one, and a restart or another process will draw a different one."""


class WeakKeyWarning(UserWarning):
    """The noise key is short enough to be guessed."""


class PredictedClassWarning(UserWarning):
    """A single output stands for two classes: values explain the predicted class, natively class 1."""


class OpaqueModelWarning(UserWarning):
    """The explained callable hides its model, so the noise cannot depend on the model's parameters."""


class TrainingModeWarning(UserWarning):
    """The explained model is in training mode, in which dropout and batch statistics change its outputs each time."""


class DataWarning(UserWarning):
    """The data look different from the training data; perhaps they were prepared in another way."""


class UsesWarning(UserWarning):
    """Uses of certification examples cannot be counted, so testing another configuration on them goes unnoticed."""


class WeakDeltaWarning(UserWarning):
    """Delta is so large that a mechanism which publishes a whole record could satisfy it."""


class PrivacyWarning(UserWarning):
    """Training with differential privacy behaves in an unexpected way; the message explains how."""
