"""Canaries, which replace the target record z of D in D', and the scores of trained models, higher on D.

Scenarios S2 to S5 of arXiv 2511.21804, table 1; scores of its Algorithm 1, line 23, by logit-scaled confidences
(Carlini et al., 2112.03570, VI-A).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from safexplain.errors import InputError
from safexplain.verdict.canaries.result import ScenarioName

RecordScenario = Literal["crafted", "mislabelled", "natural", "outlier"]
"""Scenarios in which z' is a record."""


@dataclass(frozen=True, eq=False)
class GradientCanary:
    """Gradients +C (D) and -C (D') at one parameter, in place of the gradient of row `target`."""

    target: int
    coordinate: int  # in the flat tensor of all parameters
    drift: Tensor | None = None
    """How far the parameter has moved after each step of a noiseless run without the target, (steps + 1,) from 0, or
    after the last one alone, (1,). None: unknown."""


FOR_FUNCTIONS = (
    'scenario: expected gradient, crafted, mislabelled or natural for this training; "outlier" and "white-box" audit'
    " your own training function"
)


@dataclass(frozen=True, eq=False)
class RecordCanary:
    """A record z' = (x, y) that replaces z, row `target`, in D'."""

    scenario: RecordScenario
    target: int
    x: Tensor  # of the shape of one record; in scenario "mislabelled" that of z
    y: int  # in scenario "crafted" that of z
    cosine: float | None = None  # of the gradients of z and z' under the reference model; lower is better
    norms: tuple[float, float] | None = None  # of the gradients of z and z', before clipping


Canary = GradientCanary | RecordCanary


def margins(logits: Tensor, y: int) -> Tensor:
    """(R,) log of p_y / (1 - p_y), p the softmax of logits (R, outputs), or the sigmoid of one for class 1 of two."""
    outputs = logits.shape[-1]
    if not 0 <= y < max(2, outputs):
        raise InputError(f"label {y}: expected 0 to {max(2, outputs) - 1} for {outputs} outputs; classes count from 0")
    if outputs == 1:
        return logits[..., 0] if y == 1 else -logits[..., 0]
    others = [c for c in range(outputs) if c != y]
    return logits[..., y] - logits[..., others].logsumexp(-1)


def record_scores(logits_z: Tensor, logits_c: Tensor, y: int, y_canary: int, scenario: RecordScenario) -> Tensor:
    """Scores (R,) of R models for a record canary, higher on D, from logits (R, outputs) at z and at z'.

    In scenario "mislabelled" the logit of y minus that of y' at the shared input, otherwise the margin at z minus the
    margin at z'. InputError: labels out of range.
    """
    at_z, at_canary = margins(logits_z, y), margins(logits_z if scenario == "mislabelled" else logits_c, y_canary)
    if scenario != "mislabelled":
        return at_z - at_canary
    if y == y_canary:
        raise InputError(f"mislabelled canary: expected another label than that of its target, got {y} for both")
    return at_z if logits_z.shape[1] == 1 else logits_z[:, y] - logits_z[:, y_canary]


class Model(Protocol):
    """A classifier whose parameters are one flat tensor: a `LinearHead` or a `ModuleNetwork`."""

    @property
    def classes(self) -> int:
        """Number of classes."""

    @property
    def parameters(self) -> int:
        """Number P of parameters."""

    def logits(self, theta: Tensor, x: Tensor) -> Tensor:
        """Theta (1, P) and x (n, ...) -> (1, n, outputs)."""


def at_least_single(x: Tensor) -> Tensor:
    """Half precision converted to float32; others unchanged."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def check_data(network: Model, x: Tensor, y: Tensor) -> None:
    """Raise InputError unless a network can be trained on x (n, ...), y (n,)."""
    check_records("data", network, x, y)
    if len(x) < 2 or bool((y == y[0]).all()):
        raise InputError(f"data: expected records of at least two classes, got {len(x)} of class {int(y[0])} alone")


def check_records(name: str, network: Model, x: Tensor, y: Tensor) -> None:
    """Raise InputError unless a network accepts these records: finite x (n, ...) and class indices y (n,)."""
    if x.dim() < 2 or not x.numel():
        raise InputError(f"{name}: expected x of shape (n, ...) with at least one record, got {tuple(x.shape)}")
    features = getattr(network, "features", None)
    if features is not None and (x.shape[1:] != (features,) or not x.is_floating_point()):
        raise InputError(f"{name}: expected real x of shape (n, {features}), got {x.dtype} of {tuple(x.shape)}")
    if x.is_floating_point() and not bool(x.isfinite().all()):
        rows = (~x.flatten(1).isfinite().all(1)).nonzero()
        raise InputError(
            f"{name}: expected finite x, got NaN or infinity in {len(rows)} records, first in row {int(rows[0])};"
            " remove or impute them"
        )
    if y.shape != x.shape[:1] or y.is_floating_point() or y.dtype == torch.bool:
        raise InputError(
            f"{name}: expected a class index for each of {len(x)} records, got {y.dtype} of shape {tuple(y.shape)}"
        )
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= network.classes:
        raise InputError(f"{name}: expected labels 0 to {network.classes - 1}, got {low} to {high}")


def check_target(target: int, n: int) -> None:
    """Raise InputError unless `target` is a row."""
    if not 0 <= target < n:
        raise InputError(f"target: expected a row from 0 to {n - 1}, got {target}")


FAR = 200.0  # distance of the outlier from the mean of the data, in distances of the records from it (root mean square)
PROBES = 64  # records whose outputs the adversary reads besides z and z'

OUTLIER_SCORES = (
    "margin at z minus margin at z'",
    "margin at z",
    "margin at z'",
    "mean loss at other records",
    "mean logit of z's class at other records",
    "mean logit of the class of z' at other records",
    "log norm of the logits at z and z'",
    "log norm of the logits at other records",
)
"""Names of `outlier_scores`. A high value may mean D or D'; the direction is chosen with the score."""


def far_record(x: Tensor, y: Tensor, target: int) -> tuple[Tensor, int]:
    """The outlier that replaces row `target`, under the rarest other label: in its direction from the mean of the data,
    `FAR` times as far as the records. Whole numbers (tokens, bytes) all get the value that is rarest in the data."""
    if y.dim() != 1 or not bool((y == y.long()).all()) or bool((y < 0).any()):
        raise InputError(f"outlier: expected class indices y (n,), got {y.dtype} of shape {tuple(y.shape)}")
    counts = torch.bincount(y.long()).double()
    counts[int(y[target])] = 0
    if not bool(counts.any()):
        raise InputError("outlier: expected records of at least two classes, got one; give canary=(x', y')")
    counts[counts == 0] = torch.inf
    label = int(counts.argmin())
    if not x.is_floating_point():
        values, often = torch.unique(x, return_counts=True)
        return torch.full_like(x[target], values[often.argmin()]), label
    if not bool(x.isfinite().all()):
        raise InputError("data: expected finite x, got NaN or infinity; remove or impute such records")
    return from_mean(x, x[target].double() - x.double().mean(0), FAR), label


def from_mean(x: Tensor, direction: Tensor, distance: float) -> Tensor:
    """The input at this distance from the mean of x (n, ...), in units of their root-mean-square distance."""
    mean = x.double().mean(0)
    size = (x.double() - mean).flatten(1).norm(dim=1).square().mean().sqrt().clamp(min=1e-6)
    away = direction if float(direction.norm()) else torch.ones_like(mean)
    most = torch.finfo(x.dtype).max / 4
    far: Tensor = mean + distance * size / away.norm() * away
    return far.clamp(-most, most).to(x.dtype)


def probe_rows(records: int, target: int) -> list[int]:
    """Evenly spaced rows whose outputs the adversary reads, without the target."""
    rows = np.linspace(0, records - 1, min(records, PROBES + 1)).astype(int).tolist()
    return [row for row in rows if row != target][:PROBES]


def outlier_scores(pair: Tensor, others: Tensor, y: int, y_canary: int, labels: Tensor) -> Tensor:
    """The scores (R, 8) of R models, float64, in the order of `OUTLIER_SCORES`, minus infinity for NaN; from logits
    (R, 2, outputs) at z and z', and (R, p, outputs) at others, labels (p,)."""
    pair, others = (two_logits(logits.double()) for logits in (pair, others))
    at_z, at_canary = margins(pair[:, 0], y), margins(pair[:, 1], y_canary)
    if len(labels) and not 0 <= int(labels.max()) < others.shape[-1]:
        raise InputError(f"label {int(labels.max())}: expected 0 to {others.shape[-1] - 1}, the outputs of the model")
    chosen = labels.long().to(others.device).expand(len(others), -1)[..., None]
    centred = others - others.mean(-1, keepdim=True)
    found = torch.stack(
        [
            at_z - at_canary,
            at_z,
            at_canary,
            -others.log_softmax(-1).gather(-1, chosen).mean((1, 2)),
            centred[..., y].mean(1),
            centred[..., y_canary].mean(1),
            pair.flatten(1).norm(dim=1).log(),
            others.flatten(1).norm(dim=1).log(),
        ],
        1,
    )
    return torch.where(found.isnan(), -torch.inf, found)


def two_logits(logits: Tensor) -> Tensor:
    """Logits (..., outputs), of which one stands for class 1 of two, with the zero of class 0."""
    return torch.cat([torch.zeros_like(logits), logits], -1) if logits.shape[-1] == 1 else logits


_RECORDS = 128  # records tried as starts of a crafted input


@dataclass(frozen=True, eq=False)
class Reference:
    """Results of the reference trainings."""

    theta: Tensor  # (P,) at the end of the training without clipping
    target: int  # row of the record with the least mean probability of its true class over that training
    confidence: Tensor  # (n,) that mean for each record
    bound: float | None = None  # clipping bound C of the recipe
    movement: Tensor | None = None  # (P,) sum over the clipped training's steps of how far each parameter moved
    drift: Tensor | None = None
    """(steps + 1,) how far the parameter that moves least has moved after each step; None under Adam, whose steps
    depend on the noise."""

    @property
    def least_moving(self) -> int:
        """The flat coordinate of the parameter that moves least."""
        assert self.movement is not None, "made with movement=False"
        return int(self.movement.argmin())


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
    """The canary of a scenario for the reference's target record z; InputError: unusable data.

    The scenarios are those of docs/canaries.md. The generator draws the records that "crafted" tries as starts; None:
    the first ones.
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


@dataclass(frozen=True, eq=False)
class Box:
    """Inputs between `low` and `high`, both of the shape of one input."""

    low: Tensor
    high: Tensor

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
    """(n,) cosine plus squared relative difference from the wanted norm: Algorithm 3 adds the gradients' mean squared
    difference, but wants z' "similar in scale"."""
    return found.cosine + (found.norm / norm - 1).square()


def craft_input(target: Target, within: Box, records: Tensor, *, norm: float) -> Tensor:
    """The input within the box with the least loss by projected Adam, started from the best of many inputs, including
    records (k, ...). Its gradient, of this norm, opposes the target's."""
    tried = _candidates(target.x, within, records)
    losses = loss(target.to_all(tried, target.label.expand(len(tried))), norm)
    chosen = losses.topk(min(_STARTS, len(tried)), largest=False).indices
    best, least = tried[chosen], losses[chosen]
    x, width = best.clone(), (within.high - within.low).to(best)
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
    """(k, ...): inputs from 0 to the opposite of x, corners at several scales, records, and the mirror image of x. For
    a linear head the cosine is least among the first, if it can be negative, or the second."""
    scales = torch.logspace(-2, 3, _SCALES, dtype=x.dtype, device=x.device)
    weights = (
        torch.logspace(-2, 2, 16, dtype=x.dtype, device=x.device)
        * x.abs().mean()
        / (within.high - within.low).to(x).mean()
    )
    corners = within.corners(x, weights)
    mirrored = (within.low + within.high - x)[None]
    shape = [-1, *[1] * x.dim()]
    found = [-scales.view(shape) * x, *(corners * c for c in (1.0, 0.5, 0.25, 0.125)), records, mirrored]
    return within.project(torch.cat(found))
