"""How often a leak of a given size would be found, or certified, with the sample of this audit: a figure and a text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray

from safexplain.audit.report.figures import BAD, CHANCE, GOOD, INK, LIMIT, drawn, plain
from safexplain.audit.report.words import percent
from safexplain.verdict.power import power

if TYPE_CHECKING:
    from safexplain.verdict.result import AuditResult

POINTS = 160
LIKELY = 0.9
"""Probability with which the text calls a verdict likely."""


@dataclass(frozen=True, eq=False)
class Chances:
    """The probability of each verdict by the size of the leak.

    Args:
        tpr: true share of the members that the leaking attack finds at the policy's false-positive rate.
        leak, certified: probabilities, of the same shape.
    """

    tpr: NDArray[np.float64]
    leak: NDArray[np.float64]
    certified: NDArray[np.float64]

    @classmethod
    def of(cls, result: AuditResult) -> Chances | None:
        """Of this audit's sample; None under the claim "excess", whose power is not computed."""
        p = result.policy
        if p.claim != "whole":
            return None
        size, attacks = (result.members, result.non_members), len(result.judged)
        coarse = np.linspace(p.fpr, 1, POINTS + 1, endpoint=False)
        sure = coarse[np.searchsorted(power(p, *size, attacks, coarse).leak, 0.99).clip(max=POINTS)]
        tpr = np.linspace(p.fpr, min(max(sure, 1.6 * p.max_tpr), 0.999), POINTS)
        found = power(p, *size, attacks, tpr)
        return cls(tpr, found.leak, found.certified * (result.references > 0))

    def sentence(self, result: AuditResult) -> str:
        """What this sample would likely find."""
        start = f"With this sample and a limit of {percent(result.policy.max_tpr, 3)},"
        proven = self.tpr[self.leak >= LIKELY]
        passed = self.tpr[self.certified >= LIKELY]
        if len(proven):
            text = f"{start} a leak is proven {LIKELY:.0%} of the time where an attack truly finds {percent(proven[0])}"
            text += " of the members"
        else:
            text = f"{start} no leak of the sizes shown is proven {LIKELY:.0%} of the time"
        if len(passed):
            return f"{text}; a release is certified as often where none truly finds more than {percent(passed[-1])}."
        return f"{text}; a release that leaks nothing is certified {self.certified[0]:.0%} of the time."


def chances_figure(chances: Chances, result: AuditResult) -> Markup:
    """Both probabilities against the size of the leak."""
    policy = result.policy

    def draw(axes: Axes) -> None:
        axes.set_xlim(chances.tpr[0], chances.tpr[-1])
        axes.set_ylim(0, 1.02)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda v, _: f"{100 * v:.4g}%"))
        plain(axes)
        axes.axvline(policy.max_tpr, color=LIMIT, linewidth=1.6)
        axes.axhline(1 - policy.confidence, color=CHANCE, linewidth=1, linestyle=(0, (1, 2.2)))
        axes.plot(chances.tpr, chances.certified, color=GOOD, linewidth=2.2, linestyle=(0, (4.5, 1.6)))
        axes.plot(chances.tpr, chances.leak, color=BAD, linewidth=2.2)
        axes.set_xlabel(f"members that the strongest attack truly finds at {percent(policy.fpr, 3)} FPR", color=INK)
        axes.set_ylabel("probability of the verdict", color=INK)

    return drawn(draw, (6.6, 3.0), (0.105, 0.18, 0.87, 0.79), "chances", "chances")
