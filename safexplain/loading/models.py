"""Load an untrusted model file without running its code, try it, and provide untrained networks like it."""

from __future__ import annotations

import copy
import inspect
import io
import math
import pickle
import re
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from safexplain._digest import file_sha256, sha256
from safexplain.columns import Columns
from safexplain.errors import InputError, did_you_mean
from safexplain.loading.estimators import FILES, FittedClassifier, identify_estimator, load_estimator
from safexplain.loading.exported import (
    HOW_TO_EXPORT,
    embeddings,
    frozen_operation,
    is_exported,
    load_exported,
    with_layers,
)
from safexplain.loading.files import (
    as_input_error,
    current_directory_importable,
    imported,
    is_safetensors,
    one_line,
    read_bytes,
    require,
    seeded,
    without_prefix,
)
from safexplain.loading.huggingface import Network, Preprocessing, is_transformers_folder
from safexplain.outputs import EstimatorModule

_FORMATS = f"a torch.export archive, a state_dict (torch.save or safetensors), a pickled model; {FILES}"


def identify(raw: bytes, where: str) -> Literal["torch.export", "torch.save", "safetensors"]:
    """Format of a model file; InputError: a damaged archive, TorchScript, or not a model."""
    if is_safetensors(raw):
        return "safetensors"
    if raw[:1] == b"\x80":
        return "torch.save"  # PyTorch before 1.6, or pickle itself
    if raw.startswith(b"version https://git-lfs"):
        raise InputError(f"expected a model file, but {where} is a Git LFS pointer to one; run git lfs pull")
    if raw[:4] != b"PK\x03\x04":
        raise InputError(f"expected a model file, but {where} starts with {raw[:12]!r}; pass {_FORMATS}")
    with as_input_error(f"the model file {where} is damaged or cut short", "; copy or save it again"):
        names = zipfile.ZipFile(io.BytesIO(raw)).namelist()
    if is_exported(names):
        return "torch.export"
    endings = {name.rpartition("/")[2] for name in names}
    if "constants.pkl" in endings:
        raise InputError(
            f"expected a model file, but {where} is a TorchScript archive; use torch.export, or save the model's"
            " state_dict"
        )
    if "data.pkl" in endings:
        return "torch.save"
    if any(name.endswith(".npy") for name in names):
        raise InputError(f"expected a model file, but {where} holds data; pass it as --data")
    raise InputError(f"expected a model file, but {where} is some other zip archive; pass {_FORMATS}")


_NESTINGS = ("state_dict", "model_state_dict", "model")


@dataclass(frozen=True)
class LoadedModel:
    """A model to audit, in evaluation mode, on the CPU.

    Attributes:
        fresh: Function from a seed to an untrained network of the same architecture; None: see `fresh_unavailable`.
        sha256: Hexadecimal SHA-256 of the file; for a folder, of the weights in it.
        preprocessing: Normalisation of images, read from a folder of transformers; None: unknown.
        classifier: The fitted classifier in the model, which is fitted again instead; None: the model is a network.
    """

    model: nn.Module
    fresh: Callable[[int], nn.Module] | None
    fresh_unavailable: str
    sha256: str
    preprocessing: Preprocessing | None = None
    classifier: FittedClassifier | None = None

    @classmethod
    def of_classifier(cls, found: FittedClassifier, columns: Columns | None = None) -> LoadedModel:
        """Wrap a fitted classifier; `columns` is the coding of its rows, if any."""
        why = "an estimator is fitted again, not built"
        return cls(EstimatorModule(found.estimator, columns=columns), None, why, found.file, classifier=found)


def load_model(
    path: str | Path,
    *,
    arch: str | None = None,
    trust_pickle: bool = False,
    input_shape: tuple[int, ...] | None = None,
    trust_types: Sequence[str] = (),
    columns: str | Path | None = None,
) -> LoadedModel:
    """Load a model file of any supported format, recognised by content: a `torch.export` archive (`exported.rewrite`),
    a state_dict with `arch`, a pickled module with `trust_pickle`, a folder of transformers, or a classifier of tables
    (`load_estimator`). **Nothing pickled is loaded unless asked for by name**.

    Args:
        path: The file, or the folder.
        arch: How the network is built, see `fresh_network`. For files with a network, it only builds the untrained
            networks, and must fit the file's weights.
        trust_pickle: Allow the file to run code on this machine.
        input_shape: Shape of one example. If it, or an exported shape, is known, the model is tried on two rows.
        trust_types: Types in a skops file to accept although skops does not trust them.
        columns: The file columns.json of the audit of a classifier that takes texts or missing numbers.

    Raises:
        InputError: the file is missing, unreadable, damaged or not a model, needs `arch` or `trust_pickle`, does not
            fit `arch`, or passes no gradient to its input, which explanations need.
        MissingExtraError: a library is needed and not installed.
    """
    if is_transformers_folder(path):
        return _load_folder(Path(path), arch, trust_pickle, input_shape)
    raw, where = read_bytes(path, "model"), str(path)
    if identify_estimator(raw) is not None:
        if arch is not None:
            raise InputError(f"--arch is for networks, but {where} holds a classifier; leave it out")
        found = load_estimator(path, trust_pickle=trust_pickle, trust_types=trust_types)
        return LoadedModel.of_classifier(found, None if columns is None else Columns.read(columns))
    kind = identify(raw, where)
    shape: tuple[int | None, ...] | None = input_shape
    content: Any
    if kind == "torch.export":
        content, state = load_exported(raw, where=where, trusted=trust_pickle)
        exported, shape = content.input_shape, input_shape or content.input_shape
        if len(shape) != len(exported) or any(e not in (None, g) for e, g in zip(exported, shape, strict=True)):
            raise InputError(
                f"{where}: expected examples of shape {exported}, for which it was exported, got {shape}; export it"
                " again, or pass the data that it was exported for"
            )
    else:
        if kind == "safetensors":
            with as_input_error(f"the safetensors file {where} is damaged", "; save it again"):
                content = require("safetensors.torch", "vision").load(raw)
        else:
            content = _load_pickle(raw, where, trust_pickle)
        if isinstance(content, Mapping):
            content = next((content[k] for k in _NESTINGS if isinstance(content.get(k), nn.Module)), content)
        if isinstance(content, nn.Module):
            content = content.module if isinstance(content, nn.DataParallel) else content
            state = dict(content.state_dict())
        else:
            state = _tensors(content, where)
    is_network = isinstance(content, nn.Module)
    if arch is None and not is_network:
        name, tensor = next(iter(state.items()))
        raise InputError(
            f"{where} is a state_dict ({len(state)} tensors, the first {name} {tuple(tensor.shape)}): "
            f"weights without a network; pass {ARCH_FORMS}"
        )
    build = None if arch is None else fresh_network(arch, state=state)
    twin: nn.Module | None = None
    if isinstance(build, Network):
        twin = _read_into(build, state, where).float().cpu().eval()
    elif build is not None and arch is not None:
        twin = load_weights(build(0), state, arch=arch, where=where).float().cpu().eval()
    model: Any = content.float().cpu().eval() if is_network else twin
    _check_runs(model, twin if is_network else None, shape, where, arch)
    if build is not None:
        preprocessing = Preprocessing.read(Path(build.folder)) if isinstance(build, Network) else None
        return LoadedModel(model, build, "", sha256(raw), preprocessing)
    try:
        reinitialise(model, 0)
    except InputError as error:
        return LoadedModel(model, None, str(error), sha256(raw))
    return LoadedModel(model, partial(reinitialise, model), "", sha256(raw))


def _load_folder(
    folder: Path, arch: str | None, trust_pickle: bool, input_shape: tuple[int, ...] | None
) -> LoadedModel:
    source, _, base = (arch or f"hf:{folder}").partition(":")
    if source not in HUGGING_FACE or (source == "hf" and Path(base).resolve() != folder.resolve()):
        raise InputError(
            f"{folder} describes its own network, but --arch {arch} names another; leave --arch out, or pass --arch"
            " hf-pretrained:BASE, the folder of weights from which its training started"
        )
    fresh = Network.of(folder) if source == "hf" else Network.of(folder).starting_from(base)
    model = _read_into(fresh, None, str(folder), trust_pickle=trust_pickle).float().cpu().eval()
    _check_runs(model, None, input_shape, str(folder))
    return LoadedModel(model, fresh, "", file_sha256(folder), Preprocessing.read(folder))


def _read_into(build: Network, state: Mapping[str, Tensor] | None, where: str, **options: bool) -> nn.Module:
    model = build.load(state, where, **options)
    if build.base is not None:
        fresh, trained = build(0).state_dict(), model.state_dict()
        if all(torch.equal(fresh[n], t) for n, t in trained.items() if t.ndim >= 2 and t.is_floating_point()):
            raise InputError(
                f"{build.base} has the same weights as {where}; pass the weights from which its training started"
            )
    return model


def _load_pickle(raw: bytes, where: str, trust_pickle: bool) -> Any:
    try:
        with warnings.catch_warnings(action="ignore"):
            return torch.load(io.BytesIO(raw), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:  # more than tensors; PyTorch names the first such object if it can
        named = re.search(r"GLOBAL ([\w.]+)", str(error))
    except Exception as error:  # damaged files raise many kinds of errors
        raise InputError(f"the model file {where} is damaged or cut short: {one_line(error)}; save it again") from None
    if not trust_pickle:
        what = f" ({named[1]})" if named else ""
        raise InputError(
            f"{where} is a pickle of Python objects{what}, and loading a pickle can run any code; export the model"
            f" ({HOW_TO_EXPORT}), or save its state_dict and pass {ARCH_FORMS}, or pass --trust-pickle if you trust the"
            " author of the file"
        )
    remedy = "; make the module that defines its classes importable from the current directory"
    with as_input_error(f"the pickle {where} cannot be loaded", remedy), current_directory_importable():
        return torch.load(io.BytesIO(raw), map_location="cpu", weights_only=False)


def _tensors(content: Any, where: str) -> dict[str, Tensor]:
    held = f"a {type(content).__name__}"
    if isinstance(content, Mapping):
        for candidate in (content, *(content[key] for key in _NESTINGS if key in content)):
            if isinstance(candidate, Mapping) and candidate and all(isinstance(v, Tensor) for v in candidate.values()):
                return {str(name): tensor for name, tensor in candidate.items()}
        held = "a dict with the keys " + ", ".join(map(str, list(content)[:5]))
    raise InputError(
        f"{where}: expected a model, a state_dict, or one under the key {', '.join(_NESTINGS)}, got {held}"
    )


def _check_runs(
    model: nn.Module, twin: nn.Module | None, shape: tuple[int | None, ...] | None, where: str, arch: str | None = None
) -> None:
    """Try the model on two random examples, if their shape is known; InputError: it fails, differs from its `twin` of
    the named architecture, or passes no gradient to its input."""
    if shape is None or None in shape:
        return
    x = torch.rand((2, *shape), generator=torch.Generator().manual_seed(0))  # type: ignore[arg-type]
    if twin is not None:
        what = f"{arch} with the weights in {where}"
        with as_input_error(f"{what} or the file's model fails on a batch of shape {tuple(x.shape)}"), torch.no_grad():
            same = torch.allclose(model(x), twin(x), rtol=1e-3, atol=1e-4)
        if not same:
            raise InputError(f"{what} predicts different scores than the file; pass the --arch of its training")
    with as_input_error(f"the model in {where} fails on a batch of shape {tuple(x.shape)}"), torch.enable_grad():
        output, gradient = model(x.requires_grad_(True)), None
        if isinstance(output, Tensor) and output.requires_grad:
            gradient = torch.autograd.grad(output.sum(), x, allow_unused=True)[0]
    if gradient is None:
        raise InputError(
            f"explanations need a gradient, but none reaches the input of the model in {where}; remove argmax, detach()"
            " and torch.no_grad() from its forward, and return scores"
        )


# --- untrained networks ----------------------------------------------------------------------------------------------

ARCH_FORMS = "--arch timm:NAME, --arch torchvision:NAME, --arch hf:FOLDER or --arch package.module:function"

HUGGING_FACE = ("hf", "hf-pretrained")


def fresh_network(
    arch: str, num_classes: int | None = None, channels: int | None = None, state: Mapping[str, Tensor] | None = None
) -> Callable[[int], nn.Module]:
    """A function from a seed to an untrained network, in training mode. Nothing is downloaded.

    Args:
        arch: `timm:NAME`, `torchvision:NAME`, `hf:FOLDER` (its config.json with new weights), `hf-pretrained:FOLDER`
            (starting from its weights, a head of another size drawn anew), or `package.module:function`, called
            with `num_classes` if it has this parameter.
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


def _function(arch: str, num_classes: int | None) -> Callable[[], Any]:
    function = imported(arch, "--arch", ARCH_FORMS)
    given = _given(num_classes=num_classes) if "num_classes" in inspect.signature(function).parameters else {}

    def construct() -> Any:
        with current_directory_importable():
            return function(**given)

    return construct


# --- fresh and given weights -----------------------------------------------------------------------------------------

_PASS_ARCH = "pass --arch timm:NAME, torchvision:NAME or package.module:function to say how it is built"


def reinitialise(module: nn.Module, seed: int) -> nn.Module:
    """A deep copy of `module` with fresh weights, by PyTorch's default for each layer, in training mode; the global
    random state does not change. `--arch` is better if the model's constructor sets its weights in another way.

    A submodule with `reset_parameters` calls it, children before their parents. Parameters of others, as in
    `torch.export` graphs, get the default of the layer that their name suggests (`_default_rule`); any other tensor is
    normal with the mean and standard deviation of the trained one, and a single number is kept. Other buffers are kept.

    Raises:
        InputError: an exported graph holds dropout, or batch normalisation without parameters, in inference form; a
            layer cannot be reset; or a trained tensor survives.
    """
    if frozen_operation(module, training=False) == "batch_norm":
        module = with_layers(module, batch_norm=True)
    if (operation := frozen_operation(module, training=False)) is not None:
        raise InputError(
            f"the exported graph holds {operation} frozen in inference mode, so that it cannot be trained; {_PASS_ARCH}"
        )
    with as_input_error("the network cannot be copied", f"; {_PASS_ARCH}"):
        fresh = copy.deepcopy(module)
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    fresh.cpu()
    with seeded(seed), torch.no_grad():
        _redraw(fresh)
    _refuse_survivors(module, fresh)
    for parameter in fresh.parameters():
        if parameter.is_floating_point():
            parameter.requires_grad_(True)
    return fresh.to(device).train()


def _redraw(fresh: nn.Module) -> None:
    tables = embeddings(fresh)
    for owner in reversed(list(fresh.modules())):  # children before their parents
        attention = isinstance(owner, nn.MultiheadAttention | nn.Transformer)
        reset = getattr(owner, "reset_parameters", owner._reset_parameters if attention else None)
        if callable(reset):
            with as_input_error(f"{type(owner).__name__}.reset_parameters() failed", f"; {_PASS_ARCH}"):
                reset()
        else:
            _default_rule(owner, tables)


def _default_rule(owner: nn.Module, tables: set[int]) -> None:
    own = dict(owner.named_parameters(recurse=False))
    for name, parameter in own.items():
        if not parameter.is_floating_point():
            continue
        if name == "weight" and parameter.ndim < 2:
            parameter.fill_(1.0)
        elif name == "weight" and id(parameter) in tables:
            parameter.normal_()
        elif name == "weight":
            nn.init.kaiming_uniform_(parameter, a=math.sqrt(5))
        elif name == "bias":
            of_layer = "weight" in own and own["weight"].ndim >= 2
            bound = 1.0 / math.sqrt(max(1, own["weight"][0].numel())) if of_layer else 0.0
            parameter.uniform_(-bound, bound)
        elif name == "in_proj_weight" and parameter.ndim >= 2:
            nn.init.xavier_uniform_(parameter)
        elif name == "in_proj_bias":
            parameter.zero_()
        elif parameter.numel() > 1:
            known = parameter.nan_to_num()
            parameter.normal_(float(known.mean()), float(known.std()))
    constants = {"running_mean": 0, "running_var": 1, "num_batches_tracked": 0}
    for name, buffer in owner.named_buffers(recurse=False):
        if name in constants:
            buffer.fill_(constants[name])


def _refuse_survivors(module: nn.Module, fresh: nn.Module) -> None:
    redrawn = dict(fresh.named_parameters())
    for name, trained in module.named_parameters():
        varies = trained.numel() > 1 and not bool((trained == trained.flatten()[0]).all())
        if varies and torch.equal(trained.detach().cpu(), redrawn[name]):
            raise InputError(f"the layer's reset_parameters() leaves its weights {name} trained; {_PASS_ARCH}")


def classes_of(state: Mapping[str, Tensor]) -> int | None:
    """Number of outputs of the last 2-D weight of a state_dict, else of its last convolution."""
    weights = [tensor for name, tensor in state.items() if name.endswith("weight")]
    last = [*(t for t in weights if t.ndim == 4), *(t for t in weights if t.ndim == 2)][-1:]
    return int(last[0].shape[0]) if last else None


def channels_of(state: Mapping[str, Tensor]) -> int | None:
    """Input channels of the first convolution; None: the usual three."""
    first = next((t for name, t in state.items() if name.endswith("weight") and t.ndim == 4), None)
    return None if first is None or first.shape[1] == 3 else int(first.shape[1])


def load_weights(network: nn.Module, state: Mapping[str, Tensor], *, arch: str, where: str) -> nn.Module:
    """Load a state_dict into a network, without a prefix common to all names. InputError: names or shapes differ, or
    the constructor already gives these weights."""
    own = network.state_dict()
    state = without_prefix(state, set(own))
    trained = {name: tensor for name, tensor in state.items() if tensor.ndim >= 2 and tensor.is_floating_point()}
    if trained and all(n in own and torch.equal(own[n].to(tensor.dtype), tensor) for n, tensor in trained.items()):
        raise InputError(f"--arch must build an untrained network, but {arch} already has the weights in {where}")
    try:
        network.load_state_dict(dict(state))
    except Exception as error:  # PyTorch lists the mismatches; hooks of the network may raise anything
        listed = one_line(" ".join(str(error).split()), 500)
        raise InputError(
            f"the weights in {where} do not fit {arch}: {listed} Pass the --arch of the training; to set the number of"
            " classes or other options of the constructor, use --arch package.module:function"
        ) from None
    return network
