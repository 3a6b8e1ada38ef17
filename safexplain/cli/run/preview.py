"""Before an audit: its plan (`--plan`), a first look (`--quick`), which decides nothing, and `safexplain demo`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import typer
from rich.filesize import decimal
from rich.table import Table
from torch import nn

from safexplain import HardenedInputXGradient
from safexplain._files import machine_memory
from safexplain._progress import Progress, as_stage, duration_text
from safexplain.audit import AuditOptions, Policy, Population, Recipe, audit, train_shadows
from safexplain.audit.planning import Plan
from safexplain.audit.question import ENOUGH_REFERENCES, HOUR, Question
from safexplain.audit.references.shadows import ModelCache
from safexplain.audit.report.outcome import AuditRun
from safexplain.audit.signals import free_space
from safexplain.cli.run.tables import console_for, result_table
from safexplain.hardening.hardening import Hardening
from safexplain.verdict.result import AttackResult
from safexplain.verdict.stats import auc_interval

SECONDS = 50.0  # of the two minutes for the plan, training, queries and explanations
PLANNING = 4.0  # approximate seconds that the plan may measure, half of those of a full audit
LEAST = 20.0  # seconds that remain after a slow plan
FEWEST, MOST = 100, 1_000  # scored examples
ATTACKS = ("Threshold", "LikelihoodRatio", "LabelLikelihoodRatio")  # of a first look


def announce(plan: Plan, warnings: Sequence[str], *, gradients: bool, gpu: bool) -> None:
    """Print the plan in one line, and `warnings`, on standard error. Above an hour, also print what would be faster
    and, in a terminal, ask for confirmation."""
    long = plan.seconds > HOUR
    if long and (ways := shortcuts(plan, gradients=gradients, gpu=gpu)):
        typer.echo(f"This takes {duration_text(plan.seconds)} here. Faster: {'; '.join(ways)}.", err=True)
    for line in (plan_sentence(plan), *warnings):
        typer.echo(line, err=True)
    if long and sys.stdin.isatty() and sys.stderr.isatty():
        typer.confirm("Continue?", default=True, abort=True, err=True)


def plan_sentence(plan: Plan) -> str:
    """What the audit does, and how long that takes."""
    often = " and ".join(map(str, plan.patience)) + (" query" if plan.patience == (1,) else " queries")
    best = f"{100 * plan.best_certifiable:.1f}"
    limit = f"+{best} points" if plan.claim == "excess" else f"{best} % found"
    what = "nothing certifiable" if plan.obstacles else f"certifiable from {limit}"
    again, total = [], plan.seconds
    for references, scored, seconds in plan.later:
        total += seconds
        if total > HOUR:
            break
        again.append(f"with {references} and {scored:,} in {duration_text(total)}")
    looks = f" (while undecided, again {', '.join(again)})" if again else ""
    return (
        f"{plan.scored:,} of {plan.examples:,} examples scored, {plan.references} references, {often}, about"
        f" {duration_text(plan.seconds)}{looks}; {what}; --quick for a first look in 2 min"
    )


def shortcuts(plan: Plan, *, gradients: bool, gpu: bool) -> list[str]:
    """Ways to shorten the audit."""
    found, total = [], plan.seconds
    explaining = [stage for stage in plan.stages if stage.name.startswith("explaining")]
    if plan.references > ENOUGH_REFERENCES:
        asked = sum(s.seconds for s in plan.stages if s.name.startswith(("training", "asking for", "explaining")))
        less = total - asked * (1 - (ENOUGH_REFERENCES + 1) / (plan.references + 1))
        found.append(f"--references {ENOUGH_REFERENCES} ({duration_text(less)})")
    kept = sum(stage.count for stage in explaining) * 4 * plan.rates.label  # a pass forward and one backward
    if gradients and kept < (spent := sum(stage.seconds for stage in explaining)) / 2 and spent > total / 4:
        found.append(f"--explainer InputXGradient, if that is what you serve ({duration_text(total - spent + kept)})")
    if gradients and not gpu:
        found.append("a machine with a GPU")
    return [*found, "several processes or machines, from Python (docs/scale.md)"]


def show_plan(plan: Plan, folder: Path, json_: bool, quiet: bool) -> int:
    """Print a plan, and return exit code 0."""
    memory, disk = machine_memory(), free_space(folder)
    lacking = shortages(plan, memory, disk)
    machine = {"memory_bytes": memory, "free_disk_bytes": disk}
    content = {**plan.to_dict(), "machine": machine, "warnings": lacking}
    if console := console_for(content, duration_text(plan.seconds), json_, quiet):
        console.print(_plan_table(plan))
        console.print(f"Memory: about {decimal(plan.memory_bytes)} of {decimal(memory)}")
        console.print(f"Disk: about {decimal(plan.disk_bytes)} of {decimal(disk)} free")
        console.print(_best_verdict(plan), markup=False)
        for sentence in plan.obstacles:
            console.print(f"  - {sentence}", markup=False)
        for note in plan.notes:
            console.print(f"Note: {note}", style="dim", markup=False)
        for warning in lacking:
            console.print(f"Warning: {warning}", style="bold yellow", markup=False)
    return 0


def _plan_table(plan: Plan) -> Table:
    table = result_table("What this audit will take", ("stage", "work"), ("time", "share"))
    for stage in plan.stages:
        what = f"{stage.count:,} {stage.unit}" + (f" ({stage.says})" if stage.says else "")
        table.add_row(stage.name, what, duration_text(stage.seconds), f"{stage.seconds / max(plan.seconds, 1e-9):.0%}")
    table.add_section()
    table.add_row("total", "", f"[bold]{duration_text(plan.seconds)}[/]", "")
    table.caption = f"Measured in {duration_text(plan.took)} on this machine at its present load. Nothing was written."
    table.caption_justify = "left"
    return table


def _best_verdict(plan: Plan) -> str:
    if plan.claim == "epsilon":
        return (
            f"Best verdict: if {plan.members:,} runs on D and {plan.non_members:,} on D' are distinguished without an"
            f" error, epsilon is at least {plan.best_certifiable:.2f}; the claim is {plan.limit:.2f}."
        )
    what = "an excess over labels" if plan.claim == "excess" else "a share of members found"
    best, limit = f"{plan.best_certifiable:.1%}", f"{plan.limit:.1%}"
    reach = "within reach" if plan.best_certifiable <= plan.limit else "out of reach"
    text = (
        f"Best verdict: if nothing leaks, scoring {plan.members:,} members and {plan.non_members:,} non-members"
        f" probably certifies {what} of {best}; the policy's limit of {limit} is {reach}."
    )
    if plan.needed:
        text += f" Scoring {plan.needed:,} examples, half of them members, would be enough."
    return f"{text} But nothing can be certified:" if plan.obstacles else text


def shortages(plan: Plan, memory: int, disk: int) -> list[str]:
    """Warnings where memory or disk space will not do."""
    needs, writes = decimal(plan.memory_bytes), decimal(plan.disk_bytes)
    few = f"the audit needs about {needs} of memory, and this machine has {decimal(memory)}: use fewer --references"
    full = f"the audit writes about {writes}, and {decimal(disk)} are free: choose a --run-dir on another disk"
    short = (few + " or fewer examples", plan.memory_bytes > memory), (full, plan.disk_bytes > disk)
    return [text for text, holds in short if holds]


def quick_changes(plan: Plan, question: Question) -> dict[str, Any]:
    """Changes of the question for a first look: two references if they train quickly, and as many examples as there is
    time to explain, each asked once."""
    rates, policy, options = plan.rates, question.policy, question.options
    seconds = max(SECONDS - plan.took, LEAST)
    references = 2 if plan.references >= 2 and 2 * rates.training < seconds / 2 else 0
    questions = next((s for s in plan.stages if s.name == "asking the endpoint"), None)
    each = 0.0 if questions is None else questions.seconds / max(questions.count, 1)
    each += (1 + references) * (rates.native + rates.released + rates.label)
    scored = (seconds - references * rates.training) / max(each, 1e-9)
    once = replace(policy, patience=(1,), suite=ATTACKS, selection=0.0, training=0.0, uncounted=True)
    number = int(np.clip(scored, FEWEST, min(MOST, plan.scored)))
    return {"references": references, "policy": once, "options": replace(options, quick=True, scored=number)}


class _Strongest(NamedTuple):
    """What the strongest attack on one signal finds."""

    what: str  # what it reads
    low: float  # 95 % interval of the share of members found
    high: float
    auc: float  # area under its ROC; the interval holds at 95 % for all attacks of the first look together
    auc_low: float
    auc_high: float

    @property
    def beats_guessing(self) -> bool:
        return self.auc_low > 0.5

    @property
    def share(self) -> str:
        return f"{100 * self.low:.0f} to {100 * self.high:.0f} %"


def _strongest_attacks(found: AuditRun) -> tuple[list[_Strongest], _Strongest | None]:
    """The strongest attack on each of label, native and released explanation, strongest first; and that on the losses,
    which shows whether the model memorised its members and is listed only if predictions are released."""
    groups: dict[str, list[AttackResult]] = {}
    for configuration in found.configurations:
        what = "the native explanation" if configuration.name == "native" else "the released explanation"
        groups[what] = [a for a in configuration.result.attacks if a.role == "explanation"]
        groups["the label alone"] = [a for a in configuration.result.attacks if a.role == "label"]
        groups["the loss"] = [a for a in configuration.result.attacks if a.role == "loss"]
    tried, fpr, seen = sum(map(len, groups.values())), found.result.policy.fpr, []
    for what, attacks in groups.items():
        if attacks:
            best = max(attacks, key=lambda a: a.auc)
            rate, interval = best.at(fpr), auc_interval(best.curve, 1 - 0.05 / tried)
            seen.append(_Strongest(what, rate.low, rate.high, best.auc, *interval))
    losses = next((one for one in seen if one.what == "the loss"), None)
    hidden = found.result.policy.release == "explanation"
    return sorted((one for one in seen if not (hidden and one is losses)), key=lambda one: -one.auc), losses


def show_quick(found: AuditRun, plan: Plan, folder: Path, *, json_: bool, quiet: bool) -> int:
    """Print what a first look found, and return the exit code."""
    (seen, losses), result = _strongest_attacks(found), found.result
    fpr = f"{100 * result.policy.fpr:g} % false positives"
    if seen[0].beats_guessing:
        sentence = f"A leak is likely: {seen[0].share} of members found at {fpr}, from {seen[0].what}."
    else:
        sentence = f"No leak seen by a weak attack, which finds {seen[0].share} of members at {fpr}."
        if losses is not None and losses.beats_guessing:
            sentence += f" But the model memorised its members: an attack on its losses has an AUC of {losses.auc:.2f}."
    again, scored = full_command(sys.argv), result.members + result.non_members
    content = {"quick": True, "likely": seen[0].beats_guessing, "sentence": sentence}
    content |= {"seen": [s._asdict() for s in seen], "losses": losses and losses._asdict()}
    content |= {"scored": scored, "references": result.references}
    content |= {"run_dir": str(folder), "whole_seconds": plan.seconds, "whole_command": again}
    if console_for(content, sentence, json_, quiet):
        typer.echo(sentence)
        for one in [*seen, *([losses] if losses and losses not in seen else [])]:
            area = f"AUC {one.auc:.2f} ({one.auc_low:.2f} to {one.auc_high:.2f})"
            typer.echo(f"  {one.what}: {one.share} of members found, {area}")
        few = f"{result.references} reference models" if result.references else "no reference models"
        what = f"{few} and {scored:,} examples asked once"
        typer.echo(f"A first look with {what}: it proves nothing, and does not count as a use of them.")
        typer.echo(f"Report: {folder / found.files['report']}")
        typer.echo(f"The full audit takes about {duration_text(plan.seconds)}:")
        typer.echo(again)
    return 3  # always inconclusive: a first look proves no leak and certifies nothing


def full_command(argv: list[str]) -> str:
    """The typed command without --quick; a --run-dir is resumed."""
    program, *words = argv
    name = ["python", "-m", "safexplain"] if Path(program).name == "__main__.py" else [Path(program).name]
    words = [word for word in words if word != "--quick"]
    taken = any(word.startswith("--run-dir") for word in words) and "--resume" not in words
    return shlex.join([*name, *words, *(["--resume"] if taken else [])])


# --- the demonstration ------------------------------------------------------------------------------------------------

DEMO_REFERENCES = 16

DEMO_RECIPE = Recipe(optimizer="adam", lr=3e-3, epochs=60, batch_size=64)
DEMO_POLICY = Policy(
    fpr=0.05,
    max_tpr=0.08,
    confidence=0.9,
    reason="with about 900 non-members, a false-positive rate of 1 % would rest on nine of them, so it is 5 %, and the"
    " confidence is 90 %; explanations may add 3 points to what the labels of the same queries reveal",
)


def digits_network(seed: int) -> nn.Module:
    """A small network for 8 x 8 digits that can memorise its members."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 10))


def digits() -> Population:
    """The 1,797 digits of scikit-learn; pixels scaled to [0, 1]."""
    from sklearn.datasets import load_digits

    found = load_digits()
    return Population.of(found.images[:, None] / 16, found.target)


def run_demo(cache: Path, *, seed: int, device: str, progress: Progress) -> AuditRun:
    """Train a network on half of the digits, and audit it."""
    population, models = digits(), ModelCache(cache)
    target = train_shadows(
        population, DEMO_RECIPE, build=digits_network, models=1, seed=seed, device=device, cache=models,
        progress=as_stage(progress, "training the model"),
    )  # fmt: skip
    notes = ("Demonstration: one network, overfitted to half of the digits.",)
    return audit(
        target.models[0], population, DEMO_RECIPE, build=digits_network, member=target.membership[0],
        explainer=HardenedInputXGradient, hardening=Hardening.recommended(), references=DEMO_REFERENCES,
        policy=DEMO_POLICY,
        options=AuditOptions(scored=len(population), title="Handwritten digits, small network", notes=notes),
        seed=seed + 1,  # other coin flips than those of the target
        cache=models, progress=progress,
    )  # fmt: skip
