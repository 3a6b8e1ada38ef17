"""Options of the commands."""

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
REFERENCES, POLICY, RUN = "Reference models", "Policy", "Run"  # headings of options in `--help`


def option(default: Any, metavar: str, text: str, panel: str | None = None, *names: str, **more: Any) -> Any:
    """An option of a command. In `--help`, `metavar` stands for its value ("" for a switch)."""
    return typer.Option(default, *names, metavar=metavar, help=text, rich_help_panel=panel, **more)


JSON = option(False, "", "Print one JSON object.", RUN, "--json")
QUIET = option(False, "", "Print only the verdict: no progress, no tables.", RUN, "--quiet", "-q")
SEED = option(0, "N", "Seed of all random numbers.", RUN, min=0)
DEVICE = option("auto", "NAME", "auto, cpu, cuda or cuda:N.", RUN)
ON_CPU = option("cpu", "NAME", "auto, cpu, cuda or cuda:N.", RUN)
RUN_DIR = option(None, "FOLDER", "Folder for the results.  \\[default: safexplain-runs/TIME]", RUN)
PLAN = option(False, "", "Only estimate the cost and the best possible verdict.", RUN, "--plan")
RESUME = option(False, "", "Continue the run in --run-dir; finished models are kept.", RUN, "--resume")
ARCH = option(
    None, "NETWORK", "Built as timm:NAME, torchvision:NAME, hf:FOLDER, hf-pretrained:FOLDER or module:function.", MODEL
)
TRUST_PICKLE = option(False, "", "Load a pickled model. Pickles can run any code.", MODEL, "--trust-pickle")
TRUST_TYPE = option(None, "TYPE", "Full name of a type to accept in a skops file. Repeatable.", MODEL, "--trust-type")
POLICY_FILE = option(None, "FILE", "TOML file with the policy; the options below override it.", POLICY, "--policy")
POLICY_FPR = option(None, "NUMBER", "False-positive rate at which attacks are judged.  \\[default: 0.01]", POLICY)
MAX_TPR = option(None, "NUMBER", "Largest share of members found that is tolerated.  \\[default: 0.03]", POLICY)
ATTACKS = option(None, "NAMES", "Attacks to run, separated by commas.  \\[default: all that apply]", POLICY)


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options that `audit` and `tune` share."""

    model: Annotated[
        Path | None,
        typer.Argument(
            metavar="MODEL",
            help="torch.export file, state_dict (with --arch), transformers folder, or a classifier of tables: .skops,"
            " .json or .ubj of XGBoost, .txt of LightGBM, or .joblib (with --trust-pickle).",
        ),
    ] = None
    arch: str | None = ARCH
    trust_pickle: bool = TRUST_PICKLE
    trust_type: list[str] | None = TRUST_TYPE
    data: Path = option(..., "PATH", ".npz file, table with columns label and member, or folder of images.", DATA)
    group_column: str | None = option(
        None, "COLUMN", "Column that identifies persons.  \\[default: groups of an .npz file]", DATA
    )
    slice_by: list[str] | None = option(None, "COLUMN", "Column to break the report down by. Repeatable.", DATA)
    drop_copies: bool = option(False, "", "Leave out members that are copies of non-members.", DATA, "--drop-copies")
    explainer: str | None = option(
        None,
        "NAMES",
        "Explanation method, or several that are released together, such as IG,Saliency."
        "  \\[default: IG; for a classifier of tables, one that fits it]",
        EXPLANATION,
    )
    options: list[str] | None = option(
        None,
        "NAME=VALUE",
        "Option of the explainer, such as n_steps=25 or IG.n_steps=25. Repeatable.",
        EXPLANATION,
        "--option",
    )
    output: str = option("probability", "NAME", "Model output to explain: probability or logit.", EXPLANATION)
    references: str = option(
        "",
        "N",
        "Number of reference models to train; 0 runs threshold attacks only. With 8,16,32, more models and examples are"
        " used while the verdict is inconclusive.  \\[default: 8, then 16 and 32 within the hour]",
        REFERENCES,
    )
    recipe: Path | None = option(None, "FILE", "TOML file that describes the training of the model.", REFERENCES)
    policy: Path | None = POLICY_FILE
    policy_fpr: float | None = POLICY_FPR
    max_tpr: float | None = MAX_TPR
    attacks: str | None = ATTACKS
    privacy: Path | None = option(None, "FILE", "Privacy statement (JSON) of a training with DP.", REFERENCES)
    canaries: Path | None = option(None, "FILE", "canaries.json of that training.", REFERENCES)
    seed: int = SEED
    device: str = DEVICE
    run_dir: Path | None = RUN_DIR
    resume: bool = RESUME
    plan: bool = PLAN
    json_: bool = JSON
    quiet: bool = QUIET


TRAINING, CANARY, BOUND = "Training", "Canary", "Bound"
PRESETS = ("logit-768", "softmax-768", "logit-384")
SCENARIOS = ("worst-case", "gradient", "crafted", "mislabelled", "natural", "outlier", "white-box")
METHODS = ("pld", "gdp", "clopper-pearson")
"""Values of `--preset`, `--scenario` and `--method` for `--help`; a test keeps them true."""


@dataclass(frozen=True, kw_only=True)
class CanaryOptions:
    """The options of `safexplain canaries`."""

    config: Path | None = option(None, "FILE", "TOML file with the data, the training and the claim.", TRAINING)
    preset_: str | None = option(
        None, "NAME", f"Built-in training, instead of --config: {', '.join(PRESETS)}.", TRAINING, "--preset"
    )
    scenario: str = option("", "NAMES", f"Canaries to try: {', '.join(SCENARIOS)}, or all.", CANARY)
    runs: int | None = option(
        None, "N", "Models to train, half on D and half on D'.  \\[default: 1000; with --scenario all, by --minutes]",
        TRAINING, show_default=False,
    )  # fmt: skip
    minutes: float = option(
        10.0, "MINUTES", "Time for --scenario all, most of it for the strongest canaries.", TRAINING
    )
    every: int = option(0, "N", "Audit every N steps.  \\[default: steps / 10]", TRAINING, min=0, show_default=False)
    method: str = option("", "NAME", f"Bound: {', '.join(METHODS)}.", BOUND)
    threshold: str = option("auto", "T", "Threshold of the scores: auto, split, or a number fixed in advance.", BOUND)
    confidence: float = option(0.95, "NUMBER", "Confidence of the verdict.", BOUND)
    target: str = option("", "ROW", "Row of the data to replace; or classes, for one of each class in turn.", CANARY)
    canary: Path | None = option(None, "FILE", ".npz file with x and y of a record that replaces --target.", CANARY)
    score: str = option("", "FUNCTION", "package.module:function that scores what your training returns.", CANARY)
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
    model: Path | None = option(None, "FILE", "Deployed model file; required if the certificate is about one.")
    public_key: Path | None = option(None, "FILE", "Public key (ed25519, PEM) that the signature must match.")
    any_verdict: bool = option(False, "", "Also accept the verdicts leak and inconclusive.", None, "--any-verdict")
    any_version: bool = option(False, "", "Also accept one that cannot be served here.", None, "--any-version")
    json_: bool = JSON


def with_options(command: Callable[..., int]) -> Callable[..., int]:
    """Make `command(given, **own)` a command with the fields of `given` and `own` as options."""
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
    """The policy of the file, or the default one, changed by the options that were given."""
    from safexplain.audit.attacks.suite import check_suite
    from safexplain.verdict.policy import Policy

    given: dict[str, Any] = {"fpr": fpr, "max_tpr": max_tpr}
    if attacks is not None:
        given["suite"] = tuple(name.strip() for name in attacks.split(",") if name.strip())
        if not given["suite"]:
            raise ConfigurationError("--attacks: expected names of attacks separated by commas, got none")
    start = Policy() if file is None else Policy.from_toml(file)
    found = replace(start, **{name: value for name, value in given.items() if value is not None})
    check_suite(found)  # before anything is trained
    return found
