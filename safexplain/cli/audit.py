"""Commands that judge: `audit`, `tune`, `attack` and `demo` what is released, `canaries` a training; and `verify` and
`sign`, what a deployment asks of a certificate.

Exit codes of verify: 0 intact, of this very file, certified (or by construction), and served by the versions installed
here; 1 anything else that is wrong with the certificate, the model or the versions, in one line; 2 wrong usage.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from safexplain.cli.console import choose_folder, device_of, make_folder, resumable
from safexplain.cli.options import (
    ATTACKS,
    DATA,
    EXPLANATION,
    JSON,
    MAX_TPR,
    MODEL,
    ON_CPU,
    POLICY,
    POLICY_FILE,
    POLICY_FPR,
    QUIET,
    REFERENCES,
    RESUME,
    RUN,
    RUN_DIR,
    SEED,
    CanaryOptions,
    Options,
    VerifyOptions,
    asks,
    option,
    policy_of,
)
from safexplain.errors import CertificateError, ConfigurationError

if TYPE_CHECKING:
    from safexplain.audit.certify import SplitName

SEARCH = "Search"
"""Heading of the options of a search."""


@asks
def audit_command(
    given: Options,
    hardening: str = option("recommended", "HARDENING", "recommended, none, deepleak, JSON or its file.", EXPLANATION),
    pretraining_pool: Path | None = option(
        None, "PATH", "Audit membership in this pre-training data, not in --data.", DATA
    ),
    endpoint: str | None = option(None, "URL", "Explanation service to audit, not a model file.", MODEL),
    format_: str | None = option(
        None, "FORMAT", "kserve-v1, v2, json or a TOML file.  \\[default: json]", MODEL, "--format"
    ),
    public: Path | None = option(
        None, "PATH", "Public rows, for explainers that need them, as LimeTabular.", EXPLANATION
    ),
    quick: bool = option(False, "", "A first look in two minutes, which decides nothing.", RUN, "--quick"),
    scored: int | None = option(
        None, "N", "Examples to score.  \\[default: as many as the policy needs]", REFERENCES, min=2
    ),
) -> int:
    """Attack a model's explanations, native and hardened, or a service's answers, and judge what is released."""
    from safexplain.audit.endpoint.payload import Payload
    from safexplain.audit.planning.plan import planned
    from safexplain.audit.run import answered
    from safexplain.cli.run.planned import announce, show_plan
    from safexplain.cli.run.question import Asked, Service, begun, parse_hardening
    from safexplain.cli.run.quick import PLANNING, numbers_of, show_quick
    from safexplain.cli.run.tables import show_audit

    if endpoint is None and format_ is not None:
        raise ConfigurationError("--format describes the service of --endpoint; expected --endpoint URL, got none")
    service = None if endpoint is None else Service(endpoint, Payload.read(format_ or "json"))
    kept = "finished models" if service is None else "finished models and answers"
    asked = Asked(
        given=given, hardening=parse_hardening(hardening), pool=pretraining_pool, service=service, scored=scored,
        public=public, grows=True,
    )  # fmt: skip
    with begun(asked, kept) as run:
        plan = planned(run.question, then=run.then, **({"budget": PLANNING} if quick else {}))
        if given.plan:
            plan = replace(plan, notes=(*run.says, *plan.notes))
            return show_plan(plan, run.folder, given.json_, given.quiet)
        if not (given.quiet or quick):
            announce(plan, run.says, gradients=run.found.tabular is None, gpu=run.question.place.type == "cuda")
        if not quick:
            run.progress.expect((stage.name, stage.seconds) for stage in plan.stages)
        found = answered(run.ready(**numbers_of(plan, run.question) if quick else {}))
        found.save(run.folder)
    if quick:
        return show_quick(found, plan, run.folder, json_=given.json_, quiet=given.quiet)
    return show_audit(found, run.folder, given.json_, given.quiet)


@asks
def tune_command(
    given: Options,
    trials: int = option(100, "N", "Releases to try.", SEARCH, min=1),
    public: Path | None = option(None, "FILE", "Public examples (x, y), to compare with models of them.", SEARCH),
) -> int:
    """Search for the release that leaks least and keeps most utility, then audit the chosen one."""
    from safexplain.cli.run.tune import run_tune

    return run_tune(given, trials, public)


def attack_command(
    signals: Annotated[
        Path,
        typer.Argument(metavar="SIGNALS", help="signals.npz with membership, and arrays such as l1 or attributions."),
    ],
    policy: Path | None = POLICY_FILE,
    policy_fpr: float | None = POLICY_FPR,
    max_tpr: float | None = MAX_TPR,
    attacks: str | None = ATTACKS,
    split: str = option("certification", "NAME", "certification, or selection, which decides nothing.", POLICY),
    seed: int = SEED,
    json_: bool = JSON,
    quiet: bool = QUIET,
) -> int:
    """Run the attacks alone, on signals from any pipeline, and judge them."""
    from safexplain._progress import show_progress
    from safexplain.audit import Signals, certify
    from safexplain.cli.run.tables import show_attacks

    judged_by = policy_of(policy, policy_fpr, max_tpr, attacks)
    if split not in ("certification", "selection"):
        raise ConfigurationError(f"--split: expected certification or selection, got {split!r}")
    loaded = Signals.load(signals)
    with show_progress(quiet) as progress:
        result = certify(loaded, judged_by, split=cast("SplitName", split), seed=seed, progress=progress)
    return show_attacks(result, json_, quiet)


def demo_command(
    seed: int = SEED,
    device: str = ON_CPU,
    run_dir: Path | None = RUN_DIR,
    resume: bool = RESUME,
    json_: bool = JSON,
    quiet: bool = QUIET,
) -> int:
    """Attack, harden and attack again models of handwritten digits. Takes about a minute; the exit code is 0."""
    from safexplain._progress import show_progress
    from safexplain.audit.controls.holdout_uses import counted_in
    from safexplain.cli.run.demo import run_demo
    from safexplain.cli.run.tables import show_audit

    device_of(device)
    folder = choose_folder(run_dir, resume)
    with resumable(folder), show_progress(quiet) as progress:
        make_folder(folder)
        with counted_in(folder / "uses.sqlite"):  # other audits of these digits are not its business
            found = run_demo(folder / "models", seed=seed, device=device, progress=progress)
        found.save(folder)
    show_audit(found, folder, json_, quiet)
    return 0  # a demonstration has no wrong outcome


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
    key: Path = option(..., "FILE", "Private key (ed25519, PEM) without a password."),
    out: Path | None = option(None, "FILE", "File to write.  \\[default: the certificate itself]"),
) -> int:
    """Check a certificate and sign it (DSSE envelope)."""
    from safexplain.verdict.certificate.read import load_any
    from safexplain.verdict.certificate.sign import sign_certificate
    from safexplain.verdict.certificate.write import write_json

    found = load_any(certificate)
    if found.signature != "none":
        raise CertificateError(f"{certificate} is signed already; sign the certificate as it was written")
    path = write_json(out or certificate, sign_certificate(found.statement, key))
    typer.echo(f"{path} is signed.")
    return 0
