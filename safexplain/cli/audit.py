"""`safexplain audit` and `safexplain attack`: what is released is attacked and judged, from a model or from signals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from safexplain._progress import shown
from safexplain.audit import Signals, audit, certify
from safexplain.audit.endpoint.payload import Payload
from safexplain.audit.planning import plan_audit
from safexplain.cli.console import WORDS, Json, Quiet, Seed, attack_table, show_audit, show_verdict
from safexplain.cli.planned import show_plan
from safexplain.cli.question import Attacks, MaxTpr, PolicyFile, PolicyFpr, Question, Service, asks, policy_of
from safexplain.errors import ConfigurationError
from safexplain.hardening.hardening import Hardening


@asks
def audit_command(
    question: Question,
    hardening: Annotated[str, typer.Option(help="recommended, none, deepleak, JSON, or a JSON file.")] = "recommended",
    pretraining_pool: Annotated[
        Path | None,
        typer.Option(help="Data of the pre-training, with a column member: then these are asked about."),
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option(help="URL of a service that explains, in the place of MODEL; --arch: of references.")
    ] = None,
    format_: Annotated[
        str | None, typer.Option("--format", help="Of --endpoint: kserve-v1, v2, json or a TOML file.  [default: json]")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A first look, with few models and examples: no certificate.")
    ] = False,
) -> int:
    """Attack a model's explanations, native and hardened, or those of a service, and judge what was released."""
    chosen = parse_hardening(hardening)
    if endpoint is None and format_ is not None:
        raise ConfigurationError("--format is how --endpoint is asked, and no --endpoint is given")
    service = None if endpoint is None else Service(endpoint, Payload.read(format_ or "json"))
    kept = "finished models" if service is None else "finished models and answers"
    with question.begun(kept, pool=pretraining_pool, service=service, quick=quick) as run:
        if question.plan:
            plan = plan_audit(**run.arguments, hardening=chosen)
            return show_plan(plan, run.folder, question.json_, question.quiet)
        found = audit(**run.arguments, hardening=chosen)
        found.save(run.folder)
    return show_audit(found, run.folder, question.json_, question.quiet)


def attack_command(
    signals: Annotated[Path, typer.Argument(help="signals.npz: membership, and arrays such as l1 or attributions.")],
    policy: PolicyFile = None,
    policy_fpr: PolicyFpr = None,
    max_tpr: MaxTpr = None,
    attacks: Attacks = None,
    split: Annotated[
        str, typer.Option(help="certification, or selection: for choosing, nothing is decided there.")
    ] = "certification",
    seed: Seed = 0,
    json_: Json = False,
    quiet: Quiet = False,
) -> int:
    """Run the attacks alone, on signals that any pipeline may have written."""
    judged_by = policy_of(policy, policy_fpr, max_tpr, attacks)
    if split not in ("certification", "selection"):
        raise ConfigurationError(f"--split is certification or selection, got {split!r}")
    loaded = Signals.load(signals)
    with shown(quiet or json_) as progress:
        result = certify(
            loaded,
            judged_by,
            split="selection" if split == "selection" else "certification",
            seed=seed,
            progress=progress,
        )
    if json_:
        typer.echo(json.dumps(result.to_dict(), allow_nan=False))
    elif quiet:
        typer.echo(WORDS[result.verdict])
    else:
        console = Console()
        console.print(attack_table(result))
        console.print()
        show_verdict(console, result)
    return result.exit_code


def parse_hardening(text: str) -> Hardening:
    """From "recommended", "none", "deepleak", JSON, or the path of a JSON file such as hardening.json of a search.

    Raises:
        ConfigurationError: none of these.
    """
    named = {"recommended": Hardening.recommended, "none": Hardening.none, "deepleak": Hardening.deepleak}
    stripped = text.strip()
    if stripped in named:
        return named[stripped]()
    if stripped.startswith("{"):
        return Hardening.from_json(stripped)
    path = Path(text)
    if not path.is_file():
        raise ConfigurationError(f"--hardening is {', '.join(named)}, JSON, or a JSON file; got {text!r}")
    try:
        return Hardening.from_json(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise ConfigurationError(f"--hardening: expected a hardening as JSON in {path}, which is no text") from None
