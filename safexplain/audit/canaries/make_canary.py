"""The canaries of a model and its data: S2 to S5 (arXiv 2511.21804, Algorithms 2 to 5), and the outlier."""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor

from safexplain.audit.canaries.canary import (
    Canary,
    GradientCanary,
    Model,
    RecordCanary,
    RecordScenario,
    at_least_single,
    check_records,
    check_target,
)
from safexplain.audit.canaries.craft_input import Box, Target, craft_input
from safexplain.audit.canaries.outlier import far_record
from safexplain.audit.canaries.reference import Reference
from safexplain.errors import ConfigurationError, InputError
from safexplain.verdict.canaries.claim import ScenarioName

__all__ = ["make_canary"]

_RECORDS = 128
"""Tried as starts of a crafted input."""


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
    """The canary of a scenario for the reference's target record z; a record has cosine and norms of the gradients.

    | scenario | z' |
    |---|---|
    | gradient | no record: gradients +C and -C at the parameter that moves least |
    | crafted | an input within the ranges of `x`, under z's label, made so that its gradient opposes z's |
    | mislabelled | z's input under the label whose gradient opposes z's most |
    | natural | the auxiliary record whose gradient opposes z's most |
    | outlier | a record far from all others, under another label |

    The generator draws these places, and the records that "crafted" tries as starts; None: the first ones.

    Raises:
        ConfigurationError: a scenario that has none.
        InputError: data that cannot be used, or no auxiliary records for "natural".
    """
    if scenario not in ("gradient", *get_args(RecordScenario)):
        raise ConfigurationError(
            f"scenario: expected gradient, {', '.join(get_args(RecordScenario))}; got {scenario!r}"
        )
    check_records("data", network, x, y)
    check_target(reference.target, len(x))
    if len(reference.theta) != network.parameters:
        raise InputError(
            f"reference: expected {network.parameters} parameters, as the network has, got {len(reference.theta)}; make"
            " the reference with the same network"
        )
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
        raise InputError(f"a crafted input needs inputs of real numbers, got {x.dtype}; make it on their embeddings")
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
    """Algorithm 5, all records at once or in pieces."""
    if auxiliary is None:
        raise InputError(
            'scenario "natural" picks from records that are not in the data: give auxiliary=(x, y), or craft another'
            " scenario"
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
