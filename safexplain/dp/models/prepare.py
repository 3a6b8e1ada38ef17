"""Preparation of a model for training with differential privacy, and refusal of models and losses that do not fit.

A guarantee needs each sample's gradient to depend on that sample alone, and Opacus' hooks to see all of it.
"""

from __future__ import annotations

import copy
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch
from opacus.grad_sample import AbstractGradSampleModule, GradSampleModule, GradSampleModuleFastGradientClipping
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.utils.parametrize import ParametrizationList

from safexplain.dp.models.parameters import Trainable, freeze_others, has_rule, select
from safexplain.dp.models.replacements import (
    BatchNormReplacedWarning,
    LoRALinear,
    add_lora,
    has_fixed_statistics,
    is_trainable,
    pin_to_eval,
    replace_batch_norm,
    replace_composites,
    replace_module,
    split_attention_bias,
    train_mode,
    use_plain_types,
)
from safexplain.dp.sgd.sampling import Inputs, Loss
from safexplain.errors import ConfigurationError, InputError


def prepare(
    model: nn.Module,
    trainable: Trainable | None = None,
    *,
    mode: Mode = "hooks",
    batch_norm: Literal["replace", "freeze"] = "replace",
    lora: dict[str, Any] | None = None,
) -> nn.Module:
    """A copy of a model that can be trained with differential privacy, in training mode.

    Trainable batch normalisation becomes group normalisation; frozen batch normalisation stays in evaluation mode.
    torch's attention and recurrent layers become equivalent modules; other parameters keep their names.
    `safexplain.dp.models.replacements.restore` converts the model back.

    Args:
        model: not changed.
        trainable: what trains, see `safexplain.dp.models.parameters.select`; "lora" adds adapters if there are none.
            None keeps the parameters that require gradients now.
        mode: how per-sample gradients will be computed.
        batch_norm: "replace" trainable batch normalisation, or "freeze" it, for pretrained models.
        lora: arguments of `safexplain.dp.models.replacements.add_lora`.

    Raises:
        InputError: unsupported modules, listed with a remedy for each; or no parameter is trainable.

    Warns:
        BatchNormReplacedWarning: how many layers were replaced.
    """
    if isinstance(model, AbstractGradSampleModule):
        raise InputError("model: expected a plain module, got one wrapped by Opacus; pass model.to_standard_module()")
    model = copy.deepcopy(model)
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in model.parameters()):
        raise InputError("model: its lazy layers have no sizes yet; run one forward pass first")
    model, originals = replace_composites(model, frozen_too=trainable is not None)
    if trainable is not None:
        if trainable == "lora" and not any(isinstance(m, LoRALinear) for m in model.modules()):
            add_lora(model, **(lora or {}))
        freeze_others(model, select(model, trainable))
        for name, original in originals.items():
            if not is_trainable(model.get_submodule(name), recurse=True):
                model = replace_module(model, name, original.requires_grad_(False))
    model, replaced = replace_batch_norm(model, freeze=batch_norm == "freeze")
    use_plain_types(model)
    split_attention_bias(model)
    for module in model.modules():
        if getattr(module, "inplace", None) is True:
            module.inplace = False  # type: ignore[assignment]
    raise_if_any(unsupported(model, mode))
    for _, module in hooked_modules(model):
        for part in () if has_rule(module) else module.modules():
            if getattr(part, "fused_attn", False):  # of timm; vmap has no rule for it on GPUs (Opacus issue 595)
                part.fused_attn = False  # type: ignore[assignment]
    for module in model.modules():
        if has_fixed_statistics(module):
            pin_to_eval(module)
    if replaced:
        warnings.warn(
            f"{len(replaced)} BatchNorm replaced by GroupNorm ({', '.join(replaced[:3])}"
            f"{', ...' if len(replaced) > 3 else ''}), because batch statistics mix samples. Pretrained running"
            ' statistics are lost, so accuracy starts low; to keep them, freeze these layers (trainable="head", or'
            ' batch_norm="freeze")',
            BatchNormReplacedWarning,
            stacklevel=2,
        )
    return train_mode(model)


# --- refusal of models and losses without right per-sample gradients --------------------------------------------------


Mode = Literal["hooks", "functorch", "ghost"]
"""How per-sample gradients are computed, see `safexplain.dp.sgd.steps`."""


def hooked_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Name and module of all that Opacus puts hooks on: modules with trainable parameters of their own, except inside
    one without a rule, which goes through `torch.func.vmap` as a whole."""

    def walk(path: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        if is_trainable(module):
            yield path, module
            if not has_rule(module):
                return
        for name, child in module.named_children():
            yield from walk(f"{path}.{name}" if path else name, child)

    yield from walk("", model)


def raise_if_any(problems: Sequence[str]) -> None:
    """Raise InputError listing these problems, if there are any."""
    if problems:
        raise InputError(
            f"cannot train this model with differential privacy; problems found: {len(problems)}\n"
            + "\n".join(problems)
        )


def unsupported(model: nn.Module, mode: Mode = "hooks") -> list[str]:
    """A line (name, type, reason, remedy) for each module that has no correct per-sample gradients by its type."""
    lines = []
    hooked = list(hooked_modules(model))
    if not hooked:
        lines.append("- no parameter is trainable: pass trainable=, or set requires_grad on some parameters")
    for name, module in hooked:
        for applies, advice in _RULES:
            if applies(module):
                lines.append(f"- {name or 'the model'} ({type(module).__name__}): {advice}")
    if mode == "ghost":
        lines += _shared_parameters(model)
    return lines


def _shared_parameters(model: nn.Module) -> list[str]:
    names: dict[int, list[str]] = {}
    recurrent = tuple(n + "." for n, m in hooked_modules(model) if has_rule(m) and _has_children(m))
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.requires_grad and not name.startswith(recurrent):
            names.setdefault(id(parameter), []).append(name)
    return [
        f'- {" = ".join(same)}: mode "ghost" cannot add up the norms of a shared parameter; use mode="hooks"'
        for same in names.values()
        if len(same) > 1
    ]


def _has_children(module: nn.Module) -> bool:
    return any(True for _ in module.children())


_RULES: tuple[tuple[Callable[[nn.Module], bool], str], ...] = (
    (
        lambda m: isinstance(m, _BatchNorm),
        "a subclass of BatchNorm computes statistics over the batch, which mixes samples; replace it by nn.GroupNorm",
    ),
    (
        lambda m: isinstance(m, _InstanceNorm) and m.track_running_stats,
        "running statistics are updated from private data without noise; build it with track_running_stats=False",
    ),
    (
        lambda m: any(True for _ in m.buffers()) and not isinstance(m, _NormBase),
        "Opacus does not support a module with both trainable parameters and buffers; freeze the parameters that it"
        " holds directly, or move them to a separate module",
    ),
    (
        lambda m: isinstance(m, (nn.RNNBase, nn.RNNCellBase, nn.Bilinear, nn.MultiheadAttention)),
        "it takes several inputs, but Opacus supports one; use torch's own nn.LSTM, nn.GRU or nn.RNN (without"
        " proj_size), nn.MultiheadAttention (without add_bias_kv, add_zero_attn, kdim and vdim) or nn.Linear",
    ),
    (
        lambda m: isinstance(m, (nn.ParameterList, nn.ParameterDict)),
        "the surrounding module uses these parameters, which no hook sees; freeze them",
    ),
    (
        lambda m: isinstance(m, ParametrizationList) or (has_rule(m) and _has_unruled(m)),
        "its weight is computed from other parameters (weight_norm, spectral_norm, pruning); remove that first, for"
        " example with torch.nn.utils.parametrize.remove_parametrizations(layer, 'weight')",
    ),
    (
        lambda m: isinstance(m, torch.jit.ScriptModule),
        "a TorchScript module cannot be run sample by sample; load the model's Python class and its state_dict",
    ),
    (
        lambda m: isinstance(m, (nn.Embedding, nn.EmbeddingBag)) and (m.max_norm is not None or m.sparse),
        "max_norm changes the weights in the forward pass without noise, and sparse gradients cannot carry noise; build"
        " it without max_norm and sparse",
    ),
    (
        lambda m: isinstance(m, (nn.Embedding, nn.EmbeddingBag)) and m.scale_grad_by_freq,
        "scale_grad_by_freq divides by counts over the batch, which mixes samples; build it without scale_grad_by_freq",
    ),
    (
        lambda m: not has_rule(m) and any(isinstance(d, _DropoutNd) and d.p > 0 for d in m.modules()),
        "it holds trainable parameters directly and therefore goes through vmap, which cannot repeat dropout; freeze"
        " the parameters that it holds directly, or set dropout to 0",
    ),
)


def _has_unruled(module: nn.Module) -> bool:
    names = {name for name, _ in module.named_parameters(recurse=False)}
    return not _has_children(module) and not names <= {"weight", "bias"}


_AXIS = (
    "the first axis of its input is not the batch axis, so a part of a sample would count as a sample; keep the batch"
    " on the first axis, or freeze it"
)
_SEVERAL = "it takes several inputs, but Opacus supports one; freeze the parameters that it holds directly"
_UNCALLED = "it is never called: other modules use its weights, which no hook sees; call it, or freeze it"
_REPEATED = 'it is called several times, but mode "ghost" supports one call; use mode="hooks"'
_BUFFER = "the forward pass updates this buffer from private data without noise; remove it, or freeze its module"


def check_rows(model: nn.Module, x: Inputs, *, mode: Mode = "hooks") -> None:
    """Raise InputError, with one line for each problem, if samples are mixed or per-sample gradients of a prepared
    model are missing or wrong on 2 or 3 rows of noise or public data."""
    x, model = _first_rows(x), train_mode(_copy_without_zeros(model))
    problems = []
    if mixes_samples(model, x):
        problems.append("- the output for one sample depends on other samples, so a sample's influence has no bound")
    problems += _hook_problems(model, x, mode)
    if not problems:
        problems = [
            f"- {name}: its per-sample gradients differ by {error:.0%} from those of one row at a time; freeze it"
            for name, error in wrong_gradients(model, x, force_functorch=mode == "functorch").items()
        ]
    raise_if_any(problems)


def mixes_samples(model: nn.Module, x: Inputs) -> bool:
    """Whether the output for a row depends on other rows: its gradient with respect to them is not exactly 0, or it
    changes when they are replaced, in training mode with the same random numbers."""
    model, x = train_mode(_copy_without_zeros(model)), _first_rows(x)
    inputs = tuple(t.detach().clone().requires_grad_(t.is_floating_point()) for t in x)
    first = _outputs_of_first_row(_float_outputs(model, inputs), len(x[0]))
    sources = [t for t in inputs if t.requires_grad]
    if sources and any(output.requires_grad for output in first):
        grads = torch.autograd.grad(_weighted_sum(first), sources, allow_unused=True)
        if any(bool((g[1:] != 0).any()) for g in grads if g is not None):
            return True
    replaced = tuple(torch.cat([t[:1], _different_rows(t[1:], t[:1])]) for t in x)
    again = _outputs_of_first_row(_float_outputs(model, replaced), len(x[0]))
    pairs = zip(first, again, strict=True)
    return any(not bool((a - b).abs().max() <= 1e-4 * a.abs().max()) for a, b in pairs)


def _hook_problems(model: nn.Module, x: tuple[Tensor, ...], mode: Mode) -> list[str]:
    """Calls and buffers that break per-sample gradients, in forward passes over 2 rows and over all."""
    reasons: dict[tuple[str, str], None] = {}
    hooked = dict(hooked_modules(model))
    layers = {name: module for name, module in hooked.items() if not (has_rule(module) and _has_children(module))}
    before = {name: b.clone() for name, b in model.named_buffers()}
    calls: Counter[str] = Counter()
    rows = 2

    def make_hook(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], _: Any) -> None:
            calls[name] += 1
            if not has_rule(module) and (len(args) > 1 or kwargs):
                reasons[name, _SEVERAL] = None
            if args and isinstance(args[0], Tensor) and args[0].shape[:1] != (rows,):
                reasons[name, _AXIS] = None

        return hook

    handles = [module.register_forward_hook(make_hook(name), with_kwargs=True) for name, module in layers.items()]
    # with any backward hook, torch forbids changes in place, as it will with Opacus' hooks
    handles += [module.register_full_backward_hook(lambda *_: None) for module in hooked.values()]
    try:
        for rows in sorted({2, len(x[0])}):
            calls.clear()
            _float_outputs(model, tuple(t[:rows] for t in x))
    except RuntimeError as error:
        if "modified inplace" not in str(error):
            raise
        frames = [f for f in traceback.extract_tb(error.__traceback__) if "/torch/" not in f.filename]
        at = f"{frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}"
        return [f"- a layer's output is changed in place at {at}\n  write out = out + x instead of out += x"]
    finally:
        for handle in handles:
            handle.remove()
    for name, module in layers.items():
        if not calls[name]:
            reasons[name, _UNCALLED] = None
        if calls[name] > 1 and mode == "ghost" and type(module) in GradSampleModuleFastGradientClipping.NORM_SAMPLERS:
            reasons[name, _REPEATED] = None
    for name, buffer in model.named_buffers():
        if name not in before or not torch.equal(before[name], buffer):
            reasons[name, _BUFFER] = None
    return [f"- {name or 'the model'}: {reason}" for name, reason in reasons]


def wrong_gradients(model: nn.Module, x: Inputs, *, force_functorch: bool = False) -> dict[str, float]:
    """Name -> largest difference of the per-sample gradients by Opacus' hooks from those of one row at a time, where
    above 1 % of the row's whole gradient, in 2-norms and without dropout; infinite if there is none."""
    x = _first_rows(x)
    plain = _copy_without_zeros(model).eval()
    for _, module in hooked_modules(plain):
        module.training = True
    parameters: dict[str, Any] = {name: p for name, p in plain.named_parameters() if p.requires_grad}
    expected: dict[str, list[Tensor]] = {name: [] for name in parameters}
    for row in range(len(x[0])):
        plain.zero_grad()
        torch.autograd.backward(_weighted_sum(_float_outputs(plain, tuple(t[row : row + 1] for t in x))))
        for name, p in parameters.items():
            expected[name].append(torch.zeros_like(p) if p.grad is None else p.grad)
    plain.zero_grad()
    hooked = GradSampleModule(plain, loss_reduction="sum", force_functorch=force_functorch)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Full backward hook is firing")  # for first layers, harmless
        torch.autograd.backward(_weighted_sum(_float_outputs(hooked, x)))
    single = {name: torch.stack(rows).flatten(1) for name, rows in expected.items()}
    scale = torch.stack([g.norm(dim=1) for g in single.values()]).norm(dim=0) + 1e-12
    errors: dict[str, float] = {}
    for name, rows in single.items():
        sample = parameters[name].grad_sample
        if sample is not None and len(sample) == len(rows):
            errors[name] = float(((sample.flatten(1) - rows).norm(dim=1) / scale).max())
        elif sample is not None or rows.any():
            errors[name] = float("inf")
    return {name: error for name, error in errors.items() if not error <= 0.01}


def outputs_of(model: nn.Module, rows: tuple[Tensor, ...]) -> object:
    """The model's output for these rows, without gradients; InputError if it fails on them."""
    try:
        with torch.no_grad():
            return model(*rows)
    except Exception as error:
        shapes = ", ".join(f"{row.dtype} {tuple(row.shape[1:])}" for row in rows)
        kind = next((p.dtype for p in model.parameters()), torch.float32)
        raise InputError(
            f"data: the model cannot take rows of {shapes} ({str(error).splitlines()[0]}); pass inputs of the shape"
            f" that it was built for, in {kind}"
        ) from error


def check_classes(outputs: object, y: Tensor) -> None:
    """Raise InputError unless targets are indices of the model's outputs."""
    classes = outputs.shape[-1] if isinstance(outputs, Tensor) and outputs.dim() == 2 else 0
    if y.is_floating_point() or y.dim() != 1 or int(y.min()) < 0 or int(y.max()) >= classes:
        raise InputError(
            f"y: expected class indices (rows,) from 0 to {classes - 1}, the model's outputs, got {y.dtype}"
            f" {tuple(y.shape)} from {y.min().item():g} to {y.max().item():g}; for another task, pass loss="
        )


def check_loss(loss: Loss, outputs: object, targets: Tensor, parameters: Sequence[nn.Parameter]) -> None:
    """Raise ConfigurationError unless the loss of each of two or more rows depends on its output and target alone, if
    outputs are one tensor."""
    if not isinstance(outputs, Tensor) or not outputs.is_floating_point() or len(outputs) != len(targets):
        return
    given = outputs.detach().requires_grad_()
    with torch.enable_grad():
        together = loss(given, targets)
    check_loss_shape(together, len(targets))
    alone = torch.cat([loss(given[i : i + 1], targets[i : i + 1]) for i in range(len(targets))])
    if not torch.allclose(together, alone, rtol=1e-4, atol=1e-6, equal_nan=True):
        raise ConfigurationError(
            "the loss of an example depends on the other examples of its batch, so its influence has no bound; compute"
            " it from that example's output and target alone"
        )
    if together.requires_grad:
        used = torch.autograd.grad(together.sum(), list(parameters), allow_unused=True)
        if any(gradient is not None for gradient in used):
            raise ConfigurationError(
                "the loss uses the model's parameters, and that gradient belongs to no example; for a penalty, use the"
                " optimizer's weight_decay"
            )


def check_loss_shape(losses: Tensor, count: int) -> None:
    """Raise ConfigurationError unless there is one loss for each of `count` examples."""
    if losses.shape != (count,):
        raise ConfigurationError(
            f"loss: expected one number for each of the {count} examples, got shape {tuple(losses.shape)}; with"
            ' torch.nn losses, use reduction="none"'
        )


def _first_rows(x: Inputs) -> tuple[Tensor, ...]:
    rows = x if isinstance(x, tuple) else (x,)
    if not rows or len({len(t) for t in rows}) != 1 or len(rows[0]) < 2:
        raise InputError(f"expected at least 2 rows on the first axis, got shapes {[tuple(t.shape) for t in rows]}")
    return tuple(t[:3] for t in rows)


def _copy_without_zeros(model: nn.Module) -> nn.Module:
    """A copy in which no parameter is all zero, as those of a new head often are, which would hide errors."""
    model = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model


def _float_outputs(model: nn.Module, x: tuple[Tensor, ...]) -> list[Tensor]:
    devices = sorted({t.device.index for t in x if t.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(0)
        return list(_float_tensors(model(*x)))


def _float_tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, (tuple, list, dict)):
        for part in output.values() if isinstance(output, dict) else output:
            yield from _float_tensors(part)


def _outputs_of_first_row(outputs: list[Tensor], rows: int) -> list[Tensor]:
    first = [output[:1] for output in outputs if output.dim() and len(output) == rows]
    if not first:
        raise InputError(
            f"expected a floating-point output with the {rows} rows on its first axis, got shapes"
            f" {[tuple(output.shape) for output in outputs]}"
        )
    return first


def _weighted_sum(outputs: list[Tensor]) -> Tensor:
    flat = [o.reshape(len(o), -1) for o in outputs]
    return torch.stack([(o * torch.arange(1, o.shape[1] + 1, device=o.device).cos()).sum() for o in flat]).sum()


def _different_rows(rows: Tensor, other: Tensor) -> Tensor:
    return rows * -3 + 1 if rows.is_floating_point() else other.expand_as(rows)
