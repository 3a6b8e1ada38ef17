"""Small drawings inside table cells: an interval against chance and a limit. Themed by the page's CSS."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor
from typing import Literal

from markupsafe import Markup

from safexplain.audit.report.words import percent, points

WIDTH, HEIGHT, MARGIN = 170, 26, 7
TOPS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
LETTER = 6.2
"""Width of a letter of the axis' text, about."""

Unit = Literal["rate", "difference", "auc"]


@dataclass(frozen=True)
class Scale:
    """An axis.

    Args:
        unit: "rate" from 0 on a square-root scale, which still separates 1 % from 3 %; "difference" of rates and "auc"
            on a straight one.
        low, high: its ends.
        chance: what guessing reaches.
        limit: what the policy allows; None where it is not what these numbers are compared with.
    """

    unit: Unit
    low: float
    high: float
    chance: float
    limit: float | None = None

    @classmethod
    def rates(cls, highest: float, chance: float, limit: float | None) -> Scale:
        """The axis with the smallest round end that shows `highest` and leaves space right of the limit."""
        need = min(1.0, max(highest, 1.3 * (limit or chance)))
        return cls("rate", 0.0, next(t for t in TOPS if t >= need), chance, limit)

    @classmethod
    def differences(cls, lowest: float, highest: float, limit: float | None) -> Scale:
        """An axis in steps of five percentage points that shows both ends, zero and the limit."""
        ends = (floor(20 * min(lowest, -0.02)) / 20, ceil(20 * max(highest, 1.8 * (limit or 0.01))) / 20)
        return cls("difference", max(ends[0], -1.0), min(ends[1], 1.0), 0.0, limit)

    @classmethod
    def aucs(cls, lowest: float, highest: float) -> Scale:
        """An axis in steps of 0.05 that shows both ends and one half."""
        return cls(
            "auc", max(floor(20 * min(lowest, 0.49)) / 20, 0.0), min(ceil(20 * max(highest, 0.6)) / 20, 1.0), 0.5
        )

    def x(self, value: float) -> float:
        """Horizontal position of a number; beyond an end, that end."""
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return MARGIN + (WIDTH - 2 * MARGIN) * (share**0.5 if self.unit == "rate" else share)

    def text(self, value: float, digits: int | None = None) -> str:
        """A number in the unit of the axis."""
        if self.unit == "auc":
            return f"{value:.2f}"
        return points(value, digits) if self.unit == "difference" else percent(value, digits)

    def axis(self) -> Markup:
        """The axis, for the head of the column."""
        marks, words = Markup(""), self._ends()
        if self.limit is not None:
            limit, says = self.x(self.limit), f"limit {self.text(self.limit, 3)}"
            anchor, at = ("start", limit + 4) if limit + 4 + LETTER * len(says) < WIDTH else ("end", limit - 4)
            marks += Markup('<line class="limit" x1="{x}" x2="{x}" y1="1" y2="{h}"/>').format(
                x=f"{limit:.1f}", h=HEIGHT
            )
            words += _word(at, 10, anchor, says)
        marks += Markup('<line class="chance" x1="{x}" x2="{x}" y1="15" y2="{h}"/>').format(
            x=f"{self.x(self.chance):.1f}", h=HEIGHT
        )
        return Markup('<svg class="bar axis" viewBox="0 0 {w} {h}" aria-hidden="true">{marks}{words}</svg>').format(
            w=WIDTH, h=HEIGHT, marks=marks, words=words
        )

    def _ends(self) -> Markup:
        zero = self.unit == "rate"
        ends = _word(1, HEIGHT - 2, "start", "0" if zero else self.text(self.low, 3))
        if self.unit == "auc" and self.x(0.5) > 40:
            ends += _word(self.x(0.5), 10, "middle", "0.50")
        return ends + _word(WIDTH - 1, HEIGHT - 2, "end", self.text(self.high, 3))

    def bar(self, value: float, low: float, high: float, standing: str) -> Markup:
        """The interval as a bar and the number as a dot.

        Args:
            value: the estimate.
            low: lower end of its interval.
            high: upper end.
            standing: CSS class that colours it ("above", "below", "open" or "beside").
        """
        left, right = self.x(low), self.x(high)
        says = f"{self.text(value)}, between {self.text(low)} and {self.text(high)}"
        limit = Markup("")
        if self.limit is not None:
            says += f", limit {self.text(self.limit)}"
            limit = Markup('<line class="limit" x1="{x}" x2="{x}" y1="0" y2="{h}"/>').format(
                x=f"{self.x(self.limit):.1f}", h=HEIGHT
            )
        return Markup(
            '<svg class="bar {standing}" viewBox="0 0 {w} {h}" role="img" aria-label="{label}">'
            '<line class="chance" x1="{chance}" x2="{chance}" y1="0" y2="{h}"/>{limit}'
            '<rect class="interval" x="{left}" y="{top}" width="{width}" height="8" rx="4"/>'
            '<circle class="rate" cx="{at}" cy="{middle}" r="4.5"/></svg>'
        ).format(
            w=WIDTH,
            h=HEIGHT,
            standing=standing,
            label=says,
            chance=f"{self.x(self.chance):.1f}",
            limit=limit,
            left=f"{left:.1f}",
            width=f"{max(right - left, 1.0):.1f}",
            top=HEIGHT / 2 - 4,
            at=f"{self.x(value):.1f}",
            middle=HEIGHT / 2,
        )


def _word(x: float, y: float, anchor: str, text: str) -> Markup:
    return Markup('<text x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>').format(
        x=f"{x:.1f}", y=y, anchor=anchor, text=text
    )
