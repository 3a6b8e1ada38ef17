"""Small drawings inside table cells: an interval against chance and the policy's limit. Themed by the page's CSS."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from markupsafe import Markup

from safexplain.audit.report.words import percent

WIDTH, HEIGHT, MARGIN = 170, 26, 7
TOPS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)


@dataclass(frozen=True)
class Scale:
    """A square-root axis from 0 to `top`: it starts at zero and still separates 1 % from 3 %.

    Args:
        top: right end, in (0, 1].
        chance: rate that guessing reaches.
        limit: rate that the policy allows.
    """

    top: float
    chance: float
    limit: float

    @classmethod
    def covering(cls, highest: float, chance: float, limit: float) -> Scale:
        """The axis with the smallest round end that shows `highest` and leaves space right of the limit."""
        need = min(1.0, max(highest, 1.3 * limit))
        return cls(next(t for t in TOPS if t >= need), chance, limit)

    def x(self, rate: float) -> float:
        """Horizontal position of a rate."""
        return MARGIN + (WIDTH - 2 * MARGIN) * sqrt(min(max(rate, 0.0), self.top) / self.top)

    def axis(self) -> Markup:
        """The axis, for the head of the column."""
        limit = self.x(self.limit)
        anchor, at = ("start", limit + 4) if limit < 0.6 * WIDTH else ("end", limit - 4)
        middle = HEIGHT - 2
        return Markup(
            '<svg class="bar axis" viewBox="0 0 {w} {h}" aria-hidden="true">'
            '<line class="limit" x1="{limit}" x2="{limit}" y1="1" y2="{h}"/>'
            '<line class="chance" x1="{chance}" x2="{chance}" y1="15" y2="{h}"/>'
            '<text x="{at}" y="10" text-anchor="{anchor}">limit {limit_text}</text>'
            '<text x="{left}" y="{middle}" text-anchor="start">0</text>'
            '<text x="{right}" y="{middle}" text-anchor="end">{top}</text></svg>'
        ).format(
            w=WIDTH,
            h=HEIGHT,
            limit=f"{limit:.1f}",
            chance=f"{self.x(self.chance):.1f}",
            at=f"{at:.1f}",
            anchor=anchor,
            limit_text=percent(self.limit, 3),
            left=1,
            right=WIDTH - 1,
            middle=middle,
            top=percent(self.top, 3),
        )

    def bar(self, rate: float, low: float, high: float, standing: str) -> Markup:
        """The interval as a bar and the rate as a dot.

        Args:
            rate: the estimate.
            low: lower end of its interval.
            high: upper end.
            standing: CSS class that colours it ("above", "below", "open" or "beside").
        """
        left, right = self.x(low), self.x(high)
        return Markup(
            '<svg class="bar {standing}" viewBox="0 0 {w} {h}" role="img" aria-label="{label}">'
            '<line class="chance" x1="{chance}" x2="{chance}" y1="0" y2="{h}"/>'
            '<line class="limit" x1="{limit}" x2="{limit}" y1="0" y2="{h}"/>'
            '<rect class="interval" x="{left}" y="{top}" width="{width}" height="8" rx="4"/>'
            '<circle class="rate" cx="{at}" cy="{middle}" r="4.5"/></svg>'
        ).format(
            w=WIDTH,
            h=HEIGHT,
            standing=standing,
            label=f"{percent(rate)}, interval {percent(low)} to {percent(high)}, limit {percent(self.limit)}",
            chance=f"{self.x(self.chance):.1f}",
            limit=f"{self.x(self.limit):.1f}",
            left=f"{left:.1f}",
            width=f"{max(right - left, 1.0):.1f}",
            top=HEIGHT / 2 - 4,
            at=f"{self.x(rate):.1f}",
            middle=HEIGHT / 2,
        )
