"""`safexplain verify` and `safexplain sign`: what a deployment asks of a certificate before it goes on.

Exit codes of verify: 0 intact, of this very file, certified (or by construction), and served by the versions installed
here; 1 anything else that is wrong with the certificate, the model or the versions, in one line; 2 wrong usage.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from safexplain.cli.console import Json, option


def verify_command(
    certificate: Annotated[Path, typer.Argument(metavar="CERTIFICATE", help="certificate.json, signed or not.")],
    model: Annotated[
        Path | None, option("FILE", "Model file to deploy; required for the certificate of a model's audit.")
    ] = None,
    public_key: Annotated[
        Path | None, option("FILE", "Public key (ed25519, PEM) with which the certificate must be signed.")
    ] = None,
    any_verdict: Annotated[
        bool, option("", "Accept the verdicts leak and inconclusive as well.", None, "--any-verdict")
    ] = False,
    any_version: Annotated[
        bool,
        option(
            "", "Accept a certificate that the versions installed here would refuse to serve.", None, "--any-version"
        ),
    ] = False,
    json_: Json = False,
) -> int:
    """Check that a certificate is intact, is about this model file, and says certified or holds by construction."""
    from safexplain.cli.run.verify import verify

    return verify(certificate, model, public_key, any_verdict, any_version, json_)


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
