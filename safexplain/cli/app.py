"""The options of every command, and what each prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import safexplain
from safexplain._progress import shown
from safexplain.audit import Queries, Recipe, Signals, certify
from safexplain.audit.holdout_uses import uses_of
from safexplain.cli.audit import Effort, Source, audit_model
from safexplain.cli.canaries import canaries_command
from safexplain.cli.console import (
    WORDS,
    attack_table,
    controls_line,
    device_of,
    resumable,
    verdict_table,
)
from safexplain.cli.demo import run_demo
from safexplain.cli.folders import choose_folder
from safexplain.cli.ledger import ledger_app
from safexplain.cli.plan import QUERIES, Outcome
from safexplain.cli.policy_options import (
    Attacks,
    ClaimOf,
    Confidence,
    MaxExcess,
    MaxTpr,
    PolicyFile,
    PolicyFpr,
    Released,
    policy_of,
)
from safexplain.cli.release import parse_classes, parse_hardening, parse_method, parse_numbers
from safexplain.cli.verify import sign_command, verify_command
from safexplain.errors import ConfigurationError

app = typer.Typer(
    help="Prove or refute that explanations leak the training set.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no tables, only the verdict.")]
Seed = Annotated[int, typer.Option(min=0, help="Of everything random.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
RunDir = Annotated[Path | None, typer.Option(help="Where files go; default safexplain-runs/TIME.")]
Resume = Annotated[bool, typer.Option(help="Take up --run-dir: finished models are not trained again.")]
Force = Annotated[bool, typer.Option(help="Certify although these examples were used for other verdicts.")]
Split = Annotated[str, typer.Option(help="certification, or selection: for choosing, nothing is decided there.")]


@app.callback(invoke_without_command=True)
def version(show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Prove or refute that explanations leak the training set."""
    if show:
        typer.echo(f"safexplain {safexplain.__version__}")
        raise typer.Exit(0)


@app.command("audit")
def audit_command(
    model: Annotated[Path, typer.Argument(help="torch.export file, or a state_dict with --arch.")],
    data: Annotated[Path | None, typer.Option(help="data.npz (x, y, member), or CSV/parquet with --label.")] = None,
    arch: Annotated[str | None, typer.Option(help="timm:NAME, torchvision:NAME or package.module:function.")] = None,
    num_classes: Annotated[int | None, typer.Option(help="Outputs of --arch, where the file does not tell.")] = None,
    trust_pickle: Annotated[bool, typer.Option(help="Unpickle the model file, which can run any code in it.")] = False,
    label: Annotated[str | None, typer.Option(help="Label column of a table.")] = None,
    member_column: Annotated[str, typer.Option(help="Membership column of a table.")] = "member",
    members: Annotated[Path | None, typer.Option(help="Training examples: folder of class folders, or table.")] = None,
    non_members: Annotated[Path | None, typer.Option(help="Held-out examples, in the same form.")] = None,
    image_size: Annotated[int | None, typer.Option(help="Resize folder images to this many pixels a side.")] = None,
    mean: Annotated[str, typer.Option(help="Subtracted from images in [0, 1], as 0.485,0.456,0.406.")] = "",
    std: Annotated[str, typer.Option(help="What images are then divided by, as 0.229,0.224,0.225.")] = "",
    explainer: Annotated[str, typer.Option(help="Any method of the catalog, as IG or Saliency.")] = "IG",
    option: Annotated[list[str] | None, typer.Option(help="NAME=VALUE for the explainer, as n_steps=25.")] = None,
    output: Annotated[str, typer.Option(help="What is explained: probability or logit.")] = "probability",
    hardening: Annotated[str, typer.Option(help="recommended, none, JSON, or a JSON file.")] = "recommended",
    references: Annotated[int, typer.Option(min=0, help="Reference models to train; 0: threshold attacks only.")] = 16,
    recipe: Annotated[Path | None, typer.Option(help="TOML file: how the model was trained.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Examples an explanation call.")] = 256,
    classes: Annotated[str, typer.Option(help="Also explain these classes, as 0,3,7, or all.")] = "",
    near_duplicates: Annotated[
        int, typer.Option(min=0, help="Near-duplicate queries averaged by the attacker.")
    ] = QUERIES.near,
    repeats: Annotated[int, typer.Option(min=0, help="Repeated queries averaged by the attacker.")] = QUERIES.repeats,
    policy: PolicyFile = None,
    policy_fpr: PolicyFpr = None,
    max_tpr: MaxTpr = None,
    confidence: Confidence = None,
    release: Released = None,
    claim: ClaimOf = None,
    max_excess: MaxExcess = None,
    attacks: Attacks = None,
    privacy: Annotated[Path | None, typer.Option(help="Privacy statement (JSON) of the model's training.")] = None,
    canaries: Annotated[Path | None, typer.Option(help="canaries.json of an audit of that training.")] = None,
    force: Force = False,
    seed: Seed = 0,
    device: Device = "auto",
    run_dir: RunDir = None,
    resume: Resume = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> int:
    """Attack a model's explanations, native and hardened, and judge what was released."""
    judged_by = policy_of(policy, policy_fpr, max_tpr, confidence, release, claim, max_excess, attacks)
    method, chosen = parse_method(explainer, output, option or []), parse_hardening(hardening)
    effort = Effort(
        references,
        Recipe.from_toml(recipe) if recipe else None,
        seed,
        device_of(device),
        batch_size=batch_size,
        queries=Queries(repeats=repeats, near=near_duplicates, seed=seed),
        classes=parse_classes(classes),
        force=force,
        privacy=privacy,
        canaries=canaries,
    )
    source = Source(
        model,
        data,
        arch,
        num_classes,
        trust_pickle,
        label,
        members,
        non_members,
        member_column,
        image_size,
        parse_numbers("--mean", mean),
        parse_numbers("--std", std),
    )
    folder = choose_folder(run_dir, resume)
    with resumable(folder), shown(quiet or json_) as progress:
        outcome = audit_model(source, method, chosen, judged_by, effort, folder, progress)
    return _show(outcome, json_, quiet)


@app.command("attack")
def attack_command(
    signals: Annotated[Path, typer.Argument(help="signals.npz: membership, and arrays such as l1 or attributions.")],
    policy: PolicyFile = None,
    policy_fpr: PolicyFpr = None,
    max_tpr: MaxTpr = None,
    confidence: Confidence = None,
    release: Released = None,
    claim: ClaimOf = None,
    max_excess: MaxExcess = None,
    attacks: Attacks = None,
    split: Split = "certification",
    force: Force = False,
    seed: Seed = 0,
    json_: Json = False,
    quiet: Quiet = False,
) -> int:
    """Run the attacks alone, on signals that any pipeline may have written."""
    judged_by = policy_of(policy, policy_fpr, max_tpr, confidence, release, claim, max_excess, attacks)
    if split not in ("certification", "selection"):
        raise ConfigurationError(f"--split is certification or selection, got {split!r}")
    loaded = Signals.load(signals)
    with shown(quiet or json_) as progress:
        result = certify(
            loaded,
            judged_by,
            split="selection" if split == "selection" else "certification",
            uses=uses_of(loaded.meta, force),
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
        console.print(result.sentence, highlight=False)
        console.print(controls_line(result), style="dim", highlight=False)
    return result.exit_code


@app.command("demo")
def demo_command(
    seed: Seed = 0,
    device: Device = "cpu",
    run_dir: RunDir = None,
    resume: Resume = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> int:
    """Attack, harden, attack again and judge a model trained on handwritten digits (under three minutes)."""
    device_of(device)
    folder = choose_folder(run_dir, resume)
    with resumable(folder), shown(quiet or json_) as progress:
        outcome = run_demo(folder, seed=seed, device=device, progress=progress)
    return _show(outcome, json_, quiet)


app.command("canaries")(canaries_command)
app.command("verify")(verify_command)
app.command("sign")(sign_command)
app.add_typer(ledger_app, name="ledger")


def _show(outcome: Outcome, json_: bool, quiet: bool) -> int:
    judged = outcome.configurations[-1]
    if json_:
        content: dict[str, Any] = outcome.to_dict()
        typer.echo(json.dumps(content, allow_nan=False))
    elif quiet:
        typer.echo(WORDS[judged.result.verdict])
    else:
        console = Console()
        console.print(verdict_table(outcome.configurations))
        console.print(judged.result.sentence, highlight=False)
        console.print(controls_line(judged.result), style="dim", highlight=False)
        for note in outcome.notes:
            console.print(f"Note: {note}", style="dim", highlight=False, markup=False)
        console.print(f"\nRun directory: {outcome.folder}", soft_wrap=True, highlight=False, markup=False)
        for file in outcome.files.values():
            console.print(f"  {outcome.folder / file}", soft_wrap=True, highlight=False, markup=False)
    return judged.result.exit_code
