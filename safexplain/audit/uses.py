"""Which verdicts count as uses of the certification examples."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from typing import Any

from safexplain.audit.holdout_uses import Uses, default_path
from safexplain.errors import InputError, UsesWarning

CONFIGURES = ("explainer", "output", "options", "hardening", "seed", "recipe", "references", "asked")
"""Entries of the signals' meta data that make another configuration. The policy does not: a bound may be compared with
any limit."""


def uses_of(meta: Mapping[str, Any], force: bool) -> Uses | None:
    """Where a verdict on signals with this meta data is counted.

    None for signals that do not name their population, so that examples cannot be recognised, and for native
    explanations: every audit shows what attacks find in those, so looking at them chooses nothing.
    """
    if "population" not in meta or "hardening" not in meta:
        return None
    text = json.dumps({name: meta.get(name) for name in CONFIGURES}, sort_keys=True)
    uses = Uses(default_path(), hashlib.sha256(text.encode()).hexdigest(), force)
    try:
        uses.check()
    except InputError as error:
        warnings.warn(f"{error}; this verdict is not counted", UsesWarning, stacklevel=2)
        return None
    return uses
