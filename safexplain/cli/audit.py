"""The commands `audit`, `tune`, `attack`, `demo`, `canaries`, `verify` and `sign`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from safexplain.cli import options as shared
from safexplain.cli.console import choose_folder, device_of, make_folder, resumable
from safexplain.cli.options import option, with_options
from safexplain.errors import CertificateError, ConfigurationError

if TYPE_CHECKING:
    from safexplain.audit.certify import SplitName

SEARCH = "Search"  # heading of options


@with_options
def audit_command(
    given: shared.Options,
    hardening: str = option(
        "recommended", "HARDENING", "recommended, none, deepleak, or JSON (or its file).", shared.EXPLANATION
    ),
    pretraining_pool: Path | None = option(None, "PATH", "Audit membership in this pre-training data.", shared.DATA),
    endpoint: str | None = option(None, "URL", "Explanation service to audit, in place of MODEL.", shared.MODEL),
    format_: str | None = option(
        None, "FORMAT", "Its format: kserve-v1, v2, json, or a TOML file.  \\[default: json]", shared.MODEL, "--format"
    ),
    public: Path | None = option(None, "PATH", "Public rows, for explainers such as LimeTabular.", shared.EXPLANATION),
    quick: bool = option(False, "", "Take a first look in two minutes; it decides nothing.", shared.RUN, "--quick"),
    scored: int | None = option(
        None, "N", "Examples to score.  \\[default: as many as the policy needs]", shared.REFERENCES, min=2
    ),
) -> int:
    """Attack the explanations of a model (native and hardened) or of a running service, and give a verdict."""
    from safexplain.audit.endpoint.payload import Payload
    from safexplain.audit.planning import planned
    from safexplain.audit.run import answered
    from safexplain.cli.run.preview import PLANNING, announce, quick_changes, show_plan, show_quick
    from safexplain.cli.run.question import Request, Service, parse_hardening, prepared_run
    from safexplain.cli.run.tables import show_audit

    if endpoint is None and format_ is not None:
        raise ConfigurationError("--format only works with --endpoint URL; leave it out")
    service = None if endpoint is None else Service(endpoint, Payload.read(format_ or "json"))
    kept = "finished models" if service is None else "finished models and answers"
    request = Request(
        given=given, hardening=parse_hardening(hardening), pool=pretraining_pool, service=service, scored=scored,
        public=public, grows=True,
    )  # fmt: skip
    with prepared_run(request, kept) as run:
        plan = planned(run.question, then=run.then, **({"budget": PLANNING} if quick else {}))
        if given.plan:
            plan = replace(plan, notes=(*run.warnings, *plan.notes))
            return show_plan(plan, run.folder, given.json_, given.quiet)
        if not (given.quiet or quick):
            announce(plan, run.warnings, gradients=run.inputs.tabular is None, gpu=run.question.place.type == "cuda")
        if not quick:
            run.progress.expect((stage.name, stage.seconds) for stage in plan.stages)
        found = answered(run.ready(**quick_changes(plan, run.question) if quick else {}))
        found.save(run.folder)
    if quick:
        return show_quick(found, plan, run.folder, json_=given.json_, quiet=given.quiet)
    return show_audit(found, run.folder, given.json_, given.quiet)


@with_options
def tune_command(
    given: shared.Options,
    trials: int = option(100, "N", "Number of releases to try.", SEARCH, min=1),
    public: Path | None = option(None, "FILE", "Public examples (x, y): compare with models of them.", SEARCH),
) -> int:
    """Search for the release with the least leakage and the most utility, then audit it."""
    from safexplain.cli.run.tune import run_tune

    return run_tune(given, trials, public)


def attack_command(
    signals: Annotated[
        Path, typer.Argument(metavar="SIGNALS", help=".npz file with membership and arrays such as l1 or attributions.")
    ],
    policy: Path | None = shared.POLICY_FILE,
    policy_fpr: float | None = shared.POLICY_FPR,
    max_tpr: float | None = shared.MAX_TPR,
    attacks: str | None = shared.ATTACKS,
    split: str = option("certification", "NAME", "certification, or selection (which decides nothing).", shared.POLICY),
    seed: int = shared.SEED,
    json_: bool = shared.JSON,
    quiet: bool = shared.QUIET,
) -> int:
    """Run only the attacks, on signals from any pipeline, and give a verdict."""
    from safexplain._progress import show_progress
    from safexplain.audit import Signals, certify
    from safexplain.cli.run.tables import show_attacks

    judged_by = shared.policy_of(policy, policy_fpr, max_tpr, attacks)
    if split not in ("certification", "selection"):
        raise ConfigurationError(f"--split: expected certification or selection, got {split!r}")
    loaded = Signals.load(signals)
    with show_progress(quiet) as progress:
        result = certify(loaded, judged_by, split=cast("SplitName", split), seed=seed, progress=progress)
    return show_attacks(result, json_, quiet)


def demo_command(
    seed: int = shared.SEED,
    device: str = shared.ON_CPU,
    run_dir: Path | None = shared.RUN_DIR,
    resume: bool = shared.RESUME,
    json_: bool = shared.JSON,
    quiet: bool = shared.QUIET,
) -> int:
    """Attack a model of handwritten digits, harden its explanations, and attack again. Takes about a minute."""
    from safexplain._progress import show_progress
    from safexplain.audit.controls.splits import counted_in
    from safexplain.cli.run.preview import run_demo
    from safexplain.cli.run.tables import show_audit

    device_of(device)
    folder = choose_folder(run_dir, resume)
    with resumable(folder), show_progress(quiet) as progress:
        make_folder(folder)
        with counted_in(folder / "uses.sqlite"):  # separate from other audits of these digits
            found = run_demo(folder / "models", seed=seed, device=device, progress=progress)
        found.save(folder)
    show_audit(found, folder, json_, quiet)
    return 0  # a demonstration has no wrong outcome


@with_options
def canaries_command(given: shared.CanaryOptions) -> int:
    """Audit training with DP by canaries: a lower bound on epsilon, compared with the claimed epsilons."""
    from safexplain.cli.run.canaries import audit_by_canaries

    return audit_by_canaries(given)


@with_options
def verify_command(given: shared.VerifyOptions) -> int:
    """Check that a certificate is intact, about this model file, and certified or by construction."""
    from safexplain.cli.run.verify import verify

    return verify(given)


def sign_command(
    certificate: Annotated[
        Path, typer.Argument(metavar="CERTIFICATE", help="certificate.json, by audit or by construction.")
    ],
    key: Path = option(..., "FILE", "Private key (ed25519, PEM) without a password."),
    out: Path | None = option(None, "FILE", "File to write.  \\[default: the certificate itself]"),
) -> int:
    """Check a certificate and sign it (DSSE envelope)."""
    from safexplain.verdict.certificate.read import load_any
    from safexplain.verdict.certificate.write import sign_certificate, write_json

    found = load_any(certificate)
    if found.signature != "none":
        raise CertificateError(f"{certificate} is already signed; give the unsigned certificate")
    path = write_json(out or certificate, sign_certificate(found.statement, key))
    typer.echo(f"{path} is signed.")
    return 0
