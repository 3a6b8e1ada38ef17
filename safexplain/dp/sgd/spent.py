"""What a model's private trainings took so far: a record of steps that travels with weights and optimizer states.

`make_private` puts one `Spent` on the model. It goes along with the module (also copied or pickled), with its
parameters, in the metadata of the model's `state_dict` and in the optimizer's. Records are joined, never replaced: each
run of a loop counts under a name of its own, and of the same name the larger count stands. So it does not matter which
of them comes back, in which order or how often; two runs that went on from one state add up once their weights meet.
"""

from __future__ import annotations

import os
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from safexplain._digest import weights_digest
from safexplain._privacy_loss import Steps
from safexplain.errors import ConfigurationError, InputError

KEY = "safexplain_privacy"
"""Of the record in the state of an optimizer and in the metadata of a model's."""

FORMAT = 1

_MARK = "_safexplain_spent"
_REMEMBERED = 1024
_running: weakref.WeakKeyDictionary[Spent, weakref.ref[nn.Module]] = weakref.WeakKeyDictionary()
"""Trainings of this process and their models, while they live."""
_parameters: dict[int, tuple[weakref.ref[nn.Parameter], Spent]] = {}
"""What shaped a parameter of this process, by its identity, while it lives: a new module may be built around it."""
_left: OrderedDict[str, dict[str, Any]] = OrderedDict()
"""Records of this process by the digest of the weights that `state_dict` told, the latest last."""


class Spent:
    """Steps that shaped a model, by the run that took them.

    Attributes:
        in_weights: whether the model's weights are the outcome of steps that are recorded: some were taken here, or the
            record came with the weights. An optimizer's state may be loaded beside other weights.
        changed: called after another record was joined that said something new.

    Args:
        told: steps that the user says were taken before, which no record names: a record that is joined later must say
            as many, and replaces them. None: nothing was said.
        like: noise and sampling of the steps that were told, and of those that `count` counts.
        run: name of this run; drawn at random unless given.
    """

    def __init__(self, told: int | None = None, like: Steps | None = None, run: str | None = None) -> None:
        self.run = run or os.urandom(16).hex()
        self.runs: dict[str, Steps] = {}
        self._told = told
        self.in_weights = False
        self.changed: Callable[[], None] | None = None
        if like is not None:
            self.runs[self.run] = replace(like, steps=0)
            if told:
                self.runs[self._told_name] = replace(like, steps=told)

    @property
    def _told_name(self) -> str:
        return f"{self.run} told"

    @property
    def told(self) -> bool:
        """Whether the user said how many steps were taken, and no record has taken the place of that."""
        return self._told is not None

    @property
    def steps(self) -> int:
        """Of all runs."""
        return sum(phase.steps for phase in self.runs.values())

    @property
    def phases(self) -> tuple[Steps, ...]:
        """Of all runs, those with equal noise and sampling in one; as few as can be."""
        sums: dict[Steps, int] = {}
        for phase in self.runs.values():
            kind = replace(phase, steps=0)
            sums[kind] = sums.get(kind, 0) + phase.steps
        return tuple(replace(kind, steps=steps) for kind, steps in sums.items() if steps)

    def count(self) -> None:
        """One more step of this run."""
        self.in_weights = True
        phase = self.runs[self.run]
        self.runs[self.run] = replace(phase, steps=phase.steps + 1)

    def join(self, other: Mapping[str, Steps], *, with_weights: bool = False) -> None:
        """Take over what another record says, which came `with_weights` or without.

        Raises:
            ConfigurationError: it says another number of steps than the user did.
        """
        taken = sum(phase.steps for phase in other.values())
        if self._told is not None and taken and self._told_name not in other:
            if taken != self._told:
                raise ConfigurationError(
                    f"steps_taken={self._told} contradicts what came with the model or the optimizer's state, {taken}"
                    " steps; leave steps_taken out"
                )
            self.runs.pop(self._told_name, None)
            self._told = None
        self.in_weights = self.in_weights or (with_weights and taken > 0)
        before = dict(self.runs)
        for name, phase in other.items():
            if name not in self.runs or phase.steps > self.runs[name].steps:
                self.runs[name] = phase
        if self.changed is not None and self.runs != before:
            self.changed()

    def to_state(self) -> dict[str, Any]:
        """Plain values, which `torch.load(weights_only=True)` reads."""
        return {"format": FORMAT, "runs": {name: phase.to_dict() for name, phase in self.runs.items()}}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"changed": None, "runs": dict(self.runs)}

    def __deepcopy__(self, memo: dict[int, Any]) -> Spent:
        other = Spent()
        other.__dict__.update(self.__getstate__())
        memo[id(self)] = other
        return other


def runs_of(state: object) -> dict[str, Steps]:
    """What `Spent.to_state` gave.

    Raises:
        InputError: something else.
    """
    try:
        if not isinstance(state, Mapping) or state["format"] != FORMAT:
            raise ValueError("it was written by another version of safexplain")
        return {str(name): Steps(**phase) for name, phase in state["runs"].items()}
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise InputError(f"the record of a private training's steps cannot be read ({error})") from None


def put_on(model: nn.Module, spent: Spent) -> None:
    """Let a model carry a record from now on, its parameters and states too."""
    inner = getattr(model, "module", None)
    for module in (model, inner) if isinstance(inner, nn.Module) else (model,):
        if _MARK not in module.__dict__:
            module.register_state_dict_post_hook(_tell)  # type: ignore[no-untyped-call]
            module.register_load_state_dict_pre_hook(_hear)  # type: ignore[no-untyped-call]
        module.__dict__[_MARK] = spent
    for parameter in model.parameters():
        _parameters[id(parameter)] = (weakref.ref(parameter, partial(_forget, _parameters, id(parameter))), spent)
    _running[spent] = weakref.ref(model)


def _forget(known: dict[int, Any], name: int, _: object) -> None:
    known.pop(name, None)


def found_on(model: nn.Module) -> list[Mapping[str, Steps]]:
    """Records of private trainings in a model's modules, parameters, or the values of its weights.

    The latter are compared with what trainings of this process have now and what was told of them by `state_dict`.
    """
    found = {id(s): s for m in model.modules() if isinstance(s := m.__dict__.get(_MARK), Spent)}
    for parameter in model.parameters():
        if (known := _parameters.get(id(parameter))) and known[0]() is parameter:
            found[id(known[1])] = known[1]
    records: list[Mapping[str, Steps]] = [dict(spent.runs) for spent in found.values() if spent.steps]
    if found or not (_left or _running):
        return records
    digest = weights_digest(model)
    for spent, its_model in list(_running.items()):
        trained = its_model()
        if trained is not None and spent.in_weights and weights_digest(trained) == digest:
            records.append(dict(spent.runs))
    if digest in _left:
        records.append(runs_of(_left[digest]))
    return records


def remember(model: nn.Module, spent: Spent) -> None:
    """What the model's present weights cost, for as long as this process lives."""
    if spent.in_weights:
        digest = weights_digest(model)
        _left[digest] = spent.to_state()
        _left.move_to_end(digest)
        while len(_left) > _REMEMBERED:
            _left.popitem(last=False)


def _tell(module: nn.Module, state: Any, prefix: str, metadata: dict[str, Any]) -> None:
    """Called by `state_dict`."""
    spent: Spent = module.__dict__[_MARK]
    metadata[KEY] = spent.to_state()
    remember(module, spent)


def _hear(module: nn.Module, state: Any, prefix: str, metadata: dict[str, Any], *_: Any) -> None:
    """Called by `load_state_dict`."""
    if KEY in metadata:
        module.__dict__[_MARK].join(runs_of(metadata[KEY]), with_weights=True)
