"""Untrained networks by name, from timm, torchvision, transformers or a function of the user."""

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
from safexplain.loading.files import as_input_error, require
from safexplain.loading.models.huggingface import Network
from safexplain.loading.models.weights import channels_of, classes_of, seeded

ARCH_FORMS = "--arch timm:NAME, --arch torchvision:NAME, --arch hf:FOLDER or --arch package.module:function"

HUGGING_FACE = ("hf", "hf-pretrained")
"""Sources of `--arch` for folders of transformers."""


def fresh_network(
    arch: str, num_classes: int | None = None, channels: int | None = None, state: Mapping[str, Tensor] | None = None
) -> Callable[[int], nn.Module]:
    """A function from a seed to an untrained network, in training mode. Nothing is downloaded.

    Args:
        arch: `timm:NAME`, `torchvision:NAME`, `hf:FOLDER` (the network of its config.json with new weights),
            `hf-pretrained:FOLDER` (starting from its weights, a head of another size drawn anew), or
            `package.module:function`, found as by `python -m` and called without arguments, or with `num_classes` if it
            has this parameter. If it starts from public weights, so do the reference models.
        num_classes: Number of outputs; None: the network's default.
        channels: Input channels, for timm; None: the network's default.
        state: Weights that the network must take; they give both numbers.

    Raises:
        InputError: no such architecture, or it cannot be built.
        MissingExtraError: timm or torchvision is needed and not installed.
    """
    source, _, name = arch.partition(":")
    if source in HUGGING_FACE:
        network = Network.of(name, num_classes=num_classes, channels=channels)
        network = network if state is None else network.with_classes_of(state)
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
        with seeded(seed), as_input_error(f"--arch {arch} cannot be built"):
            network = construct()
        if not isinstance(network, nn.Module):
            raise InputError(f"--arch {arch}: expected a torch.nn.Module, got a {type(network).__name__}")
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
    """Import a function `package.module:function` as `python -m` does, the current directory first.

    Raises:
        InputError: there is none; the message names the option `what` and its `forms`.
    """
    module_name, _, name = spec.partition(":")
    if not module_name or not name:
        raise InputError(f"{what}: expected {forms}, got {spec!r}")
    remedy = "; it must be importable from the current directory, as with python -m"
    with as_input_error(f"{what} {spec} cannot be imported", remedy), current_directory_importable():
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
    """Put the current directory first on `sys.path`, and remove it afterwards."""
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
    """The same, also for processes started meanwhile, through PYTHONPATH."""
    path = os.pathsep.join(filter(None, (os.getcwd(), os.environ.get("PYTHONPATH"))))
    with patch.dict(os.environ, PYTHONPATH=path), current_directory_importable():
        yield
