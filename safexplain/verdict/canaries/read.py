"""Reading what `safexplain canaries` wrote. No torch here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safexplain.errors import InputError
from safexplain.verdict.canaries.finding import Finding
from safexplain.verdict.canaries.one_run import OneRunResult
from safexplain.verdict.canaries.result import CanaryResult

__all__ = ["finding_of", "load_finding"]


def finding_of(content: Any) -> Finding:
    """The finding that its `to_dict` gave, its bound computed again.

    Raises:
        InputError: it is none, or states what does not follow from its counts.
    """
    if not isinstance(content, Mapping):
        raise InputError(f"canaries: expected an object as `safexplain canaries --json` prints, got {content!r:.60}")
    return (OneRunResult if "guesses" in content else CanaryResult).from_dict(content)


def load_finding(path: str | Path) -> Finding:
    """Read canaries.json.

    Raises:
        InputError: it cannot be read, or as `finding_of`.
    """
    try:
        content = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read the canaries {path}: {error}") from None
    return finding_of(content)
