"""`safexplain audit --quick`: an ordinary audit with numbers that fit into about two minutes. It decides nothing."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import typer

from safexplain._progress import duration_text
from safexplain.audit.planning import Plan
from safexplain.audit.question import Question
from safexplain.audit.report.outcome import AuditRun
from safexplain.cli.run.tables import screen
from safexplain.verdict.result import AttackResult
from safexplain.verdict.stats import auc_interval

SECONDS = 50.0
"""Of the plan, of training, asking and explaining: what imports, losses, attacks and files leave of two minutes."""

PLANNING = 4.0
"""Seconds that the plan measures, about: half of what it does for a whole audit."""

LEAST = 20.0
"""Of these, after a plan that took long."""

FEWEST, MOST = 100, 1_000
"""Examples that are scored."""

ATTACKS = ("Threshold", "LikelihoodRatio", "LabelLikelihoodRatio")
"""What is run."""

EXIT_CODE = 3
"""Of a screen, whatever it sees: it proves no leak, and certifies nothing."""


def numbers_of(plan: Plan, question: Question) -> dict[str, Any]:
    """What a screen changes in the question: two references if training them is short, and as many examples as there
    is time to explain, each asked once."""
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


@dataclass(frozen=True)
class Seen:
    """What the strongest attack on one thing finds."""

    what: str  # it reads
    low: float  # 95 % interval of the share of members found
    high: float
    auc: float  # area under its ROC, and its interval, 95 % over all attacks of the screen together
    auc_low: float
    auc_high: float

    @property
    def likely(self) -> bool:
        """Whether it beats guessing."""
        return self.auc_low > 0.5

    @property
    def share(self) -> str:
        """In words."""
        return f"{100 * self.low:.0f} to {100 * self.high:.0f} %"


def seen_in(found: AuditRun) -> tuple[list[Seen], Seen | None]:
    """The strongest attack on the label, the native and the released explanation, the strongest first; and on the
    losses, which tell whether the model remembers its members at all, and are listed where predictions are released."""
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
            rate = best.at(fpr)
            seen.append(Seen(what, rate.low, rate.high, best.auc, *auc_interval(best.curve, 1 - 0.05 / tried)))
    losses = next((one for one in seen if one.what == "the loss"), None)
    hidden = found.result.policy.release == "explanation"
    return sorted((one for one in seen if not (hidden and one is losses)), key=lambda one: -one.auc), losses


def show_quick(found: AuditRun, plan: Plan, folder: Path, *, json_: bool, quiet: bool) -> int:
    """Print what a screen saw, and how the whole audit, which `plan` is of, is run; the exit code."""
    (seen, losses), result = seen_in(found), found.result
    fpr = f"{100 * result.policy.fpr:g} % false positives"
    if seen[0].likely:
        sentence = f"A leak is likely: {seen[0].share} of members found at {fpr}, from {seen[0].what}."
    else:
        sentence = f"None seen by a weak attack, which finds {seen[0].share} of members at {fpr}."
        if losses is not None and losses.likely:
            sentence += (
                f" But the model remembers its members: its losses tell them apart with an AUC of {losses.auc:.2f}."
            )
    again = whole_command(sys.argv)
    content = {
        "quick": True,
        "likely": seen[0].likely,
        "sentence": sentence,
        "seen": [vars(s) for s in seen],
        "losses": losses and vars(losses),
        "scored": result.members + result.non_members,
        "references": result.references,
        "run_dir": str(folder),
        "whole_seconds": plan.seconds,
        "whole_command": again,
    }
    if screen(content, sentence, json_, quiet):
        typer.echo(sentence)
        for one in [*seen, *([losses] if losses and losses not in seen else [])]:
            area = f"AUC {one.auc:.2f} ({one.auc_low:.2f} to {one.auc_high:.2f})"
            typer.echo(f"  {one.what}: {one.share} of members found, {area}")
        few = f"{result.references} reference models" if result.references else "no reference models"
        number = f"{result.members + result.non_members:,} examples asked once"
        typer.echo(f"A first look with {few} and {number}: it proves nothing, and counts as no use of them.")
        typer.echo(f"Report: {folder / found.files['report']}")
        typer.echo(f"The whole audit takes about {duration_text(plan.seconds)}:")
        typer.echo(again)
    return EXIT_CODE


def whole_command(argv: list[str]) -> str:
    """The command that was typed, without --quick; --run-dir is taken up."""
    program, *words = argv
    name = ["python", "-m", "safexplain"] if Path(program).name == "__main__.py" else [Path(program).name]
    words = [word for word in words if word != "--quick"]
    taken = any(word.startswith("--run-dir") for word in words) and "--resume" not in words
    return shlex.join([*name, *words, *(["--resume"] if taken else [])])
