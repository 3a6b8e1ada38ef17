"""Untrained networks by name: of timm, of torchvision, of transformers, or made by a function of the user."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from typing import Any, cast
from unittest.mock import patch

from torch import Tensor, nn

from safexplain.errors import InputError, did_you_mean
from safexplain.loading.files import described, require
from safexplain.loading.models.huggingface import Network
from safexplain.loading.models.weights import channels_of, classes_of, seeded

ARCH_FORMS = "--arch timm:NAME, --arch torchvision:NAME, --arch hf:FOLDER or --arch package.module:function"

HUGGING_FACE = ("hf", "hf-pretrained")
"""Sources of `--arch` that are folders of transformers."""


def fresh_network(
    arch: str, num_classes: int | None = None, channels: int | None = None, state: Mapping[str, Tensor] | None = None
) -> Callable[[int], nn.Module]:
    """A function from a seed to an untrained network, in training mode. Nothing is downloaded.

    Args:
        arch: `timm:NAME`, `torchvision:NAME`, `hf:FOLDER`, `hf-pretrained:FOLDER` or `package.module:function`.

            A folder is one of transformers: `hf:` builds what its config.json says, with new weights;
            `hf-pretrained:` starts from the weights in it, and draws a head of another size anew.

            The function is found as `python -m` would find it and called without arguments, or with `num_classes`
            where it takes it. If it starts from public weights, so will the reference models.
        num_classes: Outputs, where the network can be told so; None: its own default.
        channels: Of the input, where timm builds it; None: its own default.
        state: Weights that the network is to take: they tell both numbers.

    Raises:
        InputError: no such architecture, or it cannot be built.
        MissingExtraError: timm or torchvision is needed and not installed.
    """
    source, _, name = arch.partition(":")
    if source in HUGGING_FACE:
        network = Network.of(name, num_classes=num_classes, channels=channels)
        network = network if state is None else network.fitting(state)
        return network if source == "hf" else network.starting_from(name)
    if state is not None:
        num_classes, channels = classes_of(state), channels_of(state)
    if source == "timm":
        construct = _timm(name, num_classes, channels)
    elif source == "torchvision":
        construct = _torchvision(name, num_classes)
    else:
        construct = _function(arch, num_classes)

    def build(seed: int) -> nn.Module:
        with seeded(seed), described(f"--arch {arch} cannot be built"):
            network = construct()
        if not isinstance(network, nn.Module):
            raise InputError(f"--arch {arch} gave a {type(network).__name__}; it must return a torch.nn.Module")
        return network.train()

    return build


def _timm(name: str, num_classes: int | None, channels: int | None) -> Callable[[], Any]:
    timm = require("timm", "vision")
    if not timm.is_model(name):
        raise InputError(f"timm has no model {name!r}{did_you_mean(name, timm.list_models())}")
    return partial(timm.create_model, name, pretrained=False, **_given(num_classes=num_classes, in_chans=channels))


def _torchvision(name: str, num_classes: int | None) -> Callable[[], Any]:
    models = require("torchvision", "vision").models
    known = models.list_models(module=models)  # classification only: the others fetch a backbone
    if name not in known:
        raise InputError(f"torchvision has no classification model {name!r}{did_you_mean(name, known)}")
    draws = "init_weights" in inspect.signature(models.get_model_builder(name)).parameters
    options = _given(num_classes=num_classes, init_weights=draws or None)
    return partial(models.get_model, name, weights=None, **options)


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def imported(spec: str, what: str, forms: str = "package.module:function") -> Callable[..., Any]:
    """A function `package.module:function`, found as `python -m` would find it, the current directory first;
    InputError, with the option `what` that names it and the `forms` that this may have, where there is none."""
    module_name, _, name = spec.partition(":")
    if not module_name or not name:
        raise InputError(f"{what} {spec!r} is not understood; expected {forms}")
    remedy = "; it is looked for from the current directory, as python -m does"
    with described(f"{what} {spec} cannot be imported", remedy), current_directory_importable():
        function: Any = attrgetter(name)(importlib.import_module(module_name))
        inspect.signature(function)
    return cast(Callable[..., Any], function)


def _function(arch: str, num_classes: int | None) -> Callable[[], Any]:
    function = imported(arch, "--arch", ARCH_FORMS)
    given = _given(num_classes=num_classes) if "num_classes" in inspect.signature(function).parameters else {}

    def construct() -> Any:
        with current_directory_importable():
            return function(**given)

    return construct


@contextmanager
def current_directory_importable() -> Iterator[None]:
    """The current directory first on `sys.path`, and off it again afterwards."""
    here = os.getcwd()
    sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        if here in sys.path:
            sys.path.remove(here)


@contextmanager
def importable_in_workers() -> Iterator[None]:
    """The same, for processes started meanwhile too: they are told by PYTHONPATH."""
    path = os.pathsep.join(filter(None, (os.getcwd(), os.environ.get("PYTHONPATH"))))
    with patch.dict(os.environ, PYTHONPATH=path), current_directory_importable():
        yield
