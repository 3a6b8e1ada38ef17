"""What in a model or its loss gives no per-sample gradients, or wrong ones.

A guarantee needs each sample's gradient to depend on that sample alone, and the hooks to see all of it. `unsupported`
reads that from the modules, without running them. Layers that reshape samples away, use each other's weights or
compute statistics over the batch break it too, often without an error: `check_rows` tries the model on a few rows. Does
it mix samples (`mixes_samples`), what do the hooks get to see, are the gradients right (`wrong_gradients`)?
`check_loss` and `check_classes` are for the loss and its targets.
"""

from __future__ import annotations

import copy
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch
from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.utils.parametrize import ParametrizationList

from safexplain.dp.models.parameters import has_rule
from safexplain.dp.models.replacements import train_mode, trains
from safexplain.dp.sgd.records import Inputs, Loss
from safexplain.errors import ConfigurationError, InputError

Mode = Literal["hooks", "functorch", "ghost"]
"""How per-sample gradients are computed, see `safexplain.dp.sgd.steps`."""


def hooked_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Name and module of all that Opacus will watch: those that hold a trainable parameter themselves.

    Where such a module has no rule, all of it goes through `torch.func.vmap`, and those inside it are not watched.
    """

    def walk(path: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        if trains(module):
            yield path, module
            if not has_rule(module):
                return
        for name, child in module.named_children():
            yield from walk(f"{path}.{name}" if path else name, child)

    yield from walk("", model)


def unsupported(model: nn.Module, mode: Mode = "hooks") -> list[str]:
    """Everything in a model, as far as its modules show it, that gives no per-sample gradients or wrong ones.

    Returns:
        One line each: name, type, reason, what to do. What only a forward pass shows is found by `check_rows`.
    """
    lines = []
    hooked = list(hooked_modules(model))
    if not hooked:
        lines.append("- nothing trains: give trainable=, or let parameters require gradients")
    for name, module in hooked:
        for fits, advice in _RULES:
            if fits(module):
                lines.append(f"- {name or 'the model'} ({type(module).__name__}): {advice}")
    if mode == "ghost":
        lines += _tied(model)
    return lines


def _tied(model: nn.Module) -> list[str]:
    names: dict[int, list[str]] = {}
    recurrent = tuple(n + "." for n, m in hooked_modules(model) if has_rule(m) and any(True for _ in m.children()))
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.requires_grad and not name.startswith(recurrent):
            names.setdefault(id(parameter), []).append(name)
    return [
        f'- {" = ".join(same)}: mode "ghost" cannot add up the norms of a shared parameter; use mode="hooks"'
        for same in names.values()
        if len(same) > 1
    ]


def _own_names(module: nn.Module) -> set[str]:
    return {name for name, _ in module.named_parameters(recurse=False)}


_Fits = Callable[[nn.Module], bool]

_RULES: tuple[tuple[_Fits, str], ...] = (
    (
        lambda m: isinstance(m, _BatchNorm),
        "statistics of the batch in a subclass of BatchNorm; put nn.GroupNorm in its place",
    ),
    (
        lambda m: isinstance(m, _InstanceNorm) and m.track_running_stats,
        "running statistics are updated from private data without noise; build it with track_running_stats=False",
    ),
    (
        lambda m: any(True for _ in m.buffers()) and not isinstance(m, _NormBase),
        "it holds a parameter that trains beside buffers, which Opacus refuses; freeze the parameters that it holds"
        " itself, or move them to a module of their own",
    ),
    (
        lambda m: isinstance(m, (nn.RNNBase, nn.RNNCellBase, nn.Bilinear, nn.MultiheadAttention)),
        "it takes several inputs, of which Opacus sees one; use nn.LSTM, nn.GRU, nn.RNN (without proj_size),"
        " nn.MultiheadAttention (without add_bias_kv, add_zero_attn, kdim and vdim) or nn.Linear as they are in torch",
    ),
    (
        lambda m: isinstance(m, (nn.ParameterList, nn.ParameterDict)),
        "its parameters are used by the module around it, which no hook sees; freeze them",
    ),
    (
        lambda m: isinstance(m, ParametrizationList) or (has_rule(m) and not _own_names(m) <= _usual(m)),
        "its weight is computed from other parameters (weight_norm, spectral_norm, pruning); remove that first, for"
        " example torch.nn.utils.parametrize.remove_parametrizations(layer, 'weight')",
    ),
    (
        lambda m: isinstance(m, torch.jit.ScriptModule),
        "a compiled module cannot be run sample by sample; load the model's Python class and its state_dict",
    ),
    (
        lambda m: isinstance(m, (nn.Embedding, nn.EmbeddingBag)) and (m.max_norm is not None or m.sparse),
        "max_norm changes the weights in the forward pass without noise, and sparse gradients cannot carry noise; build"
        " it without",
    ),
    (
        lambda m: isinstance(m, (nn.Embedding, nn.EmbeddingBag)) and m.scale_grad_by_freq,
        "scale_grad_by_freq divides by counts in the batch, which mixes samples; build it without",
    ),
    (
        lambda m: not has_rule(m) and any(isinstance(d, _DropoutNd) and d.p > 0 for d in m.modules()),
        "it holds a parameter that trains itself, so that all of it goes through vmap, where dropout cannot be"
        " repeated; freeze the parameters that it holds itself, or set dropout to 0",
    ),
)
"""(does it fit a module that Opacus will watch, why and what to do)."""


def _usual(module: nn.Module) -> set[str]:
    """Names of parameters that Opacus' rule for this type knows."""
    return {"weight", "bias"} if not any(True for _ in module.children()) else _own_names(module)


_AXIS = (
    "the first axis of its input is not that of the rows, so that a part of a sample would pass for a sample; keep"
    " samples on the first axis, or freeze it"
)
_SEVERAL = "it takes several inputs, of which Opacus sees one; freeze the parameters that it holds itself"
_UNCALLED = "it is never called: its weights are used from outside, which no hook sees; call it, or freeze it"
_REPEATED = 'it is called several times; mode "ghost" needs one call, use mode="hooks"'
_BUFFER = "a forward pass changes this buffer from private data without noise; remove it, or freeze its module"


def check_rows(model: nn.Module, x: Inputs, *, mode: Mode = "hooks") -> None:
    """Raise unless the per-sample gradients of a prepared model can be computed and are right, tried on a few rows.

    Args:
        model: from `safexplain.dp.models.prepare.prepare`; left as it is.
        x: at least 2 rows, better 3; use rows that may be seen, such as noise or public data.
        mode: how per-sample gradients will be computed.

    Raises:
        InputError: all that was found, one line each.
    """
    x, model = few(x), train_mode(awake(model))
    problems = ["- outputs of one row depend on other rows: no bound for a sample"] if mixes_samples(model, x) else []
    problems += _seen(model, x, mode)
    if not problems:
        problems = [
            f"- {name}: per-sample gradients differ from those of one row at a time by {error:.0%}; freeze it"
            for name, error in wrong_gradients(model, x, force_functorch=mode == "functorch").items()
        ]
    if problems:
        raise InputError(f"cannot train with differential privacy, {len(problems)} found:\n" + "\n".join(problems))


def mixes_samples(model: nn.Module, x: Inputs) -> bool:
    """Whether a row's output depends on other rows, as with statistics of the batch.

    In training mode, with the same random numbers: the gradient of the first row's output with respect to the others
    must be exactly 0, and the output must stay when the others are changed (which also finds statistics under
    `no_grad`, and works for integers). The model is left as it is.
    """
    model, x = train_mode(awake(model)), few(x)
    inputs = tuple(t.detach().clone().requires_grad_(t.is_floating_point()) for t in x)
    mine = _first_row(run(model, inputs), len(x[0]))
    to = [t for t in inputs if t.requires_grad]
    if to and any(output.requires_grad for output in mine):
        grads = torch.autograd.grad(_loss(mine), to, allow_unused=True)
        if any(bool((g[1:] != 0).any()) for g in grads if g is not None):
            return True
    others = tuple(torch.cat([t[:1], _changed(t[1:], t[:1])]) for t in x)
    again = _first_row(run(model, others), len(x[0]))
    pairs = zip(mine, again, strict=True)
    return any(not bool((a - b).abs().max() <= 1e-4 * a.abs().max()) for a, b in pairs)


def _seen(model: nn.Module, x: tuple[Tensor, ...], mode: Mode) -> list[str]:
    """Problems with what the hooks get to see in forward passes over 2 rows and over all."""
    reasons: dict[tuple[str, str], None] = {}
    hooked = dict(hooked_modules(model))
    layers = {name: module for name, module in hooked.items() if _is_called(module)}
    before = {name: b.clone() for name, b in model.named_buffers()}
    calls: Counter[str] = Counter()
    rows = 2

    def watch(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], _: Any) -> None:
            calls[name] += 1
            if not has_rule(module) and (len(args) > 1 or kwargs):
                reasons[name, _SEVERAL] = None
            if args and isinstance(args[0], Tensor) and args[0].shape[:1] != (rows,):
                reasons[name, _AXIS] = None

        return hook

    handles = [module.register_forward_hook(watch(name), with_kwargs=True) for name, module in layers.items()]
    handles += [module.register_full_backward_hook(_nothing) for module in hooked.values()]
    try:
        for rows in sorted({2, len(x[0])}):
            calls.clear()
            run(model, tuple(t[:rows] for t in x))
    except RuntimeError as error:
        if "modified inplace" not in str(error):
            raise
        return [_in_place(error)]
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
    """Names of parameters whose per-sample gradients by Opacus' hooks are not those of one row at a time.

    Dropout is off meanwhile, so that both see the same function. They may differ by 1%, in 2-norms, of the row's whole
    gradient.

    Args:
        model: left as it is.
        x: at least 2 rows.
        force_functorch: use vmap for all layers.

    Returns:
        Name -> the largest difference over rows; infinite where there is no per-sample gradient.
    """
    x = few(x)
    plain = awake(model).eval()
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    for _, module in hooked_modules(plain):
        module.training = True
    single = []
    for row in range(len(x[0])):
        plain.zero_grad()
        torch.autograd.backward(_loss(run(plain, tuple(t[row : row + 1] for t in x))))
        single.append({name: p.grad for name, p in plain.named_parameters()})
    plain.zero_grad()
    watched = GradSampleModule(plain, loss_reduction="sum", force_functorch=force_functorch)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Full backward hook is firing")  # first layers: nothing is lost
        torch.autograd.backward(_loss(run(watched, x)))
    found: dict[str, Any] = dict(plain.named_parameters())
    errors: dict[str, float] = {}
    for row, grads in enumerate(single):
        sizes = [g.norm() for name in names if (g := grads[name]) is not None]
        whole = torch.stack([*sizes, torch.full_like(sizes[0], 1e-12)]).norm() if sizes else torch.ones(())
        for name in names:
            sample, grad = found[name].grad_sample, grads[name]
            if sample is None and (grad is None or not grad.any()):
                continue
            right = sample is not None and len(sample) == len(x[0])
            error = (sample[row] - (0 if grad is None else grad)).norm() / whole if right else float("inf")
            errors[name] = max(errors.get(name, 0.0), float(error))
    return {name: error for name, error in errors.items() if not error <= 0.01}


def outputs_of(model: nn.Module, rows: tuple[Tensor, ...]) -> object:
    """What the model gives for these rows.

    Raises:
        InputError: it cannot take them.
    """
    try:
        with torch.no_grad():
            return model(*rows)
    except Exception as error:
        shapes = ", ".join(f"{row.dtype} {tuple(row.shape[1:])}" for row in rows)
        kind = next((p.dtype for p in model.parameters()), torch.float32)
        raise InputError(
            f"data: the model cannot take rows of {shapes} ({str(error).splitlines()[0]}); expected what it was trained"
            f" on, its parameters are {kind}"
        ) from error


def check_classes(outputs: object, y: Tensor) -> None:
    """Raise unless targets are indices of classes that the model has an output for.

    Raises:
        InputError: they are not.
    """
    classes = outputs.shape[-1] if isinstance(outputs, Tensor) and outputs.dim() == 2 else 0
    if y.is_floating_point() or y.dim() != 1 or int(y.min()) < 0 or int(y.max()) >= classes:
        raise InputError(
            f"y: expected class indices (rows,) from 0 to {classes - 1}, the model's outputs, got {y.dtype}"
            f" {tuple(y.shape)} from {y.min().item():g} to {y.max().item():g}; for another task pass loss="
        )


def check_loss(loss: Loss, outputs: object, targets: Tensor, parameters: Sequence[nn.Parameter]) -> None:
    """Raise unless the loss of a row depends on that row's output and target alone.

    At least 2 rows are needed; nothing is checked where the outputs are not one tensor.

    Raises:
        ConfigurationError: it mixes rows, or uses the parameters.
    """
    if not isinstance(outputs, Tensor) or not outputs.is_floating_point() or len(outputs) != len(targets):
        return
    given = outputs.detach().requires_grad_()
    with torch.enable_grad():
        together = loss(given, targets)
    if together.shape != (len(targets),):
        raise ConfigurationError(
            f"the loss must be one number for each of the {len(targets)} examples, got shape {tuple(together.shape)};"
            ' with torch.nn losses use reduction="none"'
        )
    alone = torch.cat([loss(given[i : i + 1], targets[i : i + 1]) for i in range(len(targets))])
    if not torch.allclose(together, alone, rtol=1e-4, atol=1e-6, equal_nan=True):
        raise ConfigurationError(
            "the loss of an example depends on the other examples of its batch, so that its influence has no bound;"
            " compute it from that example's output and target alone"
        )
    if together.requires_grad:
        used = torch.autograd.grad(together.sum(), list(parameters), allow_unused=True)
        if any(gradient is not None for gradient in used):
            raise ConfigurationError(
                "the loss uses the model's parameters, which is not part of any example's gradient; for a penalty use"
                " the optimizer's weight_decay"
            )


def few(x: Inputs) -> tuple[Tensor, ...]:
    """At most three rows; raise InputError unless there are two."""
    rows = x if isinstance(x, tuple) else (x,)
    if not rows or len({len(t) for t in rows}) != 1 or len(rows[0]) < 2:
        raise InputError(f"expected 2 rows or more on the first axis, got shapes {[tuple(t.shape) for t in rows]}")
    return tuple(t[:3] for t in rows)


def awake(model: nn.Module) -> nn.Module:
    """A copy in which no parameter is all zero: behind a new head, often zero at first, every error would hide."""
    model = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model


def run(model: nn.Module, x: tuple[Tensor, ...]) -> list[Tensor]:
    """All floating-point outputs, with the same random numbers in every call."""
    devices = sorted({t.device.index for t in x if t.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(0)
        return list(_tensors(model(*x)))


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, (tuple, list, dict)):
        for part in output.values() if isinstance(output, dict) else output:
            yield from _tensors(part)


def _first_row(outputs: list[Tensor], rows: int) -> list[Tensor]:
    first = [output[:1] for output in outputs if output.dim() and len(output) == rows]
    if not first:
        raise InputError(f"expected an output of floating-point numbers with the {rows} rows on its first axis")
    return first


def _loss(outputs: list[Tensor]) -> Tensor:
    """A sum over rows of a function in which every output has a weight of its own."""
    flat = [o.reshape(len(o), -1) for o in outputs]
    return torch.stack([(o * torch.arange(1, o.shape[1] + 1, device=o.device).cos()).sum() for o in flat]).sum()


def _changed(rows: Tensor, other: Tensor) -> Tensor:
    """Other rows, far from these."""
    return rows * -3 + 1 if rows.is_floating_point() else other.expand_as(rows)


def _nothing(*_: Any) -> None:
    """A backward hook, with which torch forbids changes in place as it will with Opacus'."""


def _in_place(error: RuntimeError) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/torch/" not in f.filename]
    at = f"{frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}"
    return f"- a layer's output is changed in place at {at}\n  write out = out + x for out += x"


def _is_called(module: nn.Module) -> bool:
    """Whether it is called as a layer with rows on the first axis: recurrent layers are watched inside."""
    return not (has_rule(module) and any(True for _ in module.children()))
