"""`safexplain audit`, `tune`, `attack` and `demo`: what is released is attacked and judged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from safexplain.cli.console import choose_folder, device_of, make_folder, resumable
from safexplain.cli.options import (
    DATA,
    EXPLANATION,
    MODEL,
    POLICY,
    REFERENCES,
    RUN,
    Attacks,
    Device,
    Json,
    MaxTpr,
    Options,
    PolicyFile,
    PolicyFpr,
    Quiet,
    Resume,
    RunDir,
    Seed,
    asks,
    option,
    policy_of,
)
from safexplain.errors import ConfigurationError

if TYPE_CHECKING:
    from safexplain.audit.certify import SplitName

SEARCH = "Search"
"""Heading of the options of a search."""


@asks
def audit_command(
    given: Options,
    hardening: Annotated[
        str,
        option("HARDENING", "recommended, none, deepleak, JSON, or a JSON file.", EXPLANATION),
    ] = "recommended",
    pretraining_pool: Annotated[
        Path | None,
        option("PATH", "Pre-training data with a column member: audit membership in it, not in --data.", DATA),
    ] = None,
    endpoint: Annotated[
        str | None, option("URL", "URL of an explanation service to audit instead of a model file.", MODEL)
    ] = None,
    format_: Annotated[
        str | None,
        option(
            "FORMAT",
            "Format of the service's requests: kserve-v1, v2, json or a TOML file.  \\[default: json]",
            MODEL,
            "--format",
        ),
    ] = None,
    public: Annotated[
        Path | None,
        option(
            "PATH",
            "Public rows, in the form of --data, for explainers made from such rows, as LimeTabular.",
            EXPLANATION,
        ),
    ] = None,
    quick: Annotated[bool, option("", "A first look in two minutes, which decides nothing.", RUN, "--quick")] = False,
    scored: Annotated[
        int | None,
        option("N", "Examples to score, drawn at random.  \\[default: as many as the policy needs]", REFERENCES, min=2),
    ] = None,
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
    trials: Annotated[int, option("N", "Releases to try.", SEARCH, min=1)] = 100,
    public: Annotated[
        Path | None, option("FILE", "Public examples (x, y); models trained only on these are the comparison.", SEARCH)
    ] = None,
) -> int:
    """Search for the release that leaks least and keeps most utility, then audit the chosen one."""
    from safexplain.cli.run.tune import run_tune

    return run_tune(given, trials, public)


def attack_command(
    signals: Annotated[
        Path,
        typer.Argument(metavar="SIGNALS", help="signals.npz with membership, and arrays such as l1 or attributions."),
    ],
    policy: PolicyFile = None,
    policy_fpr: PolicyFpr = None,
    max_tpr: MaxTpr = None,
    attacks: Attacks = None,
    split: Annotated[
        str,
        option("NAME", "Examples to use: certification, or selection, which decides nothing.", POLICY),
    ] = "certification",
    seed: Seed = 0,
    json_: Json = False,
    quiet: Quiet = False,
) -> int:
    """Run the attacks alone, on signals from any pipeline, and judge them."""
    from safexplain._progress import shown
    from safexplain.audit import Signals, certify
    from safexplain.cli.run.tables import show_attacks

    judged_by = policy_of(policy, policy_fpr, max_tpr, attacks)
    if split not in ("certification", "selection"):
        raise ConfigurationError(f"--split: expected certification or selection, got {split!r}")
    loaded = Signals.load(signals)
    with shown(quiet) as progress:
        result = certify(loaded, judged_by, split=cast("SplitName", split), seed=seed, progress=progress)
    return show_attacks(result, json_, quiet)


def demo_command(
    seed: Seed = 0,
    device: Device = "cpu",
    run_dir: RunDir = None,
    resume: Resume = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> int:
    """Attack, harden and attack again models of handwritten digits. Takes about a minute; the exit code is 0."""
    from safexplain._progress import shown
    from safexplain.audit.controls.holdout_uses import counted_in
    from safexplain.cli.run.demo import run_demo
    from safexplain.cli.run.tables import show_audit

    device_of(device)
    folder = choose_folder(run_dir, resume)
    with resumable(folder), shown(quiet) as progress:
        make_folder(folder)
        with counted_in(folder / "uses.sqlite"):  # other audits of these digits are not its business
            found = run_demo(folder / "models", seed=seed, device=device, progress=progress)
        found.save(folder)
    show_audit(found, folder, json_, quiet)
    return 0  # a demonstration has no wrong outcome
