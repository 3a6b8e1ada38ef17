"""What an option is, those that commands have in common, and how a command takes all of a class at once.

Nothing here imports PyTorch; `cli.run.question` reads what the options name.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from safexplain.errors import ConfigurationError

if TYPE_CHECKING:
    from safexplain.verdict.policy import Policy

MODEL, DATA, EXPLANATION = "Model", "Data", "What is explained"
REFERENCES, POLICY, RUN = "Reference models", "Policy", "Run"
"""Headings under which `--help` groups options."""


def option(metavar: str, says: str, panel: str | None = None, *names: str, **more: Any) -> Any:
    """An option as `--help` shows it: `metavar` stands for its value ("" for a switch), `panel` is its heading, `names`
    are as it is typed (none: the parameter's name), and `more` goes to `typer.Option`."""
    return typer.Option(*names, metavar=metavar, help=says, rich_help_panel=panel, **more)


Json = Annotated[bool, option("", "Print one JSON object.", RUN, "--json")]
Quiet = Annotated[bool, option("", "Print only the verdict: no progress, no tables.", RUN, "--quiet", "-q")]
Seed = Annotated[int, option("N", "Seed of all random numbers.", RUN, min=0)]
Device = Annotated[str, option("NAME", "auto, cpu, cuda or cuda:N.", RUN)]
RunDir = Annotated[Path | None, option("FOLDER", "Folder for the results.  \\[default: safexplain-runs/TIME]", RUN)]
Plan_ = Annotated[bool, option("", "Estimate cost and best possible verdict; run nothing.", RUN, "--plan")]
Resume = Annotated[bool, option("", "Continue the run in --run-dir, keeping finished models.", RUN, "--resume")]
Arch = Annotated[
    str | None,
    option("NETWORK", "timm:NAME, torchvision:NAME, hf:FOLDER, hf-pretrained:FOLDER or module:function.", MODEL),
]
TrustPickle = Annotated[bool, option("", "Load a pickled model, which can run any code.", MODEL, "--trust-pickle")]
TrustType = Annotated[
    list[str] | None, option("TYPE", "Accept this type in a skops file, by its full name. Repeatable.", MODEL)
]
PolicyFile = Annotated[Path | None, option("FILE", "TOML file; the options below override it.", POLICY, "--policy")]
PolicyFpr = Annotated[float | None, option("NUMBER", "False-positive rate of the attacks.  \\[default: 0.01]", POLICY)]
MaxTpr = Annotated[
    float | None, option("NUMBER", "Largest tolerated share of members found.  \\[default: 0.03]", POLICY)
]
Attacks = Annotated[
    str | None, option("NAMES", "Attacks to run, separated by commas.  \\[default: all that apply]", POLICY)
]


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options that `audit` and `tune` have in common, one field each; a command takes them with `asks`."""

    model: Annotated[
        Path | None,
        typer.Argument(
            metavar="MODEL",
            help="torch.export file, state_dict with --arch, transformers folder, or classifier of tables: .skops,"
            " .json or .ubj of XGBoost, .txt of LightGBM, .joblib with --trust-pickle.",
        ),
    ] = None
    arch: Arch = None
    trust_pickle: TrustPickle = False
    trust_type: TrustType = None
    data: Annotated[Path, option("PATH", ".npz file, table with columns label and member, or folder of images.", DATA)]
    group_column: Annotated[
        str | None,
        option("COLUMN", "Column that is equal for all rows of one person.  \\[default: groups of an .npz file]", DATA),
    ] = None
    slice_by: Annotated[
        list[str] | None, option("COLUMN", "Column whose values break down the report. Repeatable.", DATA)
    ] = None
    drop_copies: Annotated[
        bool, option("", "Leave out members that are copies of non-members, and vice versa.", DATA, "--drop-copies")
    ] = False
    explainer: Annotated[
        str | None,
        option(
            "NAMES",
            "Explanation method, or several released together, as IG,Saliency."
            "  \\[default: IG; for a classifier of tables, one that fits it]",
            EXPLANATION,
        ),
    ] = None
    option: Annotated[
        list[str] | None,
        option(
            "NAME=VALUE",
            "Option of the explainer, as n_steps=25; for one of several, IG.n_steps=25. Repeatable.",
            EXPLANATION,
        ),
    ] = None
    output: Annotated[str, option("NAME", "Model output to explain: probability or logit.", EXPLANATION)] = (
        "probability"
    )
    references: Annotated[
        str,
        option(
            "N",
            "Reference models to train, as 16; 0 runs threshold attacks only. As 8,16,32: more models and examples"
            " while the verdict is undecided.  \\[default: 8, and 16 and 32 within the hour]",
            REFERENCES,
        ),
    ] = ""
    recipe: Annotated[Path | None, option("FILE", "TOML file: how the model was trained.", REFERENCES)] = None
    policy: PolicyFile = None
    policy_fpr: PolicyFpr = None
    max_tpr: MaxTpr = None
    attacks: Attacks = None
    privacy: Annotated[
        Path | None, option("FILE", "Privacy statement (JSON) of the model's training with DP.", REFERENCES)
    ] = None
    canaries: Annotated[
        Path | None, option("FILE", "canaries.json from `safexplain canaries` on that training.", REFERENCES)
    ] = None
    seed: Seed = 0
    device: Device = "auto"
    run_dir: RunDir = None
    resume: Resume = False
    plan: Plan_ = False
    json_: Json = False
    quiet: Quiet = False


TRAINING, CANARY, BOUND = "Training", "Canary", "Bound"
"""Headings of the options."""

PRESETS = ("logit-768", "softmax-768", "logit-384")
SCENARIOS = ("worst-case", "gradient", "layers", "crafted", "mislabelled", "natural", "outlier", "poison")
METHODS = ("pld", "gdp", "clopper-pearson")
"""What `--preset`, `--scenario` and `--method` may be, for `--help` alone; a test keeps them true."""


@dataclass(frozen=True, kw_only=True)
class CanaryOptions:
    """The options of `safexplain canaries`."""

    config: Annotated[Path | None, option("FILE", "TOML file with the data, the training and the claim.", TRAINING)] = (
        None
    )
    preset_: Annotated[
        str | None,
        option(
            "NAME",
            f"Built-in training on synthetic data, instead of --config: {', '.join(PRESETS)}.",
            TRAINING,
            "--preset",
        ),
    ] = None
    scenario: Annotated[
        str, option("NAMES", f"Kind of canary: {', '.join(SCENARIOS)}; several separated by commas, or all.", CANARY)
    ] = ""
    runs: Annotated[int, option("N", "Models to train, half on D and half on D'.", TRAINING)] = 1000
    every: Annotated[
        int,
        option(
            "N", "Also audit the model every N steps.  \\[default: steps / 10]", TRAINING, min=0, show_default=False
        ),
    ] = 0
    method: Annotated[str, option("NAME", f"Bound: {', '.join(METHODS)}; with --one-run f-dp, steinke.", BOUND)] = ""
    threshold: Annotated[
        str, option("T", "Threshold of the scores: auto, split, or a number fixed in advance.", BOUND)
    ] = "auto"
    confidence: Annotated[float, option("NUMBER", "Confidence of the verdict.", BOUND)] = 0.95
    target: Annotated[
        str, option("ROW", "Row of the data to replace, or classes: one of every class in turn.", CANARY)
    ] = ""
    canary: Annotated[
        Path | None, option("FILE", ".npz file with x and y of your own record to put in --target's place.", CANARY)
    ] = None
    score: Annotated[
        str, option("FUNCTION", "package.module:function that scores what your training function returns.", CANARY)
    ] = ""
    records: Annotated[int, option("N", "Records that a poison replaces.", CANARY, min=2)] = 2
    one_run: Annotated[
        int, option("N", "Train a single model with N canaries instead of many models.", TRAINING, min=0)
    ] = 0
    workers: Annotated[int, option("N", "Processes that run your training function.", RUN, min=1)] = 1
    seed: Seed = 0
    device: Device = "auto"
    run_dir: RunDir = None
    resume: Resume = False
    plan: Plan_ = False
    json_: Json = False
    quiet: Quiet = False


@dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """The options of `safexplain verify`."""

    certificate: Annotated[Path, typer.Argument(metavar="CERTIFICATE", help="certificate.json, signed or not.")]
    model: Annotated[
        Path | None, option("FILE", "Model file to deploy; required for the certificate of a model's audit.")
    ] = None
    public_key: Annotated[
        Path | None, option("FILE", "Public key (ed25519, PEM) with which the certificate must be signed.")
    ] = None
    any_verdict: Annotated[
        bool, option("", "Accept the verdicts leak and inconclusive as well.", None, "--any-verdict")
    ] = False
    any_version: Annotated[
        bool,
        option(
            "", "Accept a certificate that the versions installed here would refuse to serve.", None, "--any-version"
        ),
    ] = False
    json_: Json = False


def asks(command: Callable[..., int]) -> Callable[..., int]:
    """`command(given, **own)` as the command line takes it: each field of the options class of `given`, and each of
    its own, is an option."""
    given, *own = inspect.signature(command, eval_str=True).parameters.values()
    own = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]

    @functools.wraps(command)
    def flat(**values: Any) -> int:
        mine = {p.name: values.pop(p.name) for p in own}
        return command(given.annotation(**values), **mine)

    parameters = [*inspect.signature(given.annotation, eval_str=True).parameters.values(), *own]
    flat.__signature__ = inspect.Signature(parameters, return_annotation=int)  # type: ignore[attr-defined]
    flat.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": int}
    return flat


def policy_of(file: Path | None, fpr: float | None, max_tpr: float | None, attacks: str | None) -> Policy:
    """The policy of the file, or the default one, with the options that were given; errors as those of `Policy`."""
    from safexplain.audit.attacks.suite import check_suite
    from safexplain.verdict.policy import Policy

    given: dict[str, Any] = {"fpr": fpr, "max_tpr": max_tpr}
    if attacks is not None:
        given["suite"] = tuple(name.strip() for name in attacks.split(",") if name.strip())
        if not given["suite"]:
            raise ConfigurationError("--attacks: expected names of attacks separated by commas, got nothing")
    start = Policy() if file is None else Policy.from_toml(file)
    found = replace(start, **{name: value for name, value in given.items() if value is not None})
    check_suite(found)  # before anything is trained
    return found
