"""What every hardened Captum explainer is, and how `build` makes one from a row of the catalog: a subclass of the
native class on which nothing native runs, because each call runs a private explainer and hardens its result."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, NoReturn, Self, TypeVar

import numpy as np
import torch
from captum import attr
from captum._utils.common import _format_additional_forward_args, _run_forward
from captum.attr import Attribution, LayerAttribution
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from safexplain._digest import OPAQUE_DIGEST, explained_digest, modules_of
from safexplain._digest.model_state import network_of
from safexplain._validate import checked_digest
from safexplain.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    InputError,
    PredictedClassWarning,
    RefusedError,
)
from safexplain.explain.captum import (
    GradCAM,
    Gradient,
    check_first_call,
    check_mode,
    check_modes,
    check_modules,
    default_layer,
    is_estimator,
)
from safexplain.explain.catalog import CATALOG, Row
from safexplain.explain.certified import Pinned, load_audited
from safexplain.explain.feature_groups import by_name, find_groups, harden_groups, names_of
from safexplain.explain.isolation import Lend, explainers_in, lend, modules_in
from safexplain.hardening.clips import TopKSet
from safexplain.hardening.hardening import Hardening, hardening_or_default, plain_tensors
from safexplain.hardening.noise import as_hashed, targets_of
from safexplain.native_maps import watch

Direction = Literal["up", "down"]
"""Whether reasons explain why a number is as high as it is, or as low."""

LOG_ODDS, PROBABILITY = 0.0, 0.5
"""Thresholds above which a single output predicts class 1."""

Values = TypeVar("Values", NDArray[Any], Tensor)

_warned: set[str] = set()

_HARDENED_ATTRIBUTES = ("hardening", "direction", "_pinned", "_model_digest", "_threshold")

_SQUARED = ("vargrad", "smoothgrad_sq")
"""Kinds of a NoiseTunnel whose maps have no signs."""

_PER_EVAL = "perturbations_per_eval"

_VALUES_PER_CALL = 2**20
"""Numbers in one call of a scikit-learn classifier, about, unless `perturbations_per_eval` is given."""


class Hardened(Attribution):  # type: ignore[misc]
    """What all hardened Captum explainers share.

    The constructor is the native one plus `hardening`. `attribute` returns what the native method returns (same
    structure, shapes, dtype, device), hardened and detached; with `Hardening.none()` the same numbers.

    If the model has one output, (batch,) or (batch, 1), each map explains the predicted class of its example: class 1
    where a logit is above 0, or a probability above .5. Natively every map explains class 1. If the output is a number,
    pass `direction="up"` (why it is as high as it is) or "down". Magnitudes, as Saliency's, are left as they are.

    The service must fix the options of `attribute`. Queries that differ only in estimation options (`n_steps`, ...)
    share their noise, so averaging does not remove it; but who may choose these can subtract two answers, in which the
    noise cancels.
    """

    hardening: Hardening
    direction: Direction | None = None
    _row: ClassVar[Row]
    _native: ClassVar[type[Attribution]]
    _signature: ClassVar[inspect.Signature]
    _pinned: Pinned | None = None
    _model_digest: bytes | None = None
    _threshold: tuple[float] | tuple[()] | None = None
    """The model's one output predicts class 1 above this; (): several outputs; None: not known yet."""

    def __init__(
        self,
        *args: Any,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
        direction: Direction | None = None,
        **kwargs: Any,
    ) -> None:
        """Make the native explainer with the native arguments, and harden it; see the class."""
        self.direction = direction
        bound = inspect.signature(self._native.__init__).bind(self, *args, **kwargs)
        if self._row.nt_type and not isinstance(method := bound.arguments.get("attribution_method"), Attribution):
            if not callable(method):
                raise ConfigurationTypeError(
                    f"{type(self).__name__} takes a Captum explainer or a model, got {type(method).__name__}"
                )
            bound.arguments["attribution_method"] = Gradient(method)
        self._native.__init__(*bound.args, **bound.kwargs)
        self._adopt(hardening, model_digest)

    @classmethod
    def from_certificate(
        cls,
        model: nn.Module | Any,
        path: str | Path,
        *,
        file: str | Path | None = None,
        key_file: str | Path | None = None,
        public_key: str | Path | bytes | None = None,
    ) -> Self:
        """The explainer that a certificate is about, with its hardening and the audited options of `attribute`.

        It is made as in the audit, with the constructor's defaults. A call may choose `inputs` and `target` only; the
        audit is about explanations of the predicted class.

        Args:
            model: the audited model, in evaluation mode, or the fitted scikit-learn classifier.
            path: the certificate; it may be about several explainers that are released together.
            file: the model's file, whose SHA-256 must then be the one in the certificate.
            key_file: file with the noise key, at least 16 bytes. None: the environment variable SAFEXPLAIN_NOISE_KEY.
            public_key: ed25519 in PEM format, a path or bytes, of the key that must have signed the certificate.

        Raises:
            CertificateError: the certificate is damaged, altered, unsigned, not "certified", or about another class,
                model, file or version.
            RefusedError: the hardening has noise, and the key is missing or weak.
            InputError: a file cannot be read, or the model is in training mode.
        """
        audited = load_audited(model, path, file=file, key=key_file, public_key=public_key, kind=cls)
        explainer: Self = audited.explainer(cls)
        return explainer

    @classmethod
    def catalogued(cls) -> ExplainerFactory:
        """This class as `safexplain.audit.audit` runs it: on the default layer, with the options that it needs."""
        return ExplainerFactory(cls._row, cls)

    def attribute(self, *args: Any, **kwargs: Any) -> Any:
        """Explain as natively, and return hardened attributions; see the class.

        Raises:
            RefusedError: a convergence delta is requested, the model silently turns the method into another one, or the
                native explainer returned more than one tensor for each input.

        Warns:
            TrainingModeWarning: once for each model in training mode.
        """
        bind = self._signature.bind if self._pinned is None else self._signature.bind_partial
        bound = bind(self, *args, **kwargs)
        given = self._by_name(bound.arguments)
        bound.apply_defaults()
        if self._pinned is not None:
            given = self._pinned.complete(self._signature, given)
        state = {name: value for name, value in vars(self).items() if name not in _HARDENED_ATTRIBUTES}
        modules = modules_in(state)
        borrow = partial(lend, self._native, state, modules, check_modes(modules))
        options = {**self._by_name(bound.arguments), **given}
        if any("convergence_delta" in name and value not in (False, None) for name, value in options.items()):
            raise RefusedError(_NO_DELTA)
        nt_type = options.get("nt_type")
        if self._row.nt_type not in (None, nt_type):
            raise ConfigurationError(
                f"{type(self).__name__} is nt_type={self._row.nt_type!r}, got {nt_type!r};"
                " harden(NoiseTunnel(...)) takes every nt_type"
            )
        inputs, batch = check_inputs(options["inputs"])
        layer = isinstance(self, LayerAttribution)
        if batch == 0:
            return self._empty(inputs, options, borrow)
        if batch == 1 and self._row.mixes_batch:
            raise InputError(f"{self._row.name} shuffles features among examples: expected at least 2 examples, got 1")
        enlarges = hasattr(self._native, "enlarge")  # done after hardening
        mode = options.pop("interpolate_mode", None) if enlarges else None
        query: dict[str, Any] = {}
        if self.hardening.noise is not None:
            options |= {name: round_as_hashed(options[name]) for name in NUMBERS if name in options}
            query = query_of(self, inputs, options, borrow)
        native_options = options
        if _PER_EVAL in options and _PER_EVAL not in given and is_estimator(self.forward_func):
            native_options = {**options, _PER_EVAL: max(1, _VALUES_PER_CALL // sum(x.numel() for x in inputs))}
        native = self._run_native(native_options, borrow)
        _check_native(native, None if layer else len(inputs))
        watch().add(
            modules[0] if modules else self.forward_func,
            self._row.name,
            native if isinstance(native, tuple) else (native,),
            inputs=inputs,
            baselines=options.get("baselines"),
            outputs=partial(_explained, borrow, inputs, options),
            grouped=options.get("feature_mask") is not None,
            squared=nt_type in _SQUARED,
        )
        unhardened = self.hardening.is_none
        as_natively = self._threshold == () or (unhardened and self.direction is None)
        classes = None if as_natively else self._classes_to_explain(inputs, options, borrow)
        first = classes is not None and orients_first(self.hardening)
        if first:
            native = _oriented(native, classes)
        released = self.hardening(native) if unhardened else self._harden(native, inputs, options, query)
        if classes is not None and not first:
            released = _oriented(released, classes)
        return released if mode is None else self._native.enlarge(released, options["inputs"], mode)

    def compute_convergence_delta(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused: with the released map, the delta reveals the noise on the map's sum."""
        raise RefusedError(_NO_DELTA)

    def attribute_future(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused: it would return native attributions."""
        raise RefusedError("attribute_future would return native attributions; call attribute")

    def has_convergence_delta(self) -> bool:
        """False."""
        return False

    def __repr__(self) -> str:
        return f"{type(self).__name__}(hardening={self.hardening!r})"

    @classmethod
    def _of_model(cls, forward: nn.Module, made: ExplainerFactory, hardening: Hardening) -> Self:
        layer = () if cls._row.of == "input" else (default_layer(forward),)
        return cls(forward, *layer, hardening=hardening)

    def _explain_batch(self, x: Tensor, target: Tensor, options: Mapping[str, Any]) -> Tensor:
        x = x.detach().clone().requires_grad_(self._row.leaf_inputs)
        arguments = self._row.options(x, options) | ({"target": target} if self._row.target else {})
        maps: Tensor = self.attribute(x, **arguments)
        return maps

    def _adopt(self, hardening: Hardening | None, model_digest: bytes | None = None) -> None:
        table = is_estimator(getattr(self, "forward_func", None))
        self.hardening = hardening_or_default(hardening, Hardening.recommended(ordered=table))
        self._model_digest = checked_digest(model_digest)
        if hasattr(self, "is_delta_supported"):
            self.is_delta_supported = False
        inner = explainers_in(vars(self))
        for explainer in inner:
            if isinstance(explainer, Hardened):
                explainer._refuse_inside(outer=type(self).__name__)
        check_mode(getattr(self, "forward_func", None), stacklevel=5)
        for explainer in (self, *inner):
            check_modules(explainer)

    def _refuse_inside(
        self, *args: Any, outer: str = "NoiseTunnel, TCAV and the layer wrappers", **kwargs: Any
    ) -> NoReturn:
        """Wrappers find this method as `attribute.__wrapped__`."""
        raise RefusedError(
            f"{type(self).__name__} cannot go inside another explainer: {outer} would average its noise away or return"
            " the native map. Harden the outermost one: harden(NoiseTunnel(IntegratedGradients(model)), hardening)"
        )

    @classmethod
    def _by_name(cls, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Bound arguments by name, without self, those in **kwargs included."""
        rest = [p.name for p in cls._signature.parameters.values() if p.kind is p.VAR_KEYWORD]
        named = {name: value for name, value in list(arguments.items())[1:] if name not in rest}
        return named | {name: value for kwargs in rest for name, value in arguments.get(kwargs, {}).items()}

    def _empty(self, inputs: tuple[Tensor, ...], options: Mapping[str, Any], borrow: Lend) -> Any:
        """Empty maps, in the shapes of the inputs or, for layers, those of the maps of two examples of zeros."""
        if not isinstance(self, LayerAttribution):
            empty = tuple(x.new_empty(x.shape, dtype=torch.result_type(x, 1.0)) for x in inputs)  # as maps are
            return empty if isinstance(options["inputs"], tuple) else empty[0]
        native = self._run_native({name: _two_zero_examples(value) for name, value in options.items()}, borrow)
        empty = tuple(t[:0].clone() for t in plain_tensors(native if isinstance(native, tuple) else (native,)))
        return empty if isinstance(native, tuple) else empty[0]

    def _classes_to_explain(self, inputs: tuple[Tensor, ...], options: Mapping[str, Any], borrow: Lend) -> Any:
        """(batch,) 0 or 1: the class that each map of a single-output model explains; None: as natively."""
        target = options.get("target", ())
        sizes = options.get("abs") or options.get("relu_attributions") or options.get("nt_type") in _SQUARED
        named = () if target is None else target.detach().cpu() if isinstance(target, Tensor) else target
        if not np.isin(np.asarray(named), (0, -1)).all():  # natively, only these name a single output
            self._threshold = ()
        if sizes or self._threshold == ():
            return None
        untargeted = {**options, "target": None}
        scores = _explained(borrow, inputs, untargeted)
        if self._threshold is None:
            one = scores.numel() == len(inputs[0]) and scores.dim() in (1, 2)
            far = [tuple(s * x if x.is_floating_point() else x for x in inputs) for s in (1e3, -1e3)]
            outputs = (scores, *(_explained(borrow, x, untargeted) for x in far)) if one else ()
            bounded = all(bool(((y >= 0) & (y <= 1)).all()) for y in outputs)
            self._threshold = (PROBABILITY if bounded else LOG_ODDS,) if one else ()
        if not self._threshold:
            return None
        threshold = None if self.direction is not None else self._threshold[0]
        return explained_classes(scores.cpu().numpy(), threshold, direction=self.direction, by=type(self).__name__)

    def _harden(
        self, native: Any, inputs: tuple[Tensor, ...], options: Mapping[str, Any], query: dict[str, Any]
    ) -> Any:
        tensors = native if isinstance(native, tuple) else (native,)
        layer = isinstance(self, LayerAttribution)
        found = find_groups(options, tensors if layer else inputs)
        if found is None:
            return self.hardening(native, **query)
        alike = layer or all(t.shape[1:] == x.shape[1:] for t, x in zip(tensors, inputs, strict=True))
        full_size = alike and (layer or options.get("return_input_shape", True))
        groups = found.canonical(tensors if full_size else inputs)
        d = groups.shape[1]
        if full_size and d and bool((groups == torch.arange(d, device=groups.device)).all()):
            return self.hardening(native, **query)  # each feature is a group: as without groups
        if query and found.words:
            query["method"] += f" {found.words}"
        elif query:
            query["inputs"] = (*query["inputs"], names_of(groups).expand(len(query["inputs"][0]), -1))
        if not full_size:  # coefficients, one for each group
            order = by_name(tensors, found.members)
            if order is None:
                return self.hardening(native, **query)
            ordered = tensors[0].detach()[:, order.argsort()]
            coefficients = self.hardening(ordered, **query)[:, order].clone()
            return (coefficients,) if isinstance(native, tuple) else coefficients

        def harden(values: Tensor, rows: slice) -> Tensor:
            if not query:
                return self.hardening(values)
            one = query["target"] if len(groups) == 1 else _target_of(query["target"], rows.start, len(tensors[0]))
            return self.hardening(values, **{**query, "inputs": tuple(x[rows] for x in query["inputs"]), "target": one})

        released = harden_groups(tensors, groups, harden)
        return released if isinstance(native, tuple) else released[0]

    def _run_native(self, options: Mapping[str, Any], borrow: Lend) -> Any:
        served = torch.is_inference_mode_enabled()
        with torch.inference_mode(False) if served else nullcontext(), borrow() as explainer:
            native_options = tree_map(_outside_inference, dict(options))
            native_options["inputs"] = self._private_inputs(options["inputs"])
            originals = (self, *explainers_in(vars(self)))
            for inner, own in zip((explainer, *explainers_in(vars(explainer))), originals, strict=True):
                check_first_call(inner, own.forward_func, native_options)
            named = self._signature.parameters
            rest = {name: native_options.pop(name) for name in native_options.keys() - named.keys()}
            bound = inspect.BoundArguments(self._signature, {next(iter(named)): explainer, **native_options})
            try:
                return self._native.attribute(*bound.args, **bound.kwargs, **rest)
            except (TypeError, ValueError) as error:
                if self._row.name == "KernelShap" and "probs" in str(error):
                    raise InputError("expected at least 2 groups in feature_mask for KernelShap, got 1") from error
                if "has no rule defined" not in str(error):
                    raise
                kind = str(error).partition("<class '")[2].partition("'")[0].rpartition(".")[2]
                raise RefusedError(
                    f"{self._row.name} has no rule for {kind}. Give the module one (as module.rule ="
                    " captum.attr._utils.lrp_rules.EpsilonRule()), call flatten as a function, or use HardenedIG"
                ) from error

    def _private_inputs(self, inputs: Any) -> Any:
        """Copies of the inputs, which Captum and models write to; with noise, rounded as they are hashed."""
        if isinstance(inputs, tuple):
            return tuple(self._private_inputs(x) for x in inputs)
        x = (inputs if self.hardening.noise is None else as_hashed(inputs)).detach().clone()
        leaf = self._row.leaf_inputs and (x.is_floating_point() or x.is_complex())
        return x.requires_grad_(leaf or inputs.requires_grad)


@dataclass(frozen=True)
class ExplainerFactory:
    """Makes the explainer of each audited model: `HardenedIG.catalogued()(model, hardening=h)`."""

    row: Row
    kind: Any

    @property
    def method(self) -> str:
        """Name in the catalog."""
        return self.row.name

    def __call__(self, model: nn.Module, *, hardening: Hardening) -> AuditExplainer:
        """The explainer of a model."""
        return AuditExplainer(self.kind._of_model(model, self, hardening))


@dataclass(frozen=True, eq=False)
class AuditExplainer:
    """An explainer as an audit runs it: an example's answer does not depend on the others."""

    explainer: Any

    def attribute(self, x: Tensor, *, target: Tensor, **options: Any) -> Tensor:
        """(batch, ...) numbers for inputs (batch, ...) and the explained class of each, (batch,); options as
        `Row.options` takes them."""
        released: Tensor = self.explainer._explain_batch(x, target, options)
        return released

    @property
    def hardens_again(self) -> bool:
        """Whether a release depends on the native map alone."""
        own = self.explainer
        return isinstance(own, Hardened) and own._row.of == "input" and own.hardening.noise is None

    def of_native(self, native: Tensor, x: Tensor, **options: Any) -> Tensor:
        """What `attribute` releases of native maps, (batch, ...), without explaining again."""
        released: Tensor = self.explainer._harden(native, (x,), self.explainer._row.options(x, options), {})
        return released


def check_inputs(inputs: Any) -> tuple[tuple[Tensor, ...], int]:
    """The inputs as a tuple of tensors, and the number of examples; InputError for anything else."""
    tensors = inputs if isinstance(inputs, tuple) else (inputs,)
    if not tensors or not all(isinstance(x, Tensor) and x.dim() > 0 for x in tensors):
        raise InputError(f"inputs must be tensors of shape (batch, ...), got {type(inputs).__name__}")
    return tensors, min([x.shape[0] for x in tensors])


def _check_native(result: Any, expected: int | None) -> None:
    """`expected` is the number of tensors; None: any, as layers give."""
    tensors = result if isinstance(result, tuple) else (result,)
    if not all(isinstance(t, Tensor) for t in tensors) or expected not in (None, len(tensors)):
        kinds = ", ".join(type(t).__name__ for t in tensors)
        raise RefusedError(f"expected {expected or 1} attributions from the native explainer, got ({kinds})")


def _oriented(maps: Any, classes: Any) -> Any:
    """Maps turned towards these classes; of a layer, only maps with a row for each example."""
    if isinstance(maps, tuple):
        return tuple(_oriented(one, classes) for one in maps)
    return oriented(maps.detach(), classes) if len(maps) == len(classes) else maps


def _explained(borrow: Lend, rows: tuple[Tensor, ...], options: Mapping[str, Any]) -> Tensor:
    with borrow() as explainer, torch.no_grad():
        found: Tensor = _run_forward(
            explainer.forward_func, rows, options.get("target"), options.get("additional_forward_args")
        )
    return found


def _outside_inference(value: Any) -> Any:
    """Tensors made in inference mode cannot enter a graph; copies can."""
    return value.clone() if isinstance(value, Tensor) and value.is_inference() else value


def _two_zero_examples(value: Any) -> Any:
    """Arguments of an empty batch as those of two examples of zeros."""
    if isinstance(value, Tensor) and value.dim() and len(value) == 0:
        return value.new_zeros(2, *value.shape[1:])
    if isinstance(value, list) and not value:
        return [0, 0]
    return tuple(map(_two_zero_examples, value)) if type(value) is tuple else value


def _target_of(target: Any, row: int, batch: int) -> Any:
    several = target.numel() > 1 if isinstance(target, Tensor) else isinstance(target, list) and len(target) == batch
    return target[row : row + 1] if several else target


# Which class an explanation is for: natively, a model with one output for two classes is explained for class 1


def oriented(values: Values, classes: Any) -> Values:
    """Native values (n, ...) for class 1, turned towards the class of each row, (n,): negated for class 0."""
    signs = 2 * np.asarray(classes, dtype=np.int64) - 1
    if isinstance(values, Tensor):
        return values * torch.as_tensor(signs, device=values.device).view(-1, *[1] * (values.dim() - 1))
    return np.asarray(values * signs.reshape(-1, *[1] * (values.ndim - 1)))


def orients_first(hardening: Hardening) -> bool:
    """Whether values are turned towards the class before they are hardened. With noise they are turned afterwards, so
    that answers about both classes share one noise, which two answers cannot average."""
    return hardening.noise is None or isinstance(hardening.clip, TopKSet)


def explained_classes(
    scores: Any, threshold: float | None, *, target: Any = None, direction: Direction | None = None, by: str = ""
) -> NDArray[np.int64]:
    """The class (n,) that each row's single output, (n,), is explained for; for a number, 1 for "up" and 0 for "down".

    Class 1 is predicted above `threshold`; None: the output is a number. `target` is 0 or 1, or (n,) of them; None: the
    predicted ones, with a PredictedClassWarning once for each explainer (`by`). ConfigurationError: a direction for
    classes, a class for a number, or a target that is neither 0 nor 1.
    """
    scores = np.asarray(scores, dtype=np.float64).reshape(-1)
    if threshold is None:
        if target is not None or direction not in (None, "up", "down"):
            raise ConfigurationError(
                'expected direction="up" (why the number is as high as it is) or "down", and no target: this model'
                " returns a number and has no classes"
            )
        return np.full(len(scores), int(direction != "down"))
    if direction is not None:
        raise ConfigurationError("expected no direction: this model has two classes; name one by target=0 or target=1")
    if target is None:
        if by and by not in _warned:
            _warned.add(by)
            warnings.warn(
                f"{by}: the model has one output for two classes. Values explain each row's predicted class, natively"
                " class 1. Name a class by target=",
                PredictedClassWarning,
                stacklevel=4,
            )
        return np.where(scores > threshold, 1, 0)
    given = target.detach().cpu().numpy() if isinstance(target, Tensor) else np.asarray(target)
    if given.size not in (1, len(scores)) or not np.isin(given, (0, 1)).all():
        raise ConfigurationError(f"target: expected 0 or 1, or one for each of {len(scores)} rows")
    return np.broadcast_to(given.reshape(-1), len(scores)).astype(np.int64)


# The query that the noise is a function of, beside key and configuration: a change that leaves the native answer the
# same, bit for bit, leaves the noise the same; another question has another.

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


_NO_DELTA = (
    "a convergence delta is refused: with the released map it reveals the noise on the map's sum. To check"
    " convergence, use the native Captum class inside your own system"
)


def build(row: Row) -> type[Hardened]:
    """The hardened class of a row, with the native signatures; RefusedError: the native class has no `inputs`, on which
    the noise depends."""
    native, name = row.native, row.hardened_name
    signature = inspect.signature(native.attribute)
    if "inputs" not in signature.parameters:
        raise RefusedError(f"{native.__name__}.attribute has no argument `inputs`, so its answers cannot be hardened")
    if row.nt_type:
        tunnel = signature.parameters["nt_type"].replace(default=row.nt_type)
        signature = signature.replace(parameters=list((signature.parameters | {"nt_type": tunnel}).values()))
    attribute = _like_native(Hardened.attribute, native.attribute, signature, name)
    constructor, own = inspect.signature(native.__init__), inspect.signature(Hardened.__init__).parameters
    parameters = [*constructor.parameters.values(), own["hardening"], own["model_digest"]]
    constructor = constructor.replace(parameters=sorted(parameters, key=lambda p: p.kind))
    attribute.__wrapped__ = Hardened._refuse_inside
    namespace = {
        "__module__": __name__,
        "__doc__": _class_doc(row),
        "__init__": _like_native(Hardened.__init__, native.__init__, constructor, name),
        "attribute": attribute,
        "_row": row,
        "_native": native,
        "_signature": signature,
    }
    return type(name, (Hardened, native), namespace)


def _like_native(
    function: Callable[..., Any], native: Callable[..., Any], signature: inspect.Signature, owner: str
) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    name = function.__name__
    method.__signature__ = signature  # type: ignore[attr-defined]
    method.__name__, method.__qualname__, method.__module__ = name, f"{owner}.{name}", __name__
    native_doc = (inspect.getdoc(native) or "").partition("Examples::")[0].replace(">>> ", "").rstrip()
    method.__doc__ = f"{inspect.getdoc(function)}\n\nThe native documentation:\n\n{native_doc}"
    return method


def _class_doc(row: Row) -> str:
    parts = [f"Hardened {row.name}. {row.summary}", f"Source: {row.citation}." if row.citation else ""]
    if row.nt_type:
        parts.append(
            "Takes any Captum explainer, as NoiseTunnel does, or a model, whose signed gradient (`Gradient`) is then"
            f" explained. `nt_type` is {row.nt_type!r}. The hardening comes after the tunnel."
        )
    if row.library == "captum" and not row.nt_type and row.name in CATALOG:
        parts.append(f"The same class as `safexplain.captum.{row.native.__name__}`.")
    parts.append(
        f"Takes the arguments of `{row.native.__name__}`, and three more.\n\n"
        "Args:\n"
        "    hardening: applied to each explanation before it is released; None: `Hardening.recommended()`, ordered"
        " for a scikit-learn classifier.\n"
        "    model_digest: at least 16 bytes that name the model and its version, for a model whose weights cannot be"
        " read; None: its `safexplain.model_digest`.\n"
        '    direction: "up" or "down", for a model whose one output is a number; None: it has two classes.'
    )
    return "\n\n".join(filter(None, parts))


HARDENED: Mapping[str, type[Hardened]] = {row.name: build(row) for row in CATALOG.values() if row.in_base}
"""Row name -> hardened class, for all rows of the base install."""

globals().update({kind.__name__: kind for kind in HARDENED.values()})  # where pickle looks for them
