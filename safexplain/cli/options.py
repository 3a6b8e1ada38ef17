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


def option(default: Any, metavar: str, says: str, panel: str | None = None, *names: str, **more: Any) -> Any:
    """An option as `--help` shows it (default ...: it must be given): `metavar` stands for its value ("" for a switch),
    `panel` is its heading, `names` are as it is typed (none: the parameter's name), and `more` goes to `typer.Option`.
    """
    return typer.Option(default, *names, metavar=metavar, help=says, rich_help_panel=panel, **more)


JSON = option(False, "", "Print one JSON object.", RUN, "--json")
QUIET = option(False, "", "Print only the verdict: no progress, no tables.", RUN, "--quiet", "-q")
SEED = option(0, "N", "Seed of all random numbers.", RUN, min=0)
DEVICE = option("auto", "NAME", "auto, cpu, cuda or cuda:N.", RUN)
ON_CPU = option("cpu", "NAME", "auto, cpu, cuda or cuda:N.", RUN)
RUN_DIR = option(None, "FOLDER", "Folder for the results.  \\[default: safexplain-runs/TIME]", RUN)
PLAN = option(False, "", "Estimate cost and best possible verdict; run nothing.", RUN, "--plan")
RESUME = option(False, "", "Continue the run in --run-dir, keeping finished models.", RUN, "--resume")
ARCH = option(None, "NETWORK", "timm:NAME, torchvision:NAME, hf:FOLDER, hf-pretrained:FOLDER, module:function.", MODEL)
TRUST_PICKLE = option(False, "", "Load a pickled model, which can run any code.", MODEL, "--trust-pickle")
TRUST_TYPE = option(
    None, "TYPE", "Accept this type in a skops file, by its full name. Repeatable.", MODEL, "--trust-type"
)
POLICY_FILE = option(None, "FILE", "TOML file; the options below override it.", POLICY, "--policy")
POLICY_FPR = option(None, "NUMBER", "False-positive rate of the attacks.  \\[default: 0.01]", POLICY)
MAX_TPR = option(None, "NUMBER", "Largest tolerated share of members found.  \\[default: 0.03]", POLICY)
ATTACKS = option(None, "NAMES", "Attacks to run, separated by commas.  \\[default: all that apply]", POLICY)


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
    arch: str | None = ARCH
    trust_pickle: bool = TRUST_PICKLE
    trust_type: list[str] | None = TRUST_TYPE
    data: Path = option(..., "PATH", ".npz file, table with columns label and member, or folder of images.", DATA)
    group_column: str | None = option(
        None, "COLUMN", "Column that names the person.  \\[default: groups of an .npz file]", DATA
    )
    slice_by: list[str] | None = option(None, "COLUMN", "Column whose values break down the report. Repeatable.", DATA)
    drop_copies: bool = option(False, "", "Leave out copies between members and non-members.", DATA, "--drop-copies")
    explainer: str | None = option(
        None,
        "NAMES",
        "Explanation method, or several released together, as IG,Saliency."
        "  \\[default: IG; for a classifier of tables, one that fits it]",
        EXPLANATION,
    )
    options: list[str] | None = option(
        None,
        "NAME=VALUE",
        "Option of the explainer, as n_steps=25 or IG.n_steps=25. Repeatable.",
        EXPLANATION,
        "--option",
    )
    output: str = option("probability", "NAME", "Model output to explain: probability or logit.", EXPLANATION)
    references: str = option(
        "",
        "N",
        "Reference models to train, as 16; 0 runs threshold attacks only. As 8,16,32: more models and examples"
        " while the verdict is undecided.  \\[default: 8, and 16 and 32 within the hour]",
        REFERENCES,
    )
    recipe: Path | None = option(None, "FILE", "TOML file: how the model was trained.", REFERENCES)
    policy: Path | None = POLICY_FILE
    policy_fpr: float | None = POLICY_FPR
    max_tpr: float | None = MAX_TPR
    attacks: str | None = ATTACKS
    privacy: Path | None = option(None, "FILE", "Privacy statement (JSON) of the model's training with DP.", REFERENCES)
    canaries: Path | None = option(None, "FILE", "canaries.json of that training.", REFERENCES)
    seed: int = SEED
    device: str = DEVICE
    run_dir: Path | None = RUN_DIR
    resume: bool = RESUME
    plan: bool = PLAN
    json_: bool = JSON
    quiet: bool = QUIET


TRAINING, CANARY, BOUND = "Training", "Canary", "Bound"
"""Headings of the options."""

PRESETS = ("logit-768", "softmax-768", "logit-384")
SCENARIOS = ("worst-case", "gradient", "crafted", "mislabelled", "natural", "outlier", "white-box")
METHODS = ("pld", "gdp", "clopper-pearson")
"""What `--preset`, `--scenario` and `--method` may be, for `--help` alone; a test keeps them true."""


@dataclass(frozen=True, kw_only=True)
class CanaryOptions:
    """The options of `safexplain canaries`."""

    config: Path | None = option(None, "FILE", "TOML file with the data, the training and the claim.", TRAINING)
    preset_: str | None = option(
        None, "NAME", f"Built-in training, instead of --config: {', '.join(PRESETS)}.", TRAINING, "--preset"
    )
    scenario: str = option("", "NAMES", f"What to try: {', '.join(SCENARIOS)}, or all.", CANARY)
    runs: int | None = option(
        None, "N", "Models to train, half on D and half on D'.  \\[default: 1000; with --scenario all by --minutes]",
        TRAINING, show_default=False,
    )  # fmt: skip
    minutes: float = option(
        10.0, "MINUTES", "For the runs of --scenario all, most for the strongest canaries.", TRAINING
    )
    every: int = option(0, "N", "Audit every N steps.  \\[default: steps / 10]", TRAINING, min=0, show_default=False)
    method: str = option("", "NAME", f"Bound: {', '.join(METHODS)}.", BOUND)
    threshold: str = option("auto", "T", "Threshold of the scores: auto, split, or a number fixed in advance.", BOUND)
    confidence: float = option(0.95, "NUMBER", "Confidence of the verdict.", BOUND)
    target: str = option("", "ROW", "Row of the data to replace, or classes: one of every class in turn.", CANARY)
    canary: Path | None = option(None, "FILE", ".npz file with x and y of a record to put in --target's place.", CANARY)
    score: str = option("", "FUNCTION", "package.module:function that scores what yours returns.", CANARY)
    workers: int = option(1, "N", "Processes that run your training function.", RUN, min=1)
    seed: int = SEED
    device: str = DEVICE
    run_dir: Path | None = RUN_DIR
    resume: bool = RESUME
    plan: bool = PLAN
    json_: bool = JSON
    quiet: bool = QUIET


@dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """The options of `safexplain verify`."""

    certificate: Annotated[Path, typer.Argument(metavar="CERTIFICATE", help="certificate.json, signed or not.")]
    model: Path | None = option(None, "FILE", "Model file to deploy; required for the certificate of a model's audit.")
    public_key: Path | None = option(None, "FILE", "Public key (ed25519, PEM) that the signature must match.")
    any_verdict: bool = option(False, "", "Accept the verdicts leak and inconclusive as well.", None, "--any-verdict")
    any_version: bool = option(False, "", "Accept one that could not be served here.", None, "--any-version")
    json_: bool = JSON


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
