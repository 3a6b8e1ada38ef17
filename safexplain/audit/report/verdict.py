"""The facts beside the verdict, and the controls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from safexplain.audit.report import words
from safexplain.audit.report.model import NATIVE, Configuration

if TYPE_CHECKING:
    from safexplain.verdict.evidence import Control
    from safexplain.verdict.result import AuditResult


@dataclass(frozen=True)
class Fact:
    """A number beside the verdict."""

    name: str
    value: str
    says: str
    warns: bool = False


@dataclass(frozen=True)
class ControlCard:
    """One control: what it asks, what it found."""

    name: str
    asks: str
    state: str
    says: str
    numbers: str


@dataclass(frozen=True)
class Controls:
    """The controls of one configuration."""

    configuration: Configuration
    cards: tuple[ControlCard, ...]


def facts(configuration: Configuration) -> tuple[Fact, ...]:
    """What the sample was, could decide, would need to be, and how often it was used."""
    result = configuration.result
    references = f"{result.references:,} reference model{'' if result.references == 1 else 's'}"
    rest = {k: n for k, n in result.sizes.items() if n and k != result.judgement.split}
    aside = "".join(f"; {n:,} examples for {name} set aside" for name, n in rest.items() if name != "certification")
    found = [
        Fact(
            "Scored once each",
            f"{result.members:,} + {result.non_members:,}",
            f"members and non-members, with {references if result.references else 'no reference models'}{aside}",
        )
    ]
    if result.policy.claim == "whole":
        found.append(
            Fact(
                "At best certifiable",
                words.percent(result.could_certify),
                "the lowest limit that this sample would likely certify if the attack only guessed",
            )
        )
    if result.verdict == "inconclusive":
        found += _needed(result)
    return (*found, _uses(result, configuration.name == NATIVE))


def controls(configurations: Sequence[Configuration]) -> tuple[Controls, ...]:
    """Those of the audited configuration, and of the others if one of theirs fired."""
    audited = configurations[-1]
    shown = [audited, *(c for c in configurations[:-1] if c.result.judgement.fired)]
    return tuple(Controls(c, tuple(_card(x) for x in c.result.controls)) for c in shown if c.result.controls)


def _needed(result: AuditResult) -> list[Fact]:
    if result.judgement.fired:
        return [Fact("Would decide", "no sample", "as long as a control fires, no number of examples decides", True)]
    if result.policy.claim == "excess" or not result.references or result.judgement.split != "certification":
        return []
    n = result.needed
    if n is None:
        return [
            Fact("Would decide", "no sample", "of up to 1,000 times this size: the rate lies too close to the limit")
        ]
    outcome = {"certified": "to certify", "leak": "to prove a leak"}[n.verdict]
    return [
        Fact(
            "Would decide",
            f"{n.members:,} + {n.non_members:,}",
            f"members and non-members, about, {outcome}, if the rates found here are the true ones",
        )
    ]


def _uses(result: AuditResult, native: bool) -> Fact:
    if result.judgement.split != "certification":
        return Fact(
            "Uses of these examples", "selection split", "to be looked at as often as one likes; nothing is decided"
        )
    if native and result.uses is None:
        return Fact(
            "Uses of these examples", "not counted", "for the native explanation: there is no hardening to choose"
        )
    match result.uses:
        case None:
            return Fact(
                "Uses of these examples",
                "not counted",
                "so nobody can tell whether this configuration was chosen by a verdict on the same examples",
                True,
            )
        case 1:
            return Fact("Uses of these examples", "first use", "no other configuration was judged on them before")
        case uses:
            says = "configurations were judged on them, this one included: each choice by a verdict weakens the next"
            return Fact("Uses of these examples", f"{uses:,}", says, True)


def _card(control: Control) -> ControlCard:
    return ControlCard(
        name=control.name[:1].upper() + control.name[1:],
        asks=words.CONTROLS.get(control.name, ""),
        state=words.STATES[control.fired],
        says=control.says[:1].upper() + control.says[1:] + ("" if control.says.endswith(".") else "."),
        numbers=" · ".join(f"{words.NUMBERS.get(name, name)} {value:.3g}" for name, value in control.numbers.items()),
    )
