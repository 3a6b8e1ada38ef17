"""Weights of a network: loaded from a file, or drawn anew for reference models (`reinitialise`, by PyTorch's default
for each layer; if the constructor of the model sets weights in another way, `--arch`, which calls it, is better)."""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from safexplain.errors import InputError
from safexplain.loading.exported import embeddings, frozen_operation, with_layers
from safexplain.loading.files import as_input_error, one_line

_PASS_ARCH = "pass --arch timm:NAME, torchvision:NAME or package.module:function to say how it is built"

_PREFIXES = ("module.", "_orig_mod.", "model.", "net.")


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed PyTorch's CPU generator, and restore its state afterwards.

    The seed is hashed, so that no reference model starts as the audited one may have, at `torch.manual_seed(0)`.
    """
    digest = hashlib.sha256(b"safexplain fresh weights" + str(seed).encode()).digest()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        yield


def reinitialise(module: nn.Module, seed: int) -> nn.Module:
    """A deep copy of `module` with fresh weights.

    A submodule with `reset_parameters` calls it (children before their parents, as constructors do). Parameters of any
    other module, as in `torch.export` graphs, get the default of the layer that their name suggests:

    - `weight` of two or more dimensions: uniform +-1/sqrt(fan_in), the rule of `nn.Linear` and `nn.ConvNd`
      (`kaiming_uniform_(a=sqrt(5))`); its `bias`: uniform +-1/sqrt(fan_in). A table that a graph looks up
      as an embedding: standard normal.
    - `weight` of one dimension (a normalisation): 1; its `bias`: 0; `in_proj_weight` (attention): Xavier
      uniform; `in_proj_bias`: 0.
    - `running_mean`, `running_var`, `num_batches_tracked`: 0, 1, 0.
    - any other parameter (a class token, position embeddings, a layer scale): normal with the mean and the
      standard deviation of the trained tensor, the only clue to its scale; a single number is kept.

    All parameters of the copy require gradients. Other buffers are kept. The copy is in training mode, on the device of
    the original's first parameter. The trained network and the global random state do not change.

    Raises:
        InputError: an exported graph holds dropout, or batch normalisation without parameters, in inference form, so
            that it would train differently from the original; a layer cannot be reset; or a trained tensor survives.
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
    """Refuse a copy that still holds a trained tensor other than single numbers and constants."""
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
    """Load a state_dict into a network, without a prefix common to all names; `num_batches_tracked`, which old files
    lack, may be missing. InputError: names or shapes differ, or the constructor already gives these weights."""
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


def without_prefix(state: Mapping[str, Tensor], expected: set[str]) -> dict[str, Tensor]:
    """The tensors without a known prefix that all names share and the network lacks."""
    found = dict(state)
    while found and not expected & set(found):
        prefix = next((p for p in _PREFIXES if all(name.startswith(p) for name in found)), None)
        if prefix is None:
            break
        found = {name.removeprefix(prefix): tensor for name, tensor in found.items()}
    return found
