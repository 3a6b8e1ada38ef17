"""Importing alibi: when it is needed, its licence stated once, and with random numbers for each call."""

from __future__ import annotations

import logging
import re
import threading
import warnings
from functools import cache
from importlib import import_module
from types import ModuleType

from safexplain.errors import MissingExtraError
from safexplain.explain.alibi.isolation import give_own_generators

__all__ = ["AlibiLicenceWarning", "load_alibi"]

_LAST_APACHE = (0, 9, 4)
_log = logging.getLogger(__name__)
_importing = threading.RLock()


class AlibiLicenceWarning(UserWarning):
    """The installed alibi is under the Business Source Licence 1.1, which is no open-source licence."""


def load_alibi() -> ModuleType:
    """The module alibi, with `alibi.explainers` imported.

    Raises:
        MissingExtraError: it is not installed, or cannot be imported; the message says which.

    Warns:
        AlibiLicenceWarning: once a process, for releases after 0.9.4.
    """
    with _importing:
        return _loaded()


@cache
def _loaded() -> ModuleType:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            alibi = import_module("alibi")
            import_module("alibi.explainers")
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "alibi":
            raise MissingExtraError(
                'Alibi\'s explainers need alibi, which is not installed: pip install "safexplain[alibi]"', name="alibi"
            ) from None
        raise MissingExtraError(
            f"alibi is installed, but importing it fails: {type(error).__name__}: {error}. The extra safexplain[alibi]"
            " brings what it needs; beside shap, alibi 0.9.4 needs ray too",
            name=getattr(error, "name", None),
        ) from error
    give_own_generators()
    _state_licence(str(alibi.__version__))
    return alibi


def _state_licence(version: str) -> None:
    if tuple(int(number) for number in re.findall(r"\d+", version)[:3]) <= _LAST_APACHE:
        _log.info("alibi %s is under the Apache Licence 2.0", version)
        return
    warnings.warn(
        f"alibi {version} is under the Business Source Licence 1.1: production use needs a licence from Seldon, except"
        " by non-profit educational institutions. 0.9.4 is the last release under the Apache Licence 2.0.",
        AlibiLicenceWarning,
        stacklevel=2,
    )
