"""Which verdicts count as uses of the certification examples."""

from __future__ import annotations

import hashlib
import json

from safexplain.audit import Signals
from safexplain.audit.uses import Uses, default_path

CONFIGURES = ("explainer", "output", "options", "hardening", "seed", "recipe", "references")
"""Entries of the signals' meta data that make another configuration. The policy does not: a bound may be compared with
any limit."""


def uses_of(signals: Signals, force: bool) -> Uses | None:
    """Where a verdict on these signals is counted.

    None for signals that do not name their population, so that examples cannot be recognised, and for native
    explanations: every audit shows what attacks find in those, so looking at them chooses nothing.
    """
    if "population" not in signals.meta or "hardening" not in signals.meta:
        return None
    text = json.dumps({name: signals.meta.get(name) for name in CONFIGURES}, sort_keys=True)
    return Uses(default_path(), hashlib.sha256(text.encode()).hexdigest(), force)
