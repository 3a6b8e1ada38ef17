"""The canaries of a model and its data: S2 to S5 (arXiv 2511.21804, Algorithms 2 to 5), and the outlier.

Algorithm 3 crafts an input whose gradient, under the target's label, opposes the target's. It minimises the cosine of
the two gradients plus their mean squared difference, but that difference is 0 where the gradients are equal. The text
wants z' "similar in scale", so here the second term is the squared difference of the norms, relative to the wanted one.

For a linear head the cosine is low where that of (x, 1) and (x', 1) is: if it can be negative, least on the path
clamp(-a x) through the box for some a > 0, and otherwise at corners of the box. The descent starts from both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from safexplain.audit.canaries.canary import (
    Canary,
    GradientCanary,
    Model,
    RecordCanary,
    RecordScenario,
    at_least_single,
    check_records,
)
from safexplain.audit.canaries.outlier import far_record
from safexplain.audit.canaries.reference import Reference
from safexplain.errors import InputError
from safexplain.verdict.canaries.claim import ScenarioName

_RECORDS = 128  # records tried as starts of a crafted input


def make_canary(
    scenario: ScenarioName,
    network: Model,
    x: Tensor,
    y: Tensor,
    reference: Reference,
    *,
    auxiliary: tuple[Tensor, Tensor] | None = None,
    generator: torch.Generator | None = None,
) -> Canary:
    """The canary of a scenario for the reference's target record z; record canaries carry cosine and norms of
    gradients.

    | scenario | z' |
    |---|---|
    | gradient | no record: gradients +C and -C at the parameter that moves least |
    | crafted | an input within the ranges of `x`, under z's label, made so that its gradient opposes z's |
    | mislabelled | z's input under the label whose gradient opposes z's most |
    | natural | the auxiliary record whose gradient opposes z's most |
    | outlier | a record far from all others, under another label |

    The generator draws the records that "crafted" tries as starts; None: the first ones.

    Raises:
        InputError: unusable data, or no auxiliary records for "natural".
    """
    check_records("data", network, x, y)
    if scenario == "gradient":
        return GradientCanary(reference.target, reference.least_moving, reference.drift)
    if scenario == "outlier":
        return RecordCanary("outlier", reference.target, *far_record(x, y, reference.target))
    x = at_least_single(x)
    target = Target(network, reference.theta, x[reference.target], int(y[reference.target]))
    if scenario == "mislabelled":
        return _mislabelled(target, reference.target)
    if scenario == "natural":
        return _natural(target, reference.target, auxiliary)
    if not x.is_floating_point():
        raise InputError(
            f"crafted input: expected floating-point x, got {x.dtype}; craft it on embeddings of the inputs"
        )
    order = torch.arange(len(x)) if generator is None else torch.randperm(len(x), generator=generator, device=x.device)
    norm = max(target.norm, reference.bound or 0.0)
    made = craft_input(target, Box(x.amin(0), x.amax(0)), x[order[:_RECORDS]], norm=norm)
    return _record("crafted", target, reference.target, made, target.y)


def _mislabelled(target: Target, row: int) -> RecordCanary:
    """Algorithm 4, all labels at once."""
    others = torch.tensor([c for c in range(target.network.classes) if c != target.y], device=target.x.device)
    found = target.to_all(target.x.expand(len(others), *target.x.shape), others)
    return _record("mislabelled", target, row, target.x, int(others[found.cosine.argmin()]))


def _natural(target: Target, row: int, auxiliary: tuple[Tensor, Tensor] | None) -> RecordCanary:
    """Algorithm 5, all records at once or in blocks."""
    if auxiliary is None:
        raise InputError(
            'auxiliary: scenario "natural" needs records that are not in the data, got None; give auxiliary=(x, y)'
        )
    x, y = auxiliary
    check_records("auxiliary", target.network, x, y)
    if x.shape[1:] != target.x.shape:
        raise InputError(
            f"auxiliary: expected inputs of shape {tuple(target.x.shape)}, as in the data, got {tuple(x.shape[1:])}"
        )
    x, y = x.to(target.x), y.to(target.x.device).long()
    best = int(target.to_all(x, y).cosine.argmin())
    return _record("natural", target, row, x[best], int(y[best]))


def _record(scenario: RecordScenario, target: Target, row: int, x: Tensor, y: int) -> RecordCanary:
    found = target.to_all(x[None], torch.tensor([y], device=x.device))
    norms = (target.norm, float(found.norm))
    return RecordCanary(scenario, row, x.detach().clone(), y, cosine=float(found.cosine), norms=norms)


# ------------------------------------------------------------------------------------------------ crafted inputs


@dataclass(frozen=True, eq=False)
class Box:
    """Inputs between `low` and `high`, both of the shape of one input."""

    low: Tensor
    high: Tensor

    @property
    def width(self) -> Tensor:
        """Width of each feature's range."""
        return self.high - self.low

    def project(self, x: Tensor) -> Tensor:
        """(n, ...) nearest inputs inside."""
        return torch.minimum(torch.maximum(x, self.low), self.high)

    def corners(self, x: Tensor, weights: Tensor) -> Tensor:
        """The corners that minimise x . c - w / 2 ||c||^2 for each weight w: (len(weights), ...)."""
        w = weights.view(-1, *[1] * x.dim()) / 2
        return torch.where(x * self.low - w * self.low**2 <= x * self.high - w * self.high**2, self.low, self.high)


_NUMBERS = 2**24  # numbers of gradients held at a time


def gradients(network: Model, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """(n, P) gradients of each record's cross-entropy at theta (P,), for x (n, ...) and y (n,), differentiable in x."""

    def loss_of(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        logits = network.logits(theta[None], x[None])[0, 0]
        if len(logits) == 1:
            return nn.functional.binary_cross_entropy_with_logits(logits[0], y.to(logits))
        return nn.functional.cross_entropy(logits, y)

    def gradient(x: Tensor, y: Tensor) -> Tensor:
        leaf = theta.detach().requires_grad_()
        return torch.autograd.grad(loss_of(leaf, x, y), leaf, create_graph=x.requires_grad)[0]

    try:
        found: Tensor = vmap(grad(loss_of), (None, 0, 0))(theta, x, y)
    except RuntimeError:  # vmap refuses the model
        with torch.enable_grad():
            found = torch.stack([gradient(*record) for record in zip(x, y, strict=True)])
    return found


class Similarity(NamedTuple):
    """Similarity of the gradients of n records to that of the target."""

    cosine: Tensor  # (n,); 0 where a gradient is 0
    norm: Tensor  # (n,) of the gradients of the n records


@dataclass(frozen=True, eq=False)
class Target:
    """A record z = (x, y) under the model of parameters theta (P,)."""

    network: Model
    theta: Tensor
    x: Tensor
    y: int

    @property
    def norm(self) -> float:
        """Norm of the gradient of z."""
        return float(self.to_all(self.x[None], self.label[None]).norm)

    @property
    def label(self) -> Tensor:
        """The label as a () long tensor."""
        return torch.tensor(self.y, device=self.x.device)

    def to(self, x: Tensor, y: Tensor) -> Similarity:
        """Similarity to records x (n, ...), y (n,), differentiable in `x`."""
        both = torch.cat([self.x[None], x]), torch.cat([self.label[None], y])
        found = gradients(self.network, self.theta, *both)
        dots = found @ found[0]
        norms = (found.square().sum(1) + torch.finfo(found.dtype).tiny).sqrt()
        return Similarity(dots[1:] / (norms[0] * norms[1:]), norms[1:])

    def to_all(self, x: Tensor, y: Tensor) -> Similarity:
        """The same for many records, in blocks; not differentiable."""
        size = max(1, _NUMBERS // self.network.parameters)
        with torch.no_grad():
            parts = [self.to(*part) for part in zip(torch.split(x, size), torch.split(y, size), strict=True)]
        return Similarity(torch.cat([p.cosine for p in parts]), torch.cat([p.norm for p in parts]))


_SCALES = 64
_STEPS = 200  # steps of Adam
_RATE = 0.02  # learning rate of Adam, in widths of a feature
_STARTS = 4  # number of starts of the descent


def loss(found: Similarity, norm: float) -> Tensor:
    """(n,) cosine plus squared relative difference from the wanted norm."""
    return found.cosine + (found.norm / norm - 1).square()


def craft_input(target: Target, within: Box, records: Tensor, *, norm: float) -> Tensor:
    """The input within the box with the least loss by projected Adam, started from the best of many inputs, including
    records (k, ...) of the data; the loss asks for a gradient of this norm."""
    tried = _candidates(target.x, within, records)
    losses = loss(target.to_all(tried, target.label.expand(len(tried))), norm)
    chosen = losses.topk(min(_STARTS, len(tried)), largest=False).indices
    best, least = tried[chosen], losses[chosen]
    x, width = best.clone(), within.width.to(best)
    move = torch.zeros_like(x)  # of one step, in widths
    adam = torch.optim.Adam([move], eps=1e-12)
    for step in range(1, _STEPS + 1):
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            now = loss(target.to(leaf, target.label.expand(len(leaf))), norm)
            move.grad = torch.autograd.grad(now.sum(), leaf)[0].nan_to_num(0.0) * width
        better = now.detach() < least
        least = torch.where(better, now.detach(), least)
        best = torch.where(better.view(-1, *[1] * (x.dim() - 1)), x, best)
        adam.param_groups[0]["lr"] = _RATE * (1 - step / (_STEPS + 1))
        adam.step()
        x = within.project(x + width * move)
        move.zero_()
    return best[least.argmin()]


def _candidates(x: Tensor, within: Box, records: Tensor) -> Tensor:
    """(k, ...): inputs from 0 to the opposite of x, corners at several scales, records, and the mirror image of x."""
    scales = torch.logspace(-2, 3, _SCALES, dtype=x.dtype, device=x.device)
    weights = torch.logspace(-2, 2, 16, dtype=x.dtype, device=x.device) * x.abs().mean() / within.width.to(x).mean()
    corners = within.corners(x, weights)
    mirrored = (within.low + within.high - x)[None]
    shape = [-1, *[1] * x.dim()]
    found = [-scales.view(shape) * x, *(corners * c for c in (1.0, 0.5, 0.25, 0.125)), records, mirrored]
    return within.project(torch.cat(found))
