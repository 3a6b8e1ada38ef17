"""What every hardened Alibi explainer is: one that holds a native explainer and runs private copies of it."""

from __future__ import annotations

import inspect
from contextlib import nullcontext
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from safexplain._digest import checked_digest, explained_digest
from safexplain.errors import ConfigurationError
from safexplain.explain.alibi.rules import FRACTIONS, ROWS, kind_of, query_tensor, release
from safexplain.explain.captum.model_checks import check_mode
from safexplain.explain.libraries import ONE_AT_A_TIME, draw_from, load_alibi, private_copy, seeded_generators
from safexplain.explain.query import as_asked
from safexplain.hardening.clips import NormClip, RangeClip, RankNorm, UnitNorm
from safexplain.hardening.hardening import Hardening, hardening_or_default
from safexplain.hardening.masks import TopKMask
from safexplain.hardening.noise import GaussianNoise

__all__ = ["FromArguments", "HardenedAlibi", "anchor_hardening", "new_generator"]


def anchor_hardening(key: bytes | None = None) -> Hardening:
    """The default for anchors: precision and coverage get noise of 0.05 and are rounded to multiples of 0.05.

    Args:
        key: of the noise, see `GaussianNoise`.
    """
    return Hardening(clip=RangeClip(0.0, 1.0), noise=GaussianNoise(0.05, key=key), grid=0.05)


def new_generator(hardening: Hardening | None) -> np.random.RandomState | None:
    """What constructors and `fit` draw from; None, NumPy's global generator, for `Hardening.none()`, as natively."""
    return None if hardening == Hardening.none() else np.random.RandomState()


class HardenedAlibi:
    """An Alibi explainer, hardened; `harden_alibi` makes it.

    `explain` has the native arguments and returns a new `Explanation` with the fields that may leave; the others are
    absent. With `Hardening.none()` they have the native values. Asking again gives the same answer, also after a
    restart: a call's samples come from a generator of its own that is seeded, as the noise is, from the key, the model,
    the configuration and what is explained. Threads may share it, but not while `fit` or `reset_predictor` runs.

    Attributes:
        hardening: what is done to the numbers of each explanation.
    """

    hardening: Hardening
    _explainer: Any
    _model_digest: bytes | None = None
    _entry: ClassVar[str] = "explain"

    def __init__(self, native: Any, *, hardening: Hardening | None = None, model_digest: bytes | None = None) -> None:
        self._adopt(native, hardening, model_digest)

    @property
    def _native(self) -> Any:
        return type(self._explainer)

    def _explain(self, *args: Any, **kwargs: Any) -> Any:
        """Explain as natively, by a private copy of an anchor explainer, and release what may leave."""
        load_alibi()
        kind, predictor, quiet = kind_of(self._explainer), self._explainer.predictor, self.hardening.is_none
        check_mode(predictor)
        bound = inspect.signature(self._explainer.explain).bind(*args, **kwargs)
        if not quiet:
            asked = next(iter(bound.arguments))
            bound.arguments[asked] = as_asked(bound.arguments[asked])
        inputs = (query_tensor(bound.args[0]),)
        digest = b"" if self.hardening.noise is None else explained_digest(predictor, self._model_digest)
        method = f"alibi.{kind} {{}}"  # the braces: other noise would make two answers to average

        def harden(numbers: Tensor) -> Tensor:
            named = f"{method} {','.join(FRACTIONS)}"
            return self.hardening(numbers, inputs=inputs, model_digest=digest, method=named)

        sampled = f"{method} seed={getattr(self._explainer, 'seed', None)}"
        generator = None if quiet else seeded_generators(self.hardening, inputs, digest, sampled)[0]
        alone = ONE_AT_A_TIME if kind == "AnchorText" else nullcontext()  # calls share a pipeline of spaCy
        with alone, draw_from(generator):
            explanation = private_copy(self._explainer).explain(*bound.args, **bound.kwargs)
        return release(explanation, ROWS[kind], None if quiet else harden)

    def fit(self, *args: Any, **kwargs: Any) -> HardenedAlibi:
        """Fit the native explainer; returns the hardened one."""
        with draw_from(new_generator(self.hardening)):
            self._explainer.fit(*args, **kwargs)
        return self

    def reset_predictor(self, *args: Any, **kwargs: Any) -> None:
        """Give the native explainer another predictor."""
        self._explainer.reset_predictor(*args, **kwargs)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self._explainer).__name__}, hardening={self.hardening!r})"

    def _adopt(self, native: Any, hardening: Hardening | None, model_digest: bytes | None = None) -> None:
        anchors = kind_of(native).startswith("Anchor")
        hardening = hardening_or_default(hardening, anchor_hardening if anchors else Hardening.recommended)
        for step in (hardening.clip, hardening.mask):
            if anchors and isinstance(step, RankNorm | UnitNorm | NormClip | TopKMask):
                raise ConfigurationError(
                    f"{type(step).__name__} weighs the coordinates of a vector against each other, which says nothing"
                    " about precision and coverage; use RangeClip(0.0, 1.0), or hardening=anchor_hardening(key)"
                )
        load_alibi()
        check_mode(vars(native))
        self._explainer, self.hardening, self._model_digest = native, hardening, checked_digest(model_digest)


class FromArguments(HardenedAlibi):
    """Takes the native arguments, `hardening`, and `model_digest` as `harden_alibi` takes it."""

    _kind: ClassVar[str]

    def __init__(
        self, *args: Any, hardening: Hardening | None = None, model_digest: bytes | None = None, **kwargs: Any
    ) -> None:
        """Make the native explainer, and harden it."""
        with draw_from(new_generator(hardening)):
            native = getattr(load_alibi().explainers, self._kind)(*args, **kwargs)
        self._adopt(native, hardening, model_digest)
