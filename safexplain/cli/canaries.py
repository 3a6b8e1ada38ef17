"""`safexplain canaries`: does a training with DP keep the epsilon that it claims, if one record is substituted?"""

from __future__ import annotations

from safexplain.cli.options import CanaryOptions, asks


@asks
def canaries_command(given: CanaryOptions) -> int:
    """Audit training with DP by canaries: a lower bound on epsilon, beside the epsilons that are claimed."""
    from safexplain.cli.run.canaries import audit_by_canaries

    return audit_by_canaries(given)
