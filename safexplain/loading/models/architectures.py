"""Networks by name (timm, torchvision, or a function of the user) and the weights that fit them."""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from safexplain.errors import InputError
from safexplain.loading.files import one_line, require
from safexplain.loading.models.reinitialise import seeded

ARCH_FORMS = "--arch timm:NAME, --arch torchvision:NAME or --arch package.module:function"

_PREFIXES = ("module.", "_orig_mod.", "model.", "net.")
_SHOWN = 3


def builder(
    arch: str, *, num_classes: int | None = None, state: Mapping[str, Tensor] | None = None
) -> Callable[[int], nn.Module]:
    """A function from a seed to an untrained network, in training mode. Nothing is downloaded.

    Args:
        arch: `timm:NAME`, `torchvision:NAME` or `package.module:function`. The function is found as `python
            -m` would find it (the current directory is searched first, during the import and the call only)
            and is called without arguments, or with `num_classes` where it takes it. If it starts from public
            weights, so will the reference models.
        num_classes: Number of outputs; by default read from `state`.
        state: Weights that the network is to take: the last 2-D weight gives the number of classes, for timm
            the first convolution the number of input channels.

    Raises:
        InputError: no such architecture, or it cannot be built.
        MissingExtraError: timm or torchvision is needed and not installed.
    """
    source, colon, name = arch.partition(":")
    if not colon or not source or not name:
        raise InputError(f"--arch {arch!r} is not understood; expected {ARCH_FORMS}")
    if num_classes is None and state is not None:
        num_classes = classes_of(state)
    construct: Callable[[], Any]
    if source == "timm":
        construct = _timm(name, num_classes, _channels_of(state or {}))
    elif source == "torchvision":
        construct = _torchvision(name, num_classes)
    else:
        construct = _function(source, name, num_classes)

    def build(seed: int) -> nn.Module:
        with seeded(seed):
            try:
                network = construct()
            except InputError:
                raise
            except Exception as error:  # any error of a stranger's code
                raise InputError(f"--arch {arch} cannot be built: {type(error).__name__}: {one_line(error)}") from None
        if not isinstance(network, nn.Module):
            raise InputError(f"--arch {arch} gave a {type(network).__name__}; it must return a torch.nn.Module")
        return network.train()

    return build


def _timm(name: str, num_classes: int | None, channels: int | None) -> Callable[[], Any]:
    timm = require("timm", extra="vision", purpose=f"--arch timm:{name}")
    if not timm.is_model(name):
        raise InputError(f"timm has no model {name!r}{_similar(name, timm.list_models())}")
    options = {"num_classes": num_classes, "in_chans": channels}
    given = {key: value for key, value in options.items() if value is not None}
    return lambda: timm.create_model(name, pretrained=False, **given)


def _torchvision(name: str, num_classes: int | None) -> Callable[[], Any]:
    models = require("torchvision", extra="vision", purpose=f"--arch torchvision:{name}").models
    known = models.list_models(module=models)  # classification only: the others fetch a backbone
    if name not in known:
        raise InputError(f"torchvision has no classification model {name!r}{_similar(name, known)}")
    given: dict[str, Any] = {} if num_classes is None else {"num_classes": num_classes}
    if "init_weights" in inspect.signature(models.get_model_builder(name)).parameters:
        given["init_weights"] = True
    return lambda: models.get_model(name, weights=None, **given)


def imported(spec: str, what: str, forms: str = "package.module:function") -> Callable[..., Any]:
    """A function by name, found as `python -m` would find it, the current directory first.

    Args:
        spec: `package.module:function`.
        what: the option that names it, for error messages.
        forms: what the option may be, for error messages.

    Raises:
        InputError: there is none.
    """
    module_name, _, name = spec.partition(":")
    if not module_name or not name:
        raise InputError(f"{what} {spec!r} is not understood; expected {forms}")
    try:
        with current_directory_importable():
            function: Any = importlib.import_module(module_name)
            for part in name.split("."):
                function = getattr(function, part)
            inspect.signature(function)
    except AttributeError:
        raise InputError(f"module {module_name} has no function {name!r}; expected {forms}") from None
    except ModuleNotFoundError as error:
        raise InputError(
            f"module {error.name} of {what} {spec} is not found from the current directory; "
            "run from the directory that python -m would need"
        ) from None
    except Exception as error:  # any error of a stranger's code
        raise InputError(f"{what} {spec} cannot be imported: {type(error).__name__}: {one_line(error)}") from None
    return cast(Callable[..., Any], function)


def _function(module_name: str, name: str, num_classes: int | None) -> Callable[[], Any]:
    function = imported(f"{module_name}:{name}", "--arch", ARCH_FORMS)
    parameters = inspect.signature(function).parameters
    given = {"num_classes": num_classes} if "num_classes" in parameters and num_classes is not None else {}

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
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([os.getcwd(), *([before] if before else [])])
    try:
        with current_directory_importable():
            yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def _similar(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=3)
    return f"; did you mean {', '.join(close)}?" if close else "; check the name against its documentation"


def classes_of(state: Mapping[str, Tensor]) -> int | None:
    """Outputs of the last 2-D weight of a state_dict; without one, of its last convolution."""
    weights = [tensor for name, tensor in state.items() if name.endswith("weight")]
    for ndim in (2, 4):
        last = [tensor for tensor in weights if tensor.ndim == ndim]
        if last:
            return int(last[-1].shape[0])
    return None


def _channels_of(state: Mapping[str, Tensor]) -> int | None:
    """Input channels of the first convolution, where they are not the usual three."""
    first = next((t for name, t in state.items() if name.endswith("weight") and t.ndim == 4), None)
    return None if first is None or first.shape[1] == 3 else int(first.shape[1])


def load_weights(network: nn.Module, state: Mapping[str, Tensor], *, arch: str, where: str) -> nn.Module:
    """Put a state_dict into a network, tensor for tensor.

    A prefix common to all names (`module.` of DataParallel, `_orig_mod.` of torch.compile, `model.`, `net.`)
    is taken off where the network has no such names; `num_batches_tracked`, which old files lack, may be
    missing.

    Raises:
        InputError: names or shapes differ (the first few are listed), or the weights are those that the
            constructor gives, so that a fresh network would not be untrained.
    """
    own = network.state_dict()
    state = without_prefix(state, set(own))
    missing = [_shape(name, t) for name, t in own.items() if name not in state and "num_batches_tracked" not in name]
    unexpected = [_shape(name, t) for name, t in state.items() if name not in own]
    reshaped = [
        f"{name} (file {tuple(t.shape)}, network {tuple(own[name].shape)})"
        for name, t in state.items()
        if name in own and t.shape != own[name].shape
    ]
    kinds = {"missing from the file": missing, "not in the network": unexpected, "of another shape": reshaped}
    problems = [f"{len(found)} {kind}: {_first(found)}" for kind, found in kinds.items() if found]
    if problems:
        raise InputError(
            f"the weights in {where} do not fit {arch}: {'; '.join(problems)}. Pass the --arch that they were "
            "trained with; for a number of classes or other options of the constructor use --arch "
            "package.module:function"
        )
    trained = {name: tensor for name, tensor in state.items() if tensor.ndim >= 2 and tensor.is_floating_point()}
    if trained and all(torch.equal(own[name].to(tensor.dtype), tensor) for name, tensor in trained.items()):
        raise InputError(
            f"{arch} returns a network that already has the weights in {where}; it must return an untrained "
            "one, from which reference models are trained"
        )
    try:
        network.load_state_dict(dict(state), strict=False)
    except Exception as error:  # what a stranger's load_state_dict hooks may raise
        raise InputError(f"the weights in {where} cannot be put into {arch}: {one_line(error)}") from None
    return network


def without_prefix(state: Mapping[str, Tensor], expected: set[str]) -> dict[str, Tensor]:
    """The same tensors, without a known prefix that all names share and that the network does not have."""
    found = dict(state)
    while found and not expected & set(found):
        prefix = next((p for p in _PREFIXES if all(name.startswith(p) for name in found)), None)
        if prefix is None:
            break
        found = {name.removeprefix(prefix): tensor for name, tensor in found.items()}
    return found


def _shape(name: str, tensor: Tensor) -> str:
    return f"{name} {tuple(tensor.shape)}"


def _first(found: list[str]) -> str:
    return ", ".join(found[:_SHOWN]) + (", ..." if len(found) > _SHOWN else "")
