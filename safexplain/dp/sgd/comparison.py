"""What privacy costs in accuracy: the same training with several budgets, and without one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor, nn

from safexplain._privacy_loss import Adjacency, Epsilons
from safexplain.dp.models.checks import check_classes, outputs_of
from safexplain.dp.sgd.records import Piece, Records
from safexplain.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure  # imported where it draws: training needs no matplotlib

NOT_COVERED = """\
For whoever trains, not for publication: no statement covers the accuracy without privacy, and each further epsilon is
another training on the same records."""


@dataclass(frozen=True)
class Compared:
    """One training and how good it is.

    Args:
        epsilons: that it spent; None: it was trained without privacy.
        noise_multiplier: 0 without privacy.
        accuracy: share of the other records that it classifies rightly.
    """

    epsilons: Epsilons | None
    noise_multiplier: float
    accuracy: float


@dataclass(frozen=True)
class Comparison:
    """Accuracy with privacy and without, by the same training on the same records; prints as a table.

    It is for whoever trains. The accuracy without privacy depends on every record, and no guarantee covers it; the
    accuracy at each further epsilon comes from another training on the same records, which spends its own epsilon.

    Args:
        trainings: by epsilon, the one without privacy last.
        adjacency: under which the epsilons were asked for.
        records: how many other records accuracy is on.
    """

    trainings: tuple[Compared, ...]
    adjacency: Adjacency
    records: int

    @classmethod
    def of(cls, trainings: Iterable[Compared], adjacency: Adjacency, records: int) -> Comparison:
        """The same, sorted."""

        def order(t: Compared) -> float:
            return math.inf if t.epsilons is None else t.epsilons.of(adjacency)

        return cls(tuple(sorted(trainings, key=order)), adjacency, records)

    def half_width(self, accuracy: float) -> float:
        """Half of the 95 % interval of an accuracy on so many records (normal approximation)."""
        return 1.96 * math.sqrt(accuracy * (1 - accuracy) / self.records)

    def __str__(self) -> str:
        lines = [
            f"Accuracy on {self.records:,} other records, by what the training may spend",
            f"  {'added or removed':>16}  {'substituted':>11}  {'noise':>7}  accuracy",
        ]
        for t in self.trainings:
            e = t.epsilons
            one, other = ("none", "none") if e is None else (_short(e.add_remove), _short(e.substitute))
            found = f"{t.accuracy:.3f} ± {self.half_width(t.accuracy):.3f}"
            lines.append(f"  {one:>16}  {other:>11}  {t.noise_multiplier:>7.3g}  {found}")
        return "\n".join([*lines, NOT_COVERED])

    def plot(self, path: str | Path | None = None) -> Figure:
        """A figure of accuracy against epsilon, under the adjacency that was asked for, with 95 % intervals.

        Args:
            path: file to save to; its ending chooses the format.
        """
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        axes = figure.add_subplot()
        private = [t for t in self.trainings if t.epsilons is not None]
        at = [t.epsilons.of(self.adjacency) for t in private if t.epsilons is not None]
        half = [self.half_width(t.accuracy) for t in private]
        axes.errorbar(at, [t.accuracy for t in private], half, marker="o", color="#e8743b", label="with privacy")
        for t in self.trainings:
            if t.epsilons is None:
                w = self.half_width(t.accuracy)
                axes.axhline(t.accuracy, color="#8b8f98", linestyle=":", label="without")
                axes.axhspan(t.accuracy - w, t.accuracy + w, color="#8b8f98", alpha=0.15)
        axes.set(xscale="log", xlabel=f"epsilon ({self.adjacency})", ylabel=f"accuracy, {self.records:,} other records")
        axes.set_xticks(at, [f"{e:.3g}" for e in at], minor=False)
        axes.minorticks_off()
        axes.legend(frameon=False, loc="lower right")
        axes.spines[["top", "right"]].set_visible(False)
        if path is not None:
            figure.savefig(path, dpi=150)
        return figure


def _short(epsilon: float) -> str:
    return f"{epsilon:.2f}" if math.isfinite(epsilon) else "infinite"


def accuracy_of(model: nn.Module, records: Records, piece: int) -> float:
    """Share of the records whose class index is that of the model's largest output.

    Args:
        model: in evaluation mode, giving (rows, classes).
        records: (x, class indices).
        piece: rows at a time.

    Raises:
        InputError: outputs are not (rows, classes), or targets no indices of them.
    """
    numbers = range(len(records))
    pieces = records.pieces([*numbers[start : start + piece]] for start in range(0, len(records), piece))
    return sum(_right(model, one) for one in pieces) / len(records)


def check_comparable(model: nn.Module, records: Records) -> None:
    """Raise InputError unless accuracy on these records can be computed; tried on the first."""
    _right(model, next(records.pieces([[0]])))


def _right(model: nn.Module, piece: Piece) -> int:
    x, y = piece
    device = next(model.parameters()).device
    outputs = outputs_of(model, tuple(part.to(device) for part in (x if isinstance(x, tuple) else (x,))))
    if not isinstance(outputs, Tensor) or outputs.dim() != 2:
        kind = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise InputError(f"compare: accuracy is of outputs (rows, classes), got {kind}; leave compare out")
    check_classes(outputs, y)
    return int((outputs.argmax(1).cpu() == y.cpu()).sum())
