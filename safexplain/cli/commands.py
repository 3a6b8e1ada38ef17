"""`canaries`, which audits a training with DP; `verify` and `sign`, what a deployment asks of a certificate.

Exit codes of verify: 0 intact, of this very file, certified (or by construction), and served by the versions installed
here; 1 anything else that is wrong with the certificate, the model or the versions, in one line; 2 wrong usage.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from safexplain.cli.options import CanaryOptions, VerifyOptions, asks, option


@asks
def canaries_command(given: CanaryOptions) -> int:
    """Audit training with DP by canaries: a lower bound on epsilon, beside the epsilons that are claimed."""
    from safexplain.cli.run.canaries import audit_by_canaries

    return audit_by_canaries(given)


@asks
def verify_command(given: VerifyOptions) -> int:
    """Check that a certificate is intact, is about this model file, and says certified or holds by construction."""
    from safexplain.cli.run.verify import verify

    return verify(given)


def sign_command(
    certificate: Annotated[
        Path, typer.Argument(metavar="CERTIFICATE", help="certificate.json, of an audit or by construction.")
    ],
    key: Annotated[Path, option("FILE", "Private key (ed25519, PEM) without a password.")],
    out: Annotated[Path | None, option("FILE", "File to write.  \\[default: the certificate itself]")] = None,
) -> int:
    """Check a certificate and sign it (DSSE envelope)."""
    from safexplain.cli.run.verify import sign

    return sign(certificate, key, out)
