"""`safexplain audit` and `safexplain attack`: what is released is attacked and judged, from a model or from signals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer
from rich.console import Console

from safexplain._digest import model_digest
from safexplain._progress import shown
from safexplain.audit import Policy, Population, Recipe, Signals, audit, certify
from safexplain.audit.run import AuditOptions
from safexplain.cli.console import (
    WORDS,
    Device,
    Json,
    Quiet,
    Resume,
    RunDir,
    Seed,
    attack_table,
    choose_folder,
    device_of,
    make_folder,
    resumable,
    show_audit,
    show_verdict,
)
from safexplain.errors import ConfigurationError, InputError
from safexplain.explain import CATALOG, find_row
from safexplain.explain.hardened import Hardened
from safexplain.explain.wrap import HARDENED
from safexplain.hardening.hardening import Hardening
from safexplain.loading.data.checks import AuditData, check_data, check_model_fits
from safexplain.loading.data.load import load_data
from safexplain.loading.models.load import LoadedModel, load_model
from safexplain.verdict.canaries.result import load_finding
from safexplain.verdict.certificate.write import MODEL_DIGEST
from safexplain.verdict.privacy_statement import PrivacyStatement

PolicyFile = Annotated[Path | None, typer.Option("--policy", help="TOML file; the options below go before it.")]
PolicyFpr = Annotated[
    float | None, typer.Option(help="False-positive rate at which members are counted.  [default: 0.01]")
]
MaxTpr = Annotated[float | None, typer.Option(help="Largest tolerated share of members found.  [default: 0.03]")]
Attacks = Annotated[str | None, typer.Option(help="Names of attacks, separated by commas; default all that fit.")]


def audit_command(
    model: Annotated[Path, typer.Argument(help="torch.export file, or a state_dict with --arch.")],
    data: Annotated[Path, typer.Option(help="data.npz, a table (columns label, member), or a folder of images.")],
    arch: Annotated[str | None, typer.Option(help="timm:NAME, torchvision:NAME or package.module:function.")] = None,
    trust_pickle: Annotated[bool, typer.Option(help="Unpickle the model file, which can run any code in it.")] = False,
    explainer: Annotated[
        str, typer.Option(help="A method of the catalog, or several that are released together, as IG,Saliency.")
    ] = "IG",
    option: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE for the explainer, as n_steps=25; of several, IG.n_steps=25.")
    ] = None,
    output: Annotated[str, typer.Option(help="What is explained: probability or logit.")] = "probability",
    hardening: Annotated[str, typer.Option(help="recommended, none, JSON, or a JSON file.")] = "recommended",
    references: Annotated[int, typer.Option(min=0, help="Reference models to train; 0: threshold attacks only.")] = 16,
    recipe: Annotated[Path | None, typer.Option(help="TOML file: how the model was trained.")] = None,
    group_column: Annotated[
        str | None, typer.Option(help="Column of the data, equal for rows of one person.  [default: groups of an .npz]")
    ] = None,
    slice_by: Annotated[
        list[str] | None, typer.Option(help="Column of the data by whose values the report is sliced.")
    ] = None,
    policy: PolicyFile = None,
    policy_fpr: PolicyFpr = None,
    max_tpr: MaxTpr = None,
    attacks: Attacks = None,
    privacy: Annotated[Path | None, typer.Option(help="Privacy statement (JSON) of the model's training.")] = None,
    canaries: Annotated[Path | None, typer.Option(help="canaries.json of an audit of that training.")] = None,
    seed: Seed = 0,
    device: Device = "auto",
    run_dir: RunDir = None,
    resume: Resume = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> int:
    """Attack a model's explanations, native and hardened, and judge what was released."""
    judged_by = policy_of(policy, policy_fpr, max_tpr, attacks)
    methods, arguments = parse_methods(explainer, output, option or [])
    chosen, place = parse_hardening(hardening), device_of(device)
    trained = Recipe(seed=seed) if recipe is None else Recipe.from_toml(recipe)
    folder = choose_folder(run_dir, resume)
    with resumable(folder), shown(quiet or json_) as progress:
        read, loaded, outputs = load_both(data, model, group_column, slice_by or [], arch, trust_pickle)
        notes = check_data(read, num_classes=outputs)
        if loaded.fresh is None:
            notes += (f"Reference models cannot be trained: {loaded.fresh_unavailable}.",)
        elif recipe is None and references:
            notes += (_no_recipe(trained),)
        options = AuditOptions(
            slices=read.slices,
            title=model.name,
            subject={model.name: {"sha256": loaded.sha256, MODEL_DIGEST: model_digest(loaded.model.to(place)).hex()}},
            materials={f"data {read.source} sha256": read.sha256},
            notes=notes,
            privacy=None if privacy is None else PrivacyStatement.load(privacy),
            canaries=None if canaries is None else load_finding(canaries),
        )
        make_folder(folder)
        found = audit(
            loaded.model,
            Population.of(read.x, read.y, read.groups),
            trained,
            member=read.member,
            explainer=methods[0] if len(methods) == 1 else methods,
            hardening=chosen,
            output=cast(Literal["probability", "logit"], output),
            arguments=arguments,
            build=loaded.fresh,
            references=0 if loaded.fresh is None else references,
            policy=judged_by,
            options=options,
            seed=seed,
            cache=folder / "models",
            device=place,
            progress=progress,
        )
        found.save(folder)
    return show_audit(found, folder, json_, quiet)


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


def policy_of(file: Path | None, fpr: float | None, max_tpr: float | None, attacks: str | None) -> Policy:
    """The policy of the file, or the default one, with the options that were given.

    Raises:
        InputError, ConfigurationError: as `Policy`.
    """
    given: dict[str, Any] = {
        "fpr": fpr,
        "max_tpr": max_tpr,
        "suite": None if attacks is None else tuple(name.strip() for name in attacks.split(",") if name.strip()),
    }
    values = {name: value for name, value in given.items() if value is not None}
    if attacks is not None and not values["suite"]:
        raise ConfigurationError("--attacks takes names of attacks separated by commas, got nothing")
    start = Policy() if file is None else Policy.from_toml(file)
    return replace(start, **values)


def load_both(
    data: Path, model: Path, group: str | None, slices: list[str], arch: str | None, trust_pickle: bool
) -> tuple[AuditData, LoadedModel, int]:
    """The data, the model that takes them and the number of its outputs.

    Columns by which the report is sliced are features of a table, or are not, if the model only fits without them.

    Raises:
        InputError: one of them cannot be read, or they do not fit each other.
    """

    def load(drop_slices: bool) -> tuple[AuditData, LoadedModel, int]:
        read = load_data(data, group=group, slices=slices, drop_slices=drop_slices)
        loaded = load_model(model, arch=arch, trust_pickle=trust_pickle, input_shape=tuple(read.x.shape[1:]))
        return read, loaded, check_model_fits(loaded.model, read)

    try:
        return load(False)
    except InputError:
        if not slices:
            raise
        try:
            return load(True)
        except InputError:
            pass
        raise


def parse_methods(names: str, output: str, options: list[str]) -> tuple[list[type[Hardened]], dict[str, Any]]:
    """The explainers and the arguments of `attribute`, of several by their names, from the command line's words.

    Raises:
        ConfigurationError: an unknown method or output, or an option that is not NAME=VALUE.
    """
    listed = [name.strip() for name in names.split(",") if name.strip()]
    if len(listed) <= 1:
        method, arguments = parse_method(names.strip(), output, options)
        return [method], arguments
    if len(set(listed)) < len(listed):
        raise ConfigurationError(f"--explainer: each is released once, got {', '.join(listed)}")
    owners = {name: [o.partition(".")[2] for o in options if o.partition(".")[0] == name] for name in listed}
    if stray := [o for o in options if o.partition(".")[0] not in owners]:
        raise ConfigurationError(
            f"--option of several explainers takes METHOD.NAME=VALUE, as IG.n_steps=25; got {stray}"
        )
    parsed = {name: parse_method(name, output, own) for name, own in owners.items()}
    rows = {name: find_row(name).name for name in parsed}
    return [method for method, _ in parsed.values()], {rows[name]: a for name, (_, a) in parsed.items() if a}


def parse_method(name: str, output: str, options: list[str]) -> tuple[type[Hardened], dict[str, Any]]:
    """One explainer and the arguments of its `attribute`.

    Raises:
        ConfigurationError: an unknown method or output, or an option that is not NAME=VALUE.
    """
    if output not in ("probability", "logit"):
        raise ConfigurationError(f"--output is probability or logit, got {output!r}")
    values: dict[str, Any] = {}
    for text in options:
        key, equals, value = text.partition("=")
        if not equals or not key.isidentifier():
            raise ConfigurationError(f"--option takes NAME=VALUE, as n_steps=25; got {text!r}")
        try:
            parsed = json.loads(value)
        except ValueError:
            parsed = value
        values[key] = tuple(parsed) if isinstance(parsed, list) else parsed
    row = find_row(name)
    if row.entry != "attribute":
        methods = ", ".join(row.name for row in CATALOG.values() if row.entry == "attribute")
        raise ConfigurationError(f"{row.name} gives no map of numbers to attack; expected one of {methods}")
    return HARDENED[row.name], values


def parse_hardening(text: str) -> Hardening:
    """From "recommended", "none", JSON, or the path of a JSON file.

    Raises:
        ConfigurationError: none of these.
    """
    match text.strip():
        case "recommended":
            return Hardening.recommended()
        case "none":
            return Hardening.none()
        case stripped if stripped.startswith("{"):
            return Hardening.from_json(stripped)
    path = Path(text)
    if not path.is_file():
        raise ConfigurationError(f"--hardening is recommended, none, JSON, or a JSON file; got {text!r}")
    return Hardening.from_json(path.read_text())


def _no_recipe(recipe: Recipe) -> str:
    return (
        f"No --recipe: reference models were trained by a default ({recipe.optimizer}, learning rate {recipe.lr:g},"
        f" {recipe.epochs} epochs, batch {recipe.batch_size}). If the model was trained differently, a real"
        " attacker may do better than this audit: a leak found is a leak, a certificate says less."
    )
