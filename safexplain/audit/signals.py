"""Signals: what each model released about each example, and who was a member. Also a file format (.npz)."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tokenize import TokenError
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain.audit.population import Population
from safexplain.audit.shadows import Progress, Shadows, silent
from safexplain.errors import InputError
from safexplain.outputs import are_probabilities

Explain = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""explain(model, x, target) -> attributions (batch, ...): native or hardened, from any library."""

RESERVED = ("membership", "attributions", "meta")

_UNREADABLE = (OSError, ValueError, EOFError, MemoryError, NotImplementedError, TokenError, BadZipFile, zlib.error)
"""What NumPy and zipfile raise on damaged files."""


@dataclass(frozen=True, eq=False)
class Signals:
    """Released numbers of m models about n examples.

    File format: an .npz with `membership` bool (m, n); one float array (m, n) a named signal (`l1`, `l2`, `variance`,
    `loss`, `label`, ...); optionally `attributions` (m, n, d) and `meta`, a JSON object as a string.
    `meta["targets"]` lists the
    models that may be attacked, by default all of them: each example is then scored once, against one of them.

    Args:
        membership: (m, n) bool.
        values: name -> (m, n) float.
        attributions: (m, n, d) float or None.
        meta: JSON-able.

    Raises:
        InputError: shapes disagree, values are not finite, or there is nothing to attack.
    """

    membership: NDArray[np.bool_]
    values: Mapping[str, NDArray[np.floating[Any]]]
    attributions: NDArray[np.floating[Any]] | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        m = self.membership
        if m.ndim != 2 or m.dtype != np.bool_:
            raise InputError(f"membership must be bool of shape (models, examples), got {m.dtype} {m.shape}")
        if not self.values and self.attributions is None:
            raise InputError("there is no signal to attack: expected arrays such as l1, l2, loss or attributions")
        for name, a in self.values.items():
            if a.shape != m.shape or a.dtype.kind not in "fiub":
                raise InputError(f"signal {name!r} must be numbers of shape {m.shape}, got {a.dtype} {a.shape}")
            if not np.isfinite(a).all():
                raise InputError(f"signal {name!r} has {int((~np.isfinite(a)).sum())} NaN or infinite values")
        a3 = self.attributions
        if a3 is not None and (a3.ndim != 3 or a3.shape[:2] != m.shape or a3.dtype.kind != "f"):
            raise InputError(f"attributions must be floats of shape {m.shape} + (features,), got {a3.dtype} {a3.shape}")
        if a3 is not None and not np.isfinite(a3).all():
            raise InputError("attributions have NaN or infinite values")
        try:
            targets = self.targets
        except (TypeError, ValueError):
            raise InputError(f"meta['targets'] must be a list of models, got {self.meta['targets']!r:.60}") from None
        if not targets or any(not 0 <= t < len(m) for t in targets):
            raise InputError(f"meta['targets'] must name models 0 .. {len(m) - 1}, got {list(targets)}")

    @property
    def targets(self) -> tuple[int, ...]:
        """The models that are attacked."""
        return tuple(int(t) for t in self.meta.get("targets", range(len(self.membership))))

    @property
    def examples(self) -> int:
        """Number of examples."""
        return int(self.membership.shape[1])

    def save(self, path: str | Path) -> None:
        """Write the .npz, all or nothing.

        Raises:
            InputError: it cannot be written.
        """
        path = Path(path)
        arrays: dict[str, Any] = {
            **self.values,
            "membership": self.membership,
            "meta": np.array(json.dumps(self.meta)),
        }
        if self.attributions is not None:
            arrays["attributions"] = self.attributions
        partial = path.with_name(path.name + ".partial.npz")
        try:
            np.savez_compressed(partial, **arrays)
            partial.replace(path)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise InputError(f"cannot write {path}: {error.strerror or error}") from None

    @classmethod
    def load(cls, path: str | Path) -> Signals:
        """Read an .npz in the format above; pickled arrays are refused.

        Raises:
            InputError: missing, not an .npz, without membership, or as the constructor.
        """
        try:
            file = np.load(path, allow_pickle=False)
            if isinstance(file, np.ndarray):
                raise InputError(f"{path} is a single array; expected an .npz with membership and signals")
            with file:
                arrays = {name: file[name] for name in file.files}
        except FileNotFoundError:
            raise InputError(f"no such file: {path}") from None
        except InputError:
            raise
        except _UNREADABLE as error:
            raise InputError(f"{path} is not a readable .npz of plain arrays ({error})") from None
        if "membership" not in arrays:
            raise InputError(f"{path} has no array 'membership' (bool, models x examples); found {sorted(arrays)}")
        member = arrays["membership"]
        if member.dtype != np.bool_ and np.isin(member, (0, 1)).all():
            member = member.astype(bool)
        values = {k: v for k, v in arrays.items() if k not in RESERVED}
        return cls(member, values, arrays.get("attributions"), _meta(path, arrays.get("meta")))


def collect_signals(
    shadows: Shadows,
    population: Population,
    explain: Explain,
    *,
    batch_size: int = 256,
    keep_attributions: bool = True,
    targets: tuple[int, ...] | None = None,
    meta: Mapping[str, Any] | None = None,
    progress: Progress = silent,
) -> Signals:
    """Ask every model about every example and keep what an attacker would see.

    Signals of the explanation a (flattened to d numbers): l1 = sum |a_j|, l2 = sqrt(sum a_j^2), variance = mean of
    (a_j - mean a)^2 (Huang et al., Algorithm 1, over all entries). Beside it: label (the predicted class, which is also
    what is explained) and loss (cross-entropy on the true label; more than an explanation alone releases).

    Args:
        shadows: models with membership over `population`.
        population: the pool.
        explain: see `Explain`; called with float32 batches on the model's device and the predicted classes.
        batch_size: examples a call.
        keep_attributions: also keep the whole maps, (m, n, d) float32.
        targets: models that may be attacked; None: all.
        meta: kept in the file.
        progress: told after each batch.

    Raises:
        InputError: an explanation is not of shape (batch, ...) or not finite, or the model's outputs are not.
    """
    m, n = shadows.membership.shape
    values = {name: np.zeros((m, n), np.float64) for name in ("l1", "l2", "variance", "label", "loss")}
    maps: NDArray[np.float32] | None = None
    for i, model in enumerate(shadows.models):
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        for start in range(0, n, batch_size):
            part = slice(start, start + batch_size)
            x, y = population.x[part].to(device), population.y[part].to(device)
            label, loss = _predict(model, x, y)
            a = explain(model, x, label).detach()
            if a.shape[:1] != x.shape[:1] or not bool(torch.isfinite(a).all()):
                raise InputError(f"explanations must be finite, of shape ({len(x)}, ...); got {tuple(a.shape)}")
            rows = a.reshape(len(a), -1).double()
            found = {
                "l1": rows.abs().sum(1),
                "l2": torch.linalg.vector_norm(rows, dim=1),
                "variance": rows.var(1, correction=0),
                "label": label,
                "loss": loss,
            }
            for name, v in found.items():
                values[name][i, part] = v.cpu().numpy()
            if keep_attributions:
                if maps is None:
                    maps = np.zeros((m, n, rows.shape[1]), np.float32)
                maps[i, part] = rows.float().cpu().numpy()
            progress("explaining", i * n + min(start + batch_size, n), m * n)
    about = {**(meta or {}), **({} if targets is None else {"targets": list(targets)})}
    return Signals(shadows.membership, values, maps, about)


def side_by_side(parts: Sequence[Signals]) -> Signals:
    """One set of signals from audits of disjoint pools: row i holds model i of each, the examples follow each other.

    Reference models of one pool know nothing of another pool's examples, and need not: every attack looks at one
    example at a time.

    Args:
        parts: with equal numbers of models, the same signals and the same targets.

    Raises:
        InputError: they differ in one of these.
    """
    first = parts[0]
    if any(
        (len(p.membership), p.values.keys(), p.targets, _features(p))
        != (len(first.membership), first.values.keys(), first.targets, _features(first))
        for p in parts
    ):
        raise InputError("only signals with the same models, names, features and targets can be put side by side")
    maps = None if first.attributions is None else np.concatenate([np.asarray(p.attributions) for p in parts], axis=1)
    return Signals(
        np.concatenate([p.membership for p in parts], axis=1),
        {name: np.concatenate([p.values[name] for p in parts], axis=1) for name in first.values},
        maps,
        first.meta,
    )


def _features(signals: Signals) -> int | None:
    return None if signals.attributions is None else signals.attributions.shape[2]


def _predict(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Predicted class and cross-entropy of each row; outputs that are probabilities already are taken as such."""
    with torch.no_grad():
        out = model(x)
    if out.dim() != 2 or out.shape[1] < 2 or not bool(torch.isfinite(out).all()):
        raise InputError(f"expected finite outputs of shape (batch, classes >= 2), got {tuple(out.shape)}")
    rows = out.double()
    logp = rows.clamp_min(1e-30).log() if are_probabilities(rows) else rows.log_softmax(1)
    return out.argmax(1), -logp.gather(1, y[:, None])[:, 0]


def _meta(path: str | Path, raw: NDArray[Any] | None) -> dict[str, Any]:
    if raw is None:
        return {}
    try:
        meta = json.loads(str(raw))
    except ValueError:
        return {"note": str(raw)}
    if not isinstance(meta, dict):
        raise InputError(f"{path}: meta must be a JSON object, got {meta!r:.60}")
    return meta
