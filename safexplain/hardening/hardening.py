"""Hardening: clip, then mask, then noise, always in this order, before an attribution is released.

    v -> NaN and infinities to 0 -> clip -> mask -> + noise on every coordinate, masked ones too -> round to a grid

The order is that of DeepLeak's text (arXiv 2601.03429, section IV-B). Each example is hardened independently, over all
of its tensors together. This is not differential privacy: an audit measures whether a hardening prevents leaks.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar, cast, get_args

import torch
from torch import Tensor

from safexplain._validate import check_number, check_whole, from_table
from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError
from safexplain.hardening.clips import (
    Clip,
    Mask,
    RangeClip,
    RankNorm,
    Relative,
    ThresholdMask,
    TopKSet,
    UnitNorm,
    absolute,
)
from safexplain.hardening.features import Features
from safexplain.hardening.noise import GaussianNoise, check_key, fill_zeros, keyed_normal, query_seeds, resolve_key

SLOTS: dict[str, tuple[type, ...]] = {"clip": get_args(Clip), "mask": get_args(Mask), "noise": (GaussianNoise,)}

RECOMMENDED = TopKSet(k=4, fraction=0.1)
"""The four features that count most, or a tenth of them where that is more.

The rule: the gain of attacks over the labels of the same queries has an upper 95 % bound of at most one point of
true-positive rate at 1 % false positives and .02 of AUC, at every level of patience; without the released top 10 % of
the features, the explained probability drops by at most .02 less than for the native map, and by more than for models
of public data only. This format met it in ten of eleven measured cells, see docs/evidence/releases.md."""


def to_plain(step: Any) -> dict[str, Any] | None:
    """A slot's value as plain JSON types, without the key."""
    if step is None:
        return None
    values = {k: v for k, v in asdict(step).items() if k != "key" and (k, v) != ("ordered", False)}
    for name in values:
        if isinstance(getattr(step, name), Relative):
            values[name] = {"relative": getattr(step, name).factor}
    return {"kind": type(step).__name__, **values}


def from_plain(slot: str, plain: Any) -> Any:
    """Inverse of `to_plain`; ConfigurationError: an unknown kind or field, a key, or a wrong value."""
    if plain is None:
        return None
    kinds = {k.__name__: k for k in SLOTS[slot]}
    if not isinstance(plain, dict) or str(plain.get("kind")) not in kinds:
        raise ConfigurationError(f"{slot}: expected an object whose kind is one of {sorted(kinds)}, got {plain!r:.120}")
    values = {
        k: Relative(factor=v["relative"]) if isinstance(v, dict) and v.keys() == {"relative"} else v
        for k, v in plain.items()
        if k != "kind"
    }
    if "key" in values:
        raise ConfigurationError("expected no noise key in JSON; pass it by Hardening.with_key(key)")
    return from_table(kinds[plain["kind"]], values, slot)


Attributions = TypeVar("Attributions", bound=Tensor | tuple[Tensor, ...])

CHUNK = 1 << 15
"""Numbers hardened at a time."""


@dataclass(frozen=True, repr=False)
class Hardening:
    """Three slots, applied in one order: clip, mask, noise; then rounding to a grid.

    Args:
        clip: `RangeClip`, `NormClip`, `UnitNorm`, `RankNorm`, a format (`TopKSet`, `Levels`) or None.
        mask: `ThresholdMask`, `TopKMask` or None.
        noise: `GaussianNoise` or None.
        grid: outputs are rounded to multiples of this, as low-order bits of value + noise reveal masked coordinates.
            None: the largest power of two that is at most 1/16 of the noise's std (no rounding without noise).
        features: of a table: names and groups of its features, and which may not be reasons. Features of one group then
            have one number.

    Raises:
        ConfigurationError, ConfigurationTypeError: a slot holds another class, a `Relative` has no clip, or features
            are prohibited without a set of reasons.

    >>> Hardening(clip=TopKSet(k=4))
    Hardening(clip=TopKSet(k=4, fraction=None, positive=True), mask=None, noise=None, grid=None)
    """

    clip: Clip | None = None
    mask: Mask | None = None
    noise: GaussianNoise | None = None
    grid: float | None = None
    features: Features | None = None

    def __post_init__(self) -> None:
        if self.features is not None and not isinstance(self.features, Features):
            raise ConfigurationTypeError(f"features must be a Features or None, got {self.features!r:.80}")
        if self.features is not None and self.features.prohibited and not isinstance(self.clip, TopKSet):
            raise ConfigurationError("expected clip=TopKSet(k=4), which releases reasons, for prohibited features")
        for slot, kinds in SLOTS.items():
            value = getattr(self, slot)
            if value is not None and not isinstance(value, kinds):
                names = ", ".join(k.__name__ for k in kinds)
                raise ConfigurationTypeError(f"{slot} must be one of {names} or None, got {value!r}")
        if self.grid is not None:
            object.__setattr__(self, "grid", check_number("grid", self.grid, above=0.0))
        if self.clip is None:
            for value in (getattr(self.mask, "threshold", None), getattr(self.noise, "std", None)):
                if isinstance(value, Relative):
                    absolute(value, None)

    @classmethod
    def none(cls) -> Hardening:
        """No hardening: values pass through unchanged (detached)."""
        return cls()

    @classmethod
    def recommended(cls, key: bytes | None = None, *, ordered: bool = False) -> Hardening:
        """The default, chosen by measurement, see `RECOMMENDED`. It has no noise.

        Args:
            key: checked, but not used.
            ordered: release the order of the features too, the default for tables.

        >>> Hardening.recommended().clip
        TopKSet(k=4, fraction=0.1, positive=True)
        """
        check_key(key)
        return cls(clip=replace(RECOMMENDED, ordered=ordered))

    @classmethod
    def deepleak(cls, key: bytes | None = None) -> Hardening:
        """DeepLeak's own default, for comparison (arXiv 2601.03429: bounds, threshold and noise as released, in the
        order of section IV-B); `docs/evidence/paper_d.md` shows what it leaks."""
        return cls(clip=RangeClip(-1.0, 1.0), mask=ThresholdMask(1e-3), noise=GaussianNoise(0.01, key=key))

    @classmethod
    def ranked(cls, key: bytes | None = None) -> Hardening:
        """Ranks with keyed noise: for curves and weights, for which a set of the largest numbers is useless. Order and
        signs are kept up to the noise, which a patient client averages away."""
        return cls(clip=RankNorm(), noise=GaussianNoise(Relative(0.3), key=key))

    def __repr__(self) -> str:
        named = (*SLOTS, "grid", *(() if self.features is None else ("features",)))
        return f"Hardening({', '.join(f'{name}={getattr(self, name)!r}' for name in named)})"

    @property
    def is_recommended(self) -> bool:
        """True for the default, with any columns, ordered or not."""
        return replace(self, features=None) in (Hardening.recommended(), Hardening.recommended(ordered=True))

    @property
    def is_none(self) -> bool:
        """True if values pass through unchanged."""
        return (self.clip, self.mask, self.noise, self.grid, self.features) == (None,) * 5

    def with_key(self, key: bytes) -> Hardening:
        """The same hardening with this noise key."""
        return self if self.noise is None else replace(self, noise=replace(self.noise, key=key))

    def naming_all(self) -> Hardening:
        """The same without prohibited features, for an audit, which counts refusals itself."""
        if self.features is None or not self.features.prohibited:
            return self
        return replace(self, features=Features(self.features.names, self.features.groups))

    def without_noise(self) -> Hardening:
        """The hardening with its noise averaged away, as an attacker simulates it. The key, which fills exact zeros,
        stays; the grid goes."""
        return self if self.noise is None else replace(self, noise=replace(self.noise, std=0.0), grid=None)

    def sign_error_rate(self, d: int, k: int | None = None) -> float:
        """Rate of wrong signs in releases of d features, measured on normal numbers at the clip's scale.

        Args:
            d: number of features.
            k: None: the share of released signs that differ from the native ones. A number: the share of explanations
                in which one of the k largest released numbers (by magnitude) has a wrong sign.

        >>> noisy = Hardening(clip=RankNorm(), noise=GaussianNoise(Relative(0.3)))
        >>> print(f"{noisy.sign_error_rate(10):.2f} {Hardening.recommended().sign_error_rate(10):.2f}")
        0.20 0.00
        """
        d = check_whole("d", d, 1)
        hardening = replace(self, features=None).with_key(b"public: only counts")
        native = torch.randn(max(64, 16_384 // d), d, generator=torch.Generator().manual_seed(0))
        native *= min(hardening._scale(d) or 1.0, 1e30)
        released = hardening(native, inputs=torch.arange(len(native), dtype=torch.float32)[:, None])
        wrong = (released.sign() * native.sign()) < 0
        if k is None:
            return float(wrong.sum() / (released != 0).sum().clamp_min(1))
        top = released.abs().topk(min(check_whole("k", k, 1), d), dim=1).indices
        return float(wrong.gather(1, top).any(1).double().mean())

    def noise_std(self, d: int) -> float:
        """Standard deviation of the noise on one coordinate of an explanation of d features; 0 without noise."""
        return 0.0 if self.noise is None else absolute(self.noise.std, self._scale(d))

    def grid_step(self, d: int) -> float | None:
        """Step of the grid for explanations of d features; None: not rounded."""
        if self.grid is not None:
            return self.grid
        return math.ldexp(0.5, math.frexp(self.noise_std(d))[1] - 4) or None if self.noise_std(d) > 0 else None

    def __call__(
        self,
        attributions: Attributions,
        *,
        inputs: Tensor | tuple[Tensor, ...] | None = None,
        target: Any = None,
        model_digest: bytes = b"",
        method: str = "",
    ) -> Attributions:
        """Harden the attributions of a batch. Without noise, the answer depends on the attributions only.

        Args:
            attributions: tensor of shape (batch, ...), or a tuple of such; floating point, any device.
            inputs: the explained inputs, with the same batch size; the noise depends on them.
            target: the explained class of each, as Captum takes it.
            model_digest: of the explained model, see `safexplain._digest`.
            method: name of the explanation method.

        Returns:
            New tensors of the same structure, shapes, dtypes and devices, detached from any graph.

        Raises:
            InputError: there is noise and no `inputs`, or shapes disagree.
            ProhibitedReasonError: a prohibited column is among the reasons.
        """
        tensors = cast("tuple[Tensor, ...]", attributions if isinstance(attributions, tuple) else (attributions,))
        if not tensors or any(not isinstance(t, Tensor) or t.dim() == 0 for t in tensors):
            raise InputError("expected attributions of shape (batch, ...): a tensor or a tuple of tensors")
        tensors = plain_tensors(tensors)
        if self.is_none:
            released = [t.clone() for t in tensors]
        elif not all(map(torch.is_floating_point, tensors)):
            raise InputError(f"expected floating-point attributions, got {[str(t.dtype) for t in tensors]}")
        else:
            released = self._apply(tensors, self._seeds(tensors, inputs, target, model_digest, method))
        return cast("Attributions", tuple(released) if isinstance(attributions, tuple) else released[0])

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, without the key."""
        slots = {slot: to_plain(getattr(self, slot)) for slot in SLOTS}
        return {**slots, "grid": self.grid} | ({} if self.features is None else {"features": self.features.to_dict()})

    def to_json(self) -> str:
        """Canonical JSON (sorted keys), without the key."""
        return json.dumps(self.to_dict(), sort_keys=True)

    @classmethod
    def from_json(cls, text: str | Mapping[str, Any]) -> Hardening:
        """Inverse of `to_json` and `to_dict`; ConfigurationError: not JSON, unknown names, or a wrong value."""
        try:
            plain = json.loads(text) if isinstance(text, str) else dict(text)
        except (ValueError, TypeError, RecursionError) as error:
            raise ConfigurationError(f"expected a hardening as JSON, got {text!r:.80} ({error})") from None
        if not isinstance(plain, dict) or not plain.keys() <= {*SLOTS, "grid", "features"}:
            listed = ", ".join((*SLOTS, "grid", "features"))
            raise ConfigurationError(f"expected a JSON object with {listed}; got {plain!r:.120}")
        slots = {slot: from_plain(slot, plain.get(slot)) for slot in SLOTS}
        try:
            features = None if plain.get("features") is None else Features(**plain["features"])
        except (TypeError, ValueError, AttributeError) as error:
            raise ConfigurationError(f"features: expected names, groups and prohibited ({error})") from None
        return cls(grid=plain.get("grid"), features=features, **slots)

    def _scale(self, d: int) -> float | None:
        return None if self.clip is None else self.clip.scale(d)

    def _seeds(
        self, tensors: tuple[Tensor, ...], inputs: Any, target: Any, model_digest: bytes, method: str
    ) -> list[bytes] | None:
        batch = tensors[0].shape[0]
        if any(t.shape[0] != batch for t in tensors):
            raise InputError(f"expected attributions of one batch size, got {[tuple(t.shape) for t in tensors]}")
        if inputs is None and self.noise is not None:
            raise InputError("expected inputs= (and target=, model_digest=): the noise is a function of the query")
        first = inputs[0] if isinstance(inputs, tuple) else inputs
        if first is not None and first.shape[0] != batch:
            raise InputError(f"expected {batch} inputs, one for each attribution, got {first.shape[0]}")
        if self.noise is None:
            return None
        query = {"inputs": inputs, "target": target, "model_digest": model_digest, "method": method}
        return query_seeds(resolve_key(self.noise.key), **query, configuration=self.to_json())

    def _apply(self, tensors: tuple[Tensor, ...], seeds: list[bytes] | None) -> list[Tensor]:
        one = tensors[0]
        if len(tensors) == 1 and 0 < one.numel() <= 8 * CHUNK and one.dtype in (torch.float32, torch.float64):
            single = torch.empty_like(one, memory_format=torch.contiguous_format, requires_grad=False)  # not a view
            single.view(len(one), -1).copy_(self._harden_rows(one.reshape(len(one), -1), seeds))
            return [single]
        released = [torch.empty_like(t, memory_format=torch.contiguous_format, requires_grad=False) for t in tensors]
        widths = [math.prod(t.shape[1:]) for t in tensors]
        batch, d = tensors[0].shape[0], sum(widths)
        work = torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32
        step = max(1, CHUNK // max(d, 1))
        for start in range(0, batch if d else 0, step):
            part = slice(start, start + step)
            pieces = [t[part].detach() for t in tensors]
            pieces = [p.reshape(len(p), w).to(tensors[0].device, work) for p, w in zip(pieces, widths, strict=True)]
            rows = self._harden_rows(torch.cat(pieces, 1), None if seeds is None else seeds[part])
            for out, piece in zip(released, rows.split(widths, 1), strict=True):
                limit = torch.finfo(out.dtype).max
                out[part] = piece.clamp(-limit, limit).to(out.dtype).view_as(out[part])
        return released

    def _harden_rows(self, rows: Tensor, seeds: list[bytes] | None) -> Tensor:
        rows = torch.nan_to_num(rows, nan=0.0, posinf=0.0, neginf=0.0)
        if self.features is not None:
            rows = self.features.summed(rows)
        d = rows.shape[1]
        if seeds is not None and isinstance(self.clip, UnitNorm | RankNorm):
            rows = fill_zeros(rows, seeds, whole_rows_only=isinstance(self.clip, UnitNorm))
        if self.clip is not None:
            rows = self.clip(rows)
            others = (self.mask, self.noise, self.grid, self.features)
            if isinstance(self.clip, TopKSet) and others == (None,) * 4:
                return rows  # numbers of the format only
        if self.mask is not None:
            rows = self.mask(rows, self._scale(d))
        std = self.noise_std(d)
        if std > 0 and seeds is not None:
            rows += keyed_normal(seeds, d, b"noise", rows).mul_(std)
        if (step := self.grid_step(d)) is not None:
            rows = _rounded(rows, step)
        rows = rows.nan_to_num_(nan=0.0).add_(0.0)  # adding 0 turns -0 into 0
        if self.features is None:
            return rows
        rows = rows[:, list(self.features.places)]  # each feature gets the number of its column
        self.features.check(rows)
        return rows


def hardening_or_default(hardening: object, default: Hardening) -> Hardening:
    """The given hardening, or the default for None; ConfigurationTypeError: not a hardening."""
    found = default if hardening is None else hardening
    if not isinstance(found, Hardening):
        raise ConfigurationTypeError(f"hardening must be a Hardening or None, got {type(hardening).__name__}")
    return found


def plain_tensors(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The same numbers, detached, without a subclass, which may carry other data."""
    with torch._C.DisableTorchFunctionSubclass():
        return tuple(t.detach().as_subclass(Tensor) for t in tensors)


def _rounded(rows: Tensor, step: float) -> Tensor:
    step = min(step, torch.finfo(rows.dtype).max)
    out = (rows / step).round_().mul_(step)
    if bool(out.sum().isfinite()):
        return out
    return torch.where(out.isfinite(), out, rows)
