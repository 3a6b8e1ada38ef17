"""The command line: `safexplain audit | attack | canaries | ledger | ...`, and `safexplain-audit` for the first.

`app` lists the commands. They stand in `audit`, `canaries`, `demo`, `ledger` and `verify`, which parse options, call
the library and give back an exit code; `console` is what they share: tables, the run directory, errors in one line.

Exit codes: 0 certified, 1 leak proven, 3 inconclusive, 2 wrong usage or unusable input, 130 interrupted. `verify` gives
0 or 1.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Entry point of `safexplain`."""
    sys.exit(_run(sys.argv[1:]))


def audit_main() -> None:
    """Entry point of `safexplain-audit`, which is `safexplain audit`."""
    sys.exit(_run(["audit", *sys.argv[1:]]))


def _run(arguments: list[str]) -> int:
    # Threads that wait by spinning make small matrix products 20 times slower as soon as the cores are shared.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        from safexplain.cli.app import app
        from safexplain.cli.console import run
    except KeyboardInterrupt:
        return 130
    return run(app, arguments)
