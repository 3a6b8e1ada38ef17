"""Whether the data are those that the model was trained on, prepared in the same way; else a verdict is meaningless.

Three signs show that they are not: the accuracy on non-members is below the one that the owner states, or below that of
reference models, or the inputs of the first batch normalisation differ from the statistics of its training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy import stats as distributions

from safexplain.audit.controls.differences import RISK
from safexplain.verdict.evidence import Control
from safexplain.verdict.stats import clopper_pearson

if TYPE_CHECKING:
    from torch import Tensor, nn

META = "accuracy"  # entry of the signals' meta data with the inputs of the control
ROUNDED = 0.02  # tolerance below a stated accuracy, which is itself measured and rounded
MATTERS = 0.05  # smallest shortfall from the references that counts, even if significant
FEWEST = 4  # fewest reference models for comparing the target's accuracy with theirs

UNUSUAL, IMPOSSIBLE = 0.25, 16.0
"""Divergence from which batch statistics are reported, and ratio of variances, or its inverse, from which they fail.

In nats per channel: CIFAR-10 ResNets on right data .04, on data in [-1, 1] .53, in [0, 1] 1.0, in [0, 255] over 3,000.
Normalisation frozen at the statistics of other images may lie above the first, so that only warns."""

SETTLED = 50  # batches after which running statistics no longer depend on their initial values
LOOKED_AT = 512  # most members for measuring batch statistics


class Statistics(NamedTuple):
    """The inputs of the first batch normalisation, compared with its statistics from training."""

    divergence: float  # Kullback-Leibler, of normals with these means and variances: nats, mean over channels
    ratio: float  # of the variances, geometric mean over channels

    @classmethod
    def of(cls, model: nn.Module, x: Tensor, batch_size: int = 256) -> Self | None:
        """Statistics of a model in evaluation mode on (n, ...) examples like its training's; None: it kept none."""
        import torch
        from torch import nn

        kept = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        if not kept or any(m.running_mean is None or m.running_var is None for m in kept):
            return None
        reached: list[nn.modules.batchnorm._BatchNorm] = []  # as often as they were
        sums: list[Tensor] = []

        def record(module: Any, given: tuple[Tensor, ...]) -> None:
            reached.append(module)
            if module is reached[0]:
                a = given[0].detach().double()
                axes = [0, *range(2, a.dim())]
                sums.append(torch.stack([torch.ones_like(a).sum(axes), a.sum(axes), (a * a).sum(axes)]).cpu())

        handles = [m.register_forward_pre_hook(record) for m in kept]
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        try:
            with torch.no_grad():
                for start in range(0, len(x), batch_size):
                    model(x[start : start + batch_size].to(device))
        finally:
            for handle in handles:
                handle.remove()
        if not reached:
            return None
        first, number = reached[0], reached[0].num_batches_tracked
        assert first.running_mean is not None
        assert first.running_var is not None
        known_mean, known_var = first.running_mean.double().cpu(), first.running_var.double().cpu()
        if number is not None and 0 < int(number) < SETTLED and first.momentum is not None:
            return None
        if not number and not known_mean.any() and bool((known_var == 1).all()):
            return None  # initial values; files of old versions do not count batches
        n, total, squares = torch.stack(sums).sum(0)
        mean, known_var = total / n, known_var + first.eps
        var = (squares / n - mean * mean).clamp_min(0) + first.eps
        nats = 0.5 * (torch.log(known_var / var) + (var + (mean - known_mean) ** 2) / known_var - 1)
        return cls(float(nats.mean()), float((var / known_var).log().mean().exp()))

    @property
    def impossible(self) -> bool:
        """Whether no training on such data could have produced them."""
        return abs(math.log(max(self.ratio, 1e-300))) > math.log(IMPOSSIBLE)

    def __str__(self) -> str:
        return (
            f"the inputs of the model's first batch normalisation have {self.ratio:.3g} times the variance of those in"
            f" its training (divergence: {self.divergence:.2g} nats per channel)"
        )


class Hits(NamedTuple):
    """The correct predictions of a model on its non-members."""

    right: int
    examples: int
    units: int  # independent units: examples, or groups of them

    @classmethod
    def of(cls, right: NDArray[np.bool_], member: NDArray[np.bool_], groups: NDArray[Any] | None) -> Self:
        """From (n,) whether a model is right, its (n,) members, and the (n,) groups of examples, if any."""
        outside = ~member
        units = int(outside.sum()) if groups is None else len(np.unique(groups[outside]))
        return cls(int(right[outside].sum()), int(outside.sum()), units)

    @property
    def share(self) -> float:
        """Accuracy."""
        return self.right / max(self.examples, 1)

    def highest(self, risk: float) -> float:
        """Upper confidence bound of the accuracy."""
        return clopper_pearson(math.ceil(self.share * self.units), max(self.units, 1), 1 - 2 * risk)[1]


def below_stated(target: Hits, stated: float | None, risk: float = RISK / 2) -> str:
    """The finding if a model's accuracy is significantly below the stated one, else ""."""
    if stated is None or target.highest(risk) >= stated - ROUNDED:
        return ""
    return f"the model is right on {target.share:.1%} of its non-members, where {stated:.1%} is stated"


def below_references(target: Hits, references: Sequence[Hits], risk: float = RISK / 2) -> str:
    """The finding if a model's accuracy is significantly below that of reference models, else "".

    If trained alike, its accuracy is one more draw from theirs. The t-test's variance is at least the sampling variance
    over the target's non-members.
    """
    if len(references) < FEWEST or not target.units:
        return ""
    shares = np.array([r.share for r in references])
    mean, variance = float(shares.mean()), float(shares.var(ddof=1))
    pooled = min(max((mean + target.share) / 2, 1e-9), 1 - 1e-9)
    error = math.sqrt(max(variance, pooled * (1 - pooled) / target.units) + variance / len(shares))
    needed = max(MATTERS, float(distributions.t.ppf(1 - risk, len(shares) - 1)) * error)
    if mean - target.share <= needed:
        return ""
    return (
        f"the model is right on {target.share:.1%} of its non-members, but reference models trained on these data are"
        f" right on {mean:.1%} of theirs"
    )


ADVICE = (
    "the data do not look like what the model was trained on. Prepare them as for the training: images scaled and"
    " normalised, tables standardised, classes in the same order"
)


def accuracy(meta: Mapping[str, Any]) -> tuple[Control, ...]:
    """The control, from the signals' meta data under `META` (see `measured`); none without them."""
    known = meta.get(META)
    if not isinstance(known, Mapping) or not known.get("hits"):
        return ()
    target, *references = (Hits(*map(int, row)) for row in known["hits"])
    stated, found = known.get("stated"), known.get("statistics")
    statistics = None if found is None else Statistics(float(found[0]), float(found[1]))
    against = [below_stated(target, stated), below_references(target, references)]
    if statistics is not None and statistics.impossible:
        against.append(str(statistics))
    numbers = {"accuracy": target.share}
    if references:
        numbers["references"] = float(np.mean([r.share for r in references]))
    if stated is not None:
        numbers["stated"] = float(stated)
    if statistics is not None:
        numbers["divergence"] = statistics.divergence
    if wrong := [reason for reason in against if reason]:
        more = ", or the references were trained better than the model" if against[1] and len(wrong) == 1 else ""
        return (Control(META, True, f"{'; '.join(wrong)}: {ADVICE}{more}", numbers),)
    if stated is None and len(references) < FEWEST and statistics is None:
        says = "no accuracy is stated, and there are too few reference models to compare with"
        return (Control(META, None, says, numbers),)
    others = [*([] if stated is None else ["what is stated"]), *(["reference models"] if references else [])]
    compared = f", compared with {' and '.join(others)}" if others else ""
    return (Control(META, False, f"the model is right on {target.share:.1%} of its non-members{compared}", numbers),)


def measured(
    labels: NDArray[Any],
    y: NDArray[Any],
    membership: NDArray[np.bool_],
    groups: NDArray[Any] | None,
    stated: float | None,
    statistics: Statistics | None,
) -> dict[str, Any]:
    """The meta data under `META`, from (m, n) predicted classes of the target and its references, and (n,) y.

    `hits` are (right, examples, units) of each model on its non-members; `stated` and `statistics` may be None.
    """
    hits = [list(Hits.of(row == y, member, groups)) for row, member in zip(labels, membership, strict=True)]
    return {"hits": hits, "stated": stated, "statistics": None if statistics is None else list(statistics)}
