"""The query that the noise on an explanation is a function of, beside key and configuration: a change that leaves the
native answer the same, bit for bit, leaves the noise the same; another question has another."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from captum import attr
from captum._utils.common import _format_additional_forward_args
from captum.attr import Attribution
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from safexplain._digest import OPAQUE_DIGEST, explained_digest, modules_of
from safexplain._digest.model_state import network_of
from safexplain.errors import RefusedError
from safexplain.explain.captum import GradCAM, Gradient
from safexplain.explain.isolation import Lend, explainers_in
from safexplain.hardening.noise import as_hashed, targets_of

SELECTS = frozenset(
    {"abs", "nt_type", "neuron_selector", "attribute_to_layer_input", "attribute_to_neuron_input"}
    | {"relu_attributions", "attr_dim_summation", "custom_attribution_func", "interpolate_mode"}
)
"""Arguments that select what is explained: each choice has its own noise. Others only affect the estimation."""

NUMBERS = ("baselines", "layer_baselines", "additional_forward_args")
"""Arguments, beside the inputs, whose numbers the noise is a function of."""

ROWS = 2
"""Examples in a probe; batch normalisation in training mode refuses a single one."""

MAX_MERGES = 32
MAX_REMEMBERED = 4096

_OF_SETS = (
    *(attr.GradientShap, attr.LayerGradientShap, attr.NeuronGradientShap),
    *(attr.DeepLiftShap, attr.LayerDeepLiftShap, attr.NeuronDeepLiftShap),
)
"""Methods that draw baselines from a set, or average over it."""

Tensors = tuple[Tensor, ...]
Shape = tuple[int, ...]


def round_as_hashed(value: Any) -> Any:
    """An argument with its numbers rounded by `as_hashed`: tensors, arrays, floats, also in containers."""
    return tree_map(_round, value)


def _round(value: Any) -> Any:
    if isinstance(value, Tensor):
        return as_hashed(value)
    if hasattr(value, "toarray") and isinstance(getattr(value, "data", None), np.ndarray):
        sparse = value.copy()
        sparse.data = _round(value.data)
        return sparse
    if isinstance(value, float | np.ndarray | np.generic) and np.asarray(value).dtype.kind in "fc":
        rounded = as_hashed(torch.from_numpy(np.array(value))).numpy()
        return rounded if isinstance(value, np.ndarray) else type(value)(rounded.item())
    return value


def query_of(explainer: Attribution, inputs: Tensors, options: Mapping[str, Any], lend: Lend) -> dict[str, Any]:
    """Arguments of `Hardening.__call__` for inputs (batch, ...) and options whose numbers are rounded; RefusedError:
    baselines are a function. They do not change with the shape of the inputs if the model ignores it, the sign or type
    of a target, truthy values, explicit defaults, or the order of a set of baselines."""
    explainers = (explainer, *explainers_in(vars(explainer)))
    digest = explained_digest(explainer.forward_func, getattr(explainer, "_model_digest", None))
    method, batch = _method(explainer), len(inputs[0])
    extra = _format_additional_forward_args(options.get("additional_forward_args")) or ()
    extra = _with_defaults(explainer.forward_func, inputs, extra)
    probed = probe(lend, digest, method, inputs, extra)
    rows, words = _references(explainers, inputs, options)
    more, others = _rows_of(extra, batch)
    axes = [f"axes {probed.shapes}"] if any(probed.shapes) else []
    return {
        # copied from a GPU now, to be hashed while it explains
        "inputs": tuple(t if t.device.type == "cpu" else as_hashed(t).cpu() for t in (*inputs, *rows, *more)),
        "target": _targets(options["target"], batch, probed.outputs) if "target" in options else None,
        "model_digest": digest,
        "method": " ".join([method, *_selecting_options(explainers, options, probed), *axes, *words, *others]),
    }


def _selecting_options(
    explainers: tuple[Attribution, ...], options: Mapping[str, Any], probed: ModelShapes
) -> list[str]:
    after = {"interpolate_mode"} if hasattr(explainers[0], "enlarge") else set()  # enlarging comes after the noise
    selects, defaults = SELECTS - after, dict[str, Any]()
    for explainer in reversed(explainers):
        parameters = inspect.signature(type(explainer).attribute).parameters.values()
        defaults |= {p.name: p.default for p in parameters if p.name in selects and p.default is not p.empty}
    chosen = defaults | {name: options[name] for name in selects & options.keys()}
    selector = chosen.get("neuron_selector")
    if selector is not None and not callable(selector):
        shape = probed.neurons[0 if chosen.get("attribute_to_neuron_input") else 1]
        chosen["neuron_selector"] = _positions(selector, shape) or selector
    chosen |= {name: bool(value) for name, value in chosen.items() if isinstance(defaults.get(name), bool)}
    return [f"{name}={getattr(value, '__qualname__', value)}" for name, value in sorted(chosen.items())]


def _targets(target: Any, batch: int, outputs: Shape | None) -> Any:
    """As positions among the outputs of an example."""
    labels = targets_of(target, batch)
    positions = {label: _positions(label, outputs) for label in set(labels)}
    return labels if None in positions.values() else [positions[label] for label in labels]


def _positions(index: Any, shape: Shape | None) -> tuple[int, ...] | None:
    """The positions that an index selects in a tensor of this shape, counted in order; None if it selects none.

    >>> _positions(-1, (10,)), _positions((1, -1), (2, 3)), _positions((), (1,)), _positions(3, (2,))
    ((9,), (5,), (0,), None)
    """
    if shape is None:
        return None
    try:
        index = tuple(index) if isinstance(index, tuple | list) else (index,)
        return tuple(torch.arange(math.prod(shape)).view(shape)[index].flatten().tolist()) or None
    except (IndexError, TypeError):
        return None


def _references(
    explainers: tuple[Attribution, ...], inputs: Tensors, options: Mapping[str, Any]
) -> tuple[Tensors, list[str]]:
    """Baselines that are not zero, as one row for each example, or a set of them in words. With shared noise, a known
    map (of the input as its own baseline) would reveal the noise."""
    of_set = any(isinstance(e, _OF_SETS) for e in explainers) or bool(options.get("draw_baseline_from_distrib"))
    rows: Tensors = ()
    words = []
    for name in ("baselines", "layer_baselines"):
        value = options.get(name)
        if callable(value):
            raise RefusedError(f"{name}: expected tensors, got a function: pass its result, which the noise depends on")
        given = value if isinstance(value, tuple) else (value,)
        if value is None or not any(bool(torch.as_tensor(b).any()) for b in given):
            continue
        try:
            pairs = list(zip(given, inputs if name == "baselines" else (), strict=True))
            tensors = [torch.as_tensor(b, dtype=x.dtype, device=x.device) for b, x in pairs]
            if of_set:
                words.append(f"baselines {_digest_of_set(tensors, inputs)}")
            else:
                rows = tuple(t.expand_as(x) for t, x in zip(tensors, inputs, strict=True))
        except (RuntimeError, ValueError):  # a layer's, or of a shape that the method will refuse
            words.append(f"{name} {_digest_of(given)}")
    return rows, words


def _with_defaults(forward_func: Any, inputs: Tensors, given: tuple[Any, ...]) -> tuple[Any, ...]:
    try:
        signature = inspect.signature(forward_func.forward if isinstance(forward_func, nn.Module) else forward_func)
        bound = signature.bind(*inputs, *given)
    except (TypeError, ValueError):  # no signature, or arguments that the model will refuse
        return given
    bound.apply_defaults()
    return bound.args[len(inputs) :]


def _rows_of(values: tuple[Any, ...], batch: int) -> tuple[Tensors, list[str]]:
    """Numbers as one row for each example, and all else in words, which also state the order."""
    rows: list[Tensor] = []

    def read(value: Any) -> str:
        if isinstance(value, dict):
            return f"{{{', '.join(f'{key!r}: {read(value[key])}' for key in sorted(value, key=repr))}}}"
        if isinstance(value, tuple | list):
            return f"[{', '.join(map(read, value))}]"
        try:
            numbers = torch.as_tensor(value)
        except (TypeError, ValueError, RuntimeError, OverflowError):  # not numbers, or over 64 bits
            plain = value is None or isinstance(value, int | str | bytes | np.ndarray | np.generic)
            return repr(value) if plain else f"{getattr(value, '__qualname__', type(value).__qualname__)}"
        batched = isinstance(value, Tensor) and numbers.dim() > 0 and len(numbers) == batch
        numbers = numbers if batched else numbers[None]
        rows.append(numbers.expand(batch, *numbers.shape[1:]))
        return f"{tuple(n for n in numbers.shape[1:] if n != 1)[1:]}"

    words = [read(value) for value in values]
    return tuple(rows), words


def _digest_of(values: tuple[Any, ...]) -> str:
    """Of numbers that all examples share; equal numbers count as one."""
    numbers = [torch.as_tensor(value).detach().double().cpu().flatten() for value in values]
    once = [n[:1] if len(n) and bool((n == n[0]).all()) else n for n in numbers]
    return hashlib.blake2b(b"".join(n.numpy().tobytes() for n in once)).hexdigest()


def _digest_of_set(tensors: list[Tensor], inputs: Tensors) -> str:
    """Of rows in any order, with their relative counts."""
    count = max(len(t) if t.dim() == x.dim() else 1 for t, x in zip(tensors, inputs, strict=True))
    parts = [t.detach().expand(count, *x.shape[1:]) for t, x in zip(tensors, inputs, strict=True)]
    flat = torch.cat([as_hashed(p).reshape(count, -1).to("cpu", torch.float32) for p in parts], 1).numpy()
    counts = Counter(hashlib.blake2b(row.tobytes(), digest_size=32).digest() for row in flat)
    once = math.gcd(*counts.values())
    return hashlib.blake2b(b"".join(r + (counts[r] // once).to_bytes(8, "little") for r in sorted(counts))).hexdigest()


def _method(explainer: Attribution) -> str:
    """Name of the method, of its inner methods and of its layer; the same for a native and a hardened explainer."""
    native = getattr(explainer, "_native", type(explainer))
    name = _SAME_ANSWERS.get(native, native).__name__
    inner = [_method(value) for value in vars(explainer).values() if isinstance(value, Attribution)]
    layers = getattr(explainer, "layer", None)
    for layer in layers if isinstance(layers, list) else [layers]:
        if isinstance(layer, nn.Module):
            for i, module in enumerate(modules_of(explainer.forward_func)):
                net = network_of(module) or module  # layer names do not depend on wrappers
                inner += [f"{i or ''}{path}" for path, part in net.named_modules() if part is layer]
    local = "" if explainer.multiplies_by_inputs else " local"
    return f"{name}({', '.join(inner)}){local}"


_SAME_ANSWERS: dict[Any, Any] = {Gradient: attr.Saliency, GradCAM: attr.LayerGradCam}


class ModelShapes(NamedTuple):
    """What a probe found."""

    shapes: tuple[Shape, ...]
    """For each input its axes, with neighbours merged as far as the model ignores it, without axes of size 1 and the
    first; empty if the model flattens the input."""
    outputs: Shape | None = None
    """Of one example's output; None if the model returns no tensor with a row for each example."""
    neurons: tuple[Shape | None, Shape | None] = (None, None)
    """Of the input and the output of the explained layer, if there is one."""


_shapes: dict[Any, ModelShapes] = {}


def probe(lend: Lend, digest: bytes, method: str, inputs: Tensors, extra: tuple[Any, ...]) -> ModelShapes:
    """Probe the model with this digest about inputs, (batch, ...) each, and additional forward arguments, once for each
    shape and type."""
    if digest == OPAQUE_DIGEST or any(x.dim() == 0 or len(x) == 0 for x in inputs):
        return ModelShapes(((),) * len(inputs))
    others = tuple((tuple(v.shape[1:]), v.dtype) if isinstance(v, Tensor) else type(v) for v in extra)
    key = (digest, method, tuple((tuple(x.shape[1:]), x.dtype) for x in inputs), others)
    if (found := _shapes.get(key)) is None:
        with lend() as explainer:
            found = _probe_model(explainer, inputs, extra)
        if len(_shapes) >= MAX_REMEMBERED:
            _shapes.clear()
        _shapes[key] = found
    return found


def _probe_model(explainer: Attribution, inputs: Tensors, extra: tuple[Any, ...]) -> ModelShapes:
    batch = len(inputs[0])
    extra = tuple(_repeated(v) if isinstance(v, Tensor) and v.dim() and len(v) == batch else v for v in extra)
    layer, neurons = getattr(explainer, "layer", None), list[tuple[Shape | None, Shape | None]]()

    def run(rows: Tensors) -> Tensor | None:
        try:
            devices = sorted({x.get_device() for x in rows if x.is_cuda})
            with torch.inference_mode(False), torch.no_grad(), torch.random.fork_rng(devices):
                torch.manual_seed(0)  # so that dropout repeats itself
                answer = explainer.forward_func(*(x.clone() for x in rows), *extra)
        except Exception:  # raised for a shape or numbers that it does not take
            return None
        return answer if isinstance(answer, Tensor) and answer.dim() and len(answer) == ROWS else None

    def record(module: nn.Module, given: Any, output: Any) -> None:
        neurons.append((_shape_of(given), _shape_of(output)))

    handle = layer.register_forward_hook(record) if isinstance(layer, nn.Module) else None
    rows = tuple(map(_probe_rows, inputs))
    try:
        answer = run(rows)
        outputs = run(tuple(map(_repeated, inputs))) if answer is None else answer
    finally:
        if handle is not None:
            handle.remove()
    of_one = None if outputs is None else tuple(outputs.shape[1:])
    of_layer = neurons[0] if neurons else (None, None)
    if answer is None:
        return ModelShapes(((),) * len(rows), of_one, of_layer)
    shapes = []
    for i, x in enumerate(rows):
        answers = ((s, run((*rows[:i], x.reshape(ROWS, *s), *rows[i + 1 :]))) for s in _merges(tuple(x.shape[1:])))
        shape = next((s for s, other in answers if _is_close(answer, other)), tuple(x.shape[1:]))
        shapes.append(tuple(n for n in shape if n != 1)[1:])
    return ModelShapes(tuple(shapes), of_one, of_layer)


def _shape_of(value: Any) -> Shape | None:
    value = value[0] if isinstance(value, tuple) and len(value) == 1 else value
    return tuple(value.shape[1:]) if isinstance(value, Tensor) else None


def _probe_rows(x: Tensor) -> Tensor:
    """Examples fixed by their count of numbers: normal, or zeros and ones for integers."""
    shape, generator = (ROWS, *x.shape[1:]), torch.Generator().manual_seed(0)
    count = math.prod(shape)
    normal = x.is_floating_point() or x.is_complex()
    numbers = torch.randn(count, generator=generator) if normal else torch.randint(0, 2, (count,), generator=generator)
    return numbers.to(x.device, x.dtype).reshape(shape)


def _repeated(x: Tensor) -> Tensor:
    return x.detach()[:1].expand(ROWS, *x.shape[1:]).clone()


def _merges(shape: Shape) -> Iterator[Shape]:
    """A shape with neighbouring axes merged, fewest axes first, without the shape itself.

    >>> list(_merges((2, 3, 4)))
    [(24,), (2, 12), (6, 4)]
    """
    n = len(shape)
    cuts = itertools.chain.from_iterable(itertools.combinations(range(1, n), k) for k in range(n - 1))
    for cut in itertools.islice(cuts, MAX_MERGES):
        edges = (0, *cut, n)
        yield tuple(math.prod(shape[a:b]) for a, b in itertools.pairwise(edges))


def _is_close(one: Tensor, other: Tensor | None) -> bool:
    return other is not None and one.shape == other.shape and torch.allclose(one, other, 1e-4, 0.0, equal_nan=True)
