"""What a canary is: the target record z and what stands in its place in world b.

Two worlds differ in one record (substitute adjacency): the data of world a hold z, those of world b z' instead.
Scenarios S2 to S5 of arXiv 2511.21804, table 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from safexplain.errors import InputError

__all__ = ["Canary", "GradientCanary", "RecordCanary", "RecordScenario"]

RecordScenario = Literal["crafted", "mislabelled", "natural"]
"""Those in which z' is a record: S3 to S5."""


@dataclass(frozen=True, eq=False)
class GradientCanary:
    """Gradients +C (world a) and -C (world b) at one parameter, in place of the target record's gradient.

    Args:
        target: row of the data whose gradient is replaced.
        coordinate: of the parameter in the flat tensor of all parameters.
        drift: what the parameter has moved after step t of a noiseless run without the target, (steps + 1,) with a
            leading 0; None: not known.
    """

    target: int
    coordinate: int
    drift: Tensor | None = None

    def locate(self, shapes: Mapping[str, Tensor]) -> tuple[str, int]:
        """Which parameter tensor the coordinate is in, and where in it when flattened.

        Args:
            shapes: name -> parameter, in the order of the flat tensor; of a module, `dict(model.named_parameters())`
                without those that need no gradient.

        Raises:
            InputError: there are not that many parameters.
        """
        index = self.coordinate
        for name, parameter in shapes.items():
            if index < parameter.numel():
                return name, index
            index -= parameter.numel()
        raise InputError(
            f"coordinate {self.coordinate}: the {len(shapes)} tensors hold only {self.coordinate - index} parameters;"
            " pass the parameters of the model that the canary was made for"
        )


@dataclass(frozen=True, eq=False)
class RecordCanary:
    """A record z' = (x, y) that stands in place of row `target` in world b.

    Args:
        scenario: how z' was made.
        target: row of the data that is z.
        x: input of z', of the shape of one record; in scenario "mislabelled" that of z.
        y: label of z'; in scenario "crafted" that of z.
        cosine: between the gradients of z and z' under the reference model, in [-1, 1]; the lower the better.
        norms: of these two gradients, of z first, before clipping.
    """

    scenario: RecordScenario
    target: int
    x: Tensor
    y: int
    cosine: float | None = None
    norms: tuple[float, float] | None = None

    def separation(self, bound: float) -> float:
        """Distance between the two gradients, clipped to norm `bound`, as a share of the largest possible, 2 `bound`.

        Raises:
            InputError: the canary was not made by `craft`, so its gradients are not known.
        """
        if self.cosine is None or self.norms is None:
            raise InputError("separation: the gradients of this canary are not known; make it with craft")
        a, b = (min(norm, bound) for norm in self.norms)
        return math.sqrt(max(0.0, a * a + b * b - 2 * a * b * self.cosine)) / (2 * bound)


Canary = GradientCanary | RecordCanary
