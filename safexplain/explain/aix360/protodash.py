"""ProtoDash over public rows: prototypes from a declared public set, with hardened weights.

Natively ProtoDash (arXiv 1707.01212) returns indices of rows of its data set, usually the training set: a client who
gets the submitted record back knows that it is a member, whatever noise the weights have.
"""

from __future__ import annotations

import hashlib
import inspect
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain.errors import ConfigurationTypeError, InputError, RefusedError
from safexplain.explain.catalog import CATALOG
from safexplain.explain.tables import TableExplainer, TableExplainerFactory
from safexplain.hardening.hardening import Hardening, hardening_or_default
from safexplain.hardening.noise import as_hashed

Rows = NDArray[Any]


class HardenedProtoDash(TableExplainer):
    """AIX360's `ProtodashExplainer` with prototypes from a public set and hardened weights.

    Indices and order of the prototypes are exact: they depend on the explained and the public rows alone, and reveal
    the training set only if one of the two does (as features computed by the trained model). The weights are hardened
    for that case.

    Audited and certified one row at a time. With p public rows, its numbers are p ranks, (m - i) / m for the i-th
    prototype and 0 for all others, and then p weights; a service releases the prototypes' rows, order and weights.

    Args:
        public: candidate prototypes (n, d), n > 2, which are released unchanged. A read-only copy is kept, as `public`;
            integers become float64.
        hardening: of the weights of one answer; None for `Hardening.ranked()`.

    Raises:
        ConfigurationTypeError: no `public`.
        InputError: `public` is not a finite (n, d) array with n > 2.
    """

    _entry = "explain"
    _row, _libraries, _has_answers = CATALOG["ProtoDash"], ("aix360",), True
    _no_options = frozenset({"self", "X", "Y"})

    def __init__(self, public: Any = None, *, hardening: Hardening | None = None) -> None:
        self.hardening = hardening_or_default(hardening, Hardening.ranked)
        if public is None:
            raise ConfigurationTypeError(
                "expected public rows to choose prototypes from, which are released: pass"
                " ProtodashExplainer(public=rows) or harden(native, public=rows)"
            )
        self.public = _rows("public", public).copy()
        if len(self.public) < 3:
            raise InputError(f"expected at least 3 public rows to choose from, got {len(self.public)}")
        self.public.flags.writeable = False

    @classmethod
    def around(cls, native: Any, hardening: Hardening | None = None, **options: Any) -> Self:
        """The hardened version of a native explainer, which has no state."""
        return cls(hardening=hardening, **options)

    @property
    def _native(self) -> Any:
        return CATALOG["ProtoDash"].native

    def explain(
        self,
        X: Any,
        Y: Any = None,
        m: int = 10,
        kernelType: Literal["other", "linear", "Gaussian"] = "other",
        sigma: float = 2,
        optimizer: Literal["cvxpy", "osqp"] = "cvxpy",
    ) -> tuple[Rows, Rows, Rows]:
        """Choose m public rows that represent the rows of X together, and weigh them.

        Args:
            X: rows to explain (q, d): one instance, or a set to summarise.
            Y: candidates, if not all of `public`: any of its rows in any order.
            m: number of prototypes, less than the number of candidates.
            kernelType: "other" (or "linear") for the inner product, "Gaussian" for exp(-|x - y|^2 / (2 sigma^2)).
            sigma: width of the Gaussian kernel.
            optimizer: "cvxpy" or "osqp"; both solve the same problem, and share the noise.

        Returns:
            W, S, V as natively: W (m,) the hardened weights, none below zero; S (m,) the indices of the prototypes in
                Y, or in `public` without Y, in the order of their selection; V (m,) NaN in place of the objective
                values. With `Hardening.none()` W and S are the native ones.

        Raises:
            RefusedError: a row of Y is not public.
            InputError: an array or option cannot be used.
        """
        options: dict[str, Any] = {"m": m, "kernelType": kernelType, "sigma": sigma, "optimizer": optimizer}
        if self._pinned is not None:
            X, usual = self._rows(X), inspect.signature(self.explain).parameters
            given = {name: value for name, value in options.items() if value != usual[name].default}
            options = self._pinned.complete(self._signature(), given, frozenset())
            if Y is not None or len(X) != 1:
                raise RefusedError(
                    "expected one row, and no Y: ProtoDash was audited so, with all public rows as candidates"
                )
        return self._explain(X, Y, **options)

    def _explain(
        self, X: Any, Y: Any = None, m: int = 10, kernelType: str = "other", sigma: float = 2, optimizer: str = "cvxpy"
    ) -> tuple[Rows, Rows, Rows]:
        X, candidates = _rows("X", X), self.public if Y is None else _rows("Y", Y)
        if Y is not None:
            self._check_public(candidates)
        _check_options(X, candidates, m, kernelType, sigma, optimizer)
        gaussian, exact = kernelType == "Gaussian", self.hardening.is_none
        if not exact:
            X = as_hashed(torch.from_numpy(np.array(X))).numpy()
            X = X if gaussian else X.mean(axis=0, keepdims=True)
        native = self._native().explain(X, candidates, m, kernelType, sigma, optimizer)
        weights, chosen = np.array(native[0]), np.array(native[1])
        if not exact:
            kernel = f"Gaussian {float(sigma)!r}" if gaussian else "linear"
            weights = self._harden(weights, _query(X, gaussian), [_digest(row) for row in candidates[chosen]], kernel)
        return weights, chosen, np.full(m, np.nan)

    @classmethod
    def _of_model(cls, forward: nn.Module, made: TableExplainerFactory, hardening: Hardening) -> Self:
        assert made.background is not None
        return cls(made.background.rows, hardening=hardening)

    def _numbers(self, row: Rows, target: int, options: Mapping[str, Any]) -> Rows:
        weights, chosen, _ = self._explain(row[None], **options)
        numbers = np.zeros((2, len(self.public)))
        numbers[0, chosen] = np.arange(len(chosen), 0, -1) / len(chosen)
        numbers[1, chosen] = weights
        return numbers.reshape(-1)

    def _to_answer(self, numbers: Rows) -> dict[str, Any]:
        places, weights = numbers.reshape(2, -1)
        chosen = np.argsort(-places, kind="stable")[: int((places > 0).sum())]
        return {
            "prototypes": chosen.tolist(),
            "rows": self.public[chosen].tolist(),
            "weights": weights[chosen].tolist(),
        }

    def _check_public(self, candidates: Rows) -> None:
        public = set(map(_digest, self.public))
        if others := sum(_digest(row) not in public for row in candidates):
            raise RefusedError(
                f"Y: expected rows of the declared public set, got {others} of {len(candidates)} others, which answers"
                " would reveal. Leave Y out, or declare these rows public: HardenedProtoDash(public=...)"
            )

    def _harden(self, weights: Rows, query: Tensor, prototypes: list[bytes], kernel: str) -> Rows:
        """Hardened weights, whose noise is a function of the query and the prototypes, like the weights themselves."""
        raw = torch.from_numpy(np.maximum(weights, 0))[None]
        named = hashlib.blake2b(b"".join(prototypes)).hexdigest()
        hardened = self.hardening(raw, inputs=query, method=f"ProtoDash {kernel} {named}")
        return hardened[0].clamp(min=0).numpy().copy()


def _rows(name: str, values: Any) -> Rows:
    rows = np.asarray(values)
    if rows.dtype.kind in "biu":  # natively, products of uint8 overflow
        rows = rows.astype(np.float64)
    if rows.ndim != 2 or not rows.size or rows.dtype.kind != "f" or not np.isfinite(rows).all():
        found = "NaN or infinity" if rows.dtype.kind == "f" and not np.isfinite(rows).all() else rows.shape
        raise InputError(f"{name} must be a (rows, features) array of finite numbers, got {rows.dtype} {found}")
    return rows


def _check_options(X: Rows, candidates: Rows, m: int, kernelType: str, sigma: float, optimizer: str) -> None:
    """InputError for options that natively fail silently or mean something else."""
    if X.shape[1] != candidates.shape[1]:
        raise InputError(f"X must have the {candidates.shape[1]} features of the candidates, got {X.shape[1]}")
    if not isinstance(m, int | np.integer) or not 1 <= m < len(candidates):
        raise InputError(f"m must be a whole number from 1 to {len(candidates) - 1}, one less than rows, got {m!r}")
    if kernelType not in ("Gaussian", "other", "linear"):  # natively, "gaussian" is silently the linear kernel
        raise InputError(f"kernelType must be 'Gaussian', 'other' or 'linear', got {kernelType!r}")
    if optimizer not in ("cvxpy", "osqp"):
        raise InputError(f"optimizer must be 'cvxpy' or 'osqp', got {optimizer!r}")
    if not math.isfinite(sigma) or sigma <= 0:
        raise InputError(f"sigma must be a finite number above 0, got {sigma!r}")


def _digest(row: Rows) -> bytes:
    return hashlib.blake2b((row.astype(np.float64) + 0.0).tobytes(), digest_size=16).digest()


def _query(X: Rows, gaussian: bool) -> Tensor:
    """The query as one input: the same for another order of X and for repetitions of X."""
    if not gaussian:
        return torch.from_numpy(X.mean(axis=0, keepdims=True))
    counts = Counter(hashlib.blake2b((row.astype(np.float32) + 0.0).tobytes()).digest() for row in X)
    once = math.gcd(*counts.values())
    combined = hashlib.blake2b(digest_size=32)
    for row in sorted(counts):
        combined.update(row + (counts[row] // once).to_bytes(8, "little"))
    return torch.from_numpy(np.frombuffer(combined.digest(), dtype=np.int64).copy())[None]
