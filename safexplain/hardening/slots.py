"""The three slots of a hardening: what may stand in each, and how that is written as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from safexplain._validate import Amount, Relative, keep_amount
from safexplain.errors import ConfigurationError
from safexplain.hardening.clips import RankNorm
from safexplain.hardening.noise import check_key
from safexplain.hardening.transforms import NormClip, RangeClip, ThresholdMask, TopKMask, UnitNorm


@dataclass(frozen=True)
class GaussianNoise:
    """Keyed Gaussian noise on every coordinate; see `safexplain.hardening.noise` for what it is a function of.

    Args:
        std: standard deviation: a float in the units of the attribution, or `Relative` to the clip's scale.
        key: secret bytes (os.urandom(32)). None: the environment variable SAFEXPLAIN_NOISE_KEY, or else a key drawn by
            this process, with one warning. The key is a secret: it is not part of `repr`, equality or JSON.

    Raises:
        ConfigurationError: std is negative or not finite, or the key is empty.
    """

    std: Amount
    key: bytes | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        keep_amount(self, "std")
        check_key(self.key)


SLOTS: dict[str, tuple[type, ...]] = {
    "clip": (RangeClip, NormClip, UnitNorm, RankNorm),
    "mask": (ThresholdMask, TopKMask),
    "noise": (GaussianNoise,),
}


def to_plain(step: Any) -> dict[str, Any] | None:
    """What stands in a slot as plain JSON types, without the key."""
    if step is None:
        return None
    values = {k: v for k, v in asdict(step).items() if k != "key"}
    for name in values:
        if isinstance(getattr(step, name), Relative):
            values[name] = {"relative": getattr(step, name).factor}
    return {"kind": type(step).__name__, **values}


def from_plain(slot: str, plain: Any) -> Any:
    """Read what `to_plain` wrote for a slot.

    Raises:
        ConfigurationError: an unknown kind or field, a key, or a value out of range.
    """
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
        raise ConfigurationError("a noise key does not belong into JSON; give it with Hardening.with_key(key)")
    try:
        return kinds[plain["kind"]](**values)
    except TypeError as error:
        if isinstance(error, ConfigurationError):
            raise
        raise ConfigurationError(f"{slot}: {plain['kind']} has no such fields ({error})") from None
