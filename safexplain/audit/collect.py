"""Asking models: every model is asked about every example, and what an attacker would see is kept.

Of each map that comes back, summaries are kept: numbers that an attack can compare between models. `l1`, `l2` and
`variance` tell how large a map is. The others do not change when the map is multiplied by a positive number: they
survive clipping to a norm and normalisation, and tell how a map is shaped. Each of these is 0 for a map of zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain._progress import Progress, silent
from safexplain.audit.population import Population
from safexplain.audit.queries import NearDuplicates, Queries, averaged
from safexplain.audit.references.shadows import Shadows
from safexplain.audit.signals import Signals
from safexplain.errors import InputError
from safexplain.outputs import are_probabilities


def _l1(a: Tensor) -> Tensor:
    return a.abs().sum(1)


def _l2(a: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(a, dim=1)
    return norm


def _by_rms(numbers: Tensor, a: Tensor) -> Tensor:
    rms = _l2(a) / a.shape[1] ** 0.5
    return torch.where(rms > 0, numbers / rms, 0.0)


SUMMARIES: dict[str, Callable[[Tensor], Tensor]] = {
    "l1": _l1,
    "l2": _l2,
    "variance": lambda a: a.var(1, correction=0),
    "mean": lambda a: _by_rms(a.mean(1), a),
    "positive": lambda a: (a > 0).double().mean(1),
    "support": lambda a: (a != 0).double().mean(1),
    "sparsity": lambda a: _by_rms(a.abs().mean(1), a),
    "peak": lambda a: _by_rms(a.abs().amax(1), a),
}
"""Name -> function of maps (batch, d), giving (batch,). With RMS = sqrt(mean a_j^2):

    l1        sum |a_j|
    l2        sqrt(sum a_j^2)
    variance  mean (a_j - mean a)^2 over all entries (Huang et al., Algorithm 1)
    mean      (mean a_j) / RMS, from -1 to 1
    positive  share of entries above 0
    support   share of entries that are not 0
    sparsity  l1 / (l2 sqrt d) = (mean |a_j|) / RMS: 1 where all |a_j| are equal, 1 / sqrt(d) where one entry is not 0
              (the ratio in Hoyer's measure, JMLR 5 (2004), section 3.1)
    peak      (max |a_j|) / RMS, from 1 to sqrt(d)
"""


def summarise(maps: Tensor, names: Sequence[str] = tuple(SUMMARIES)) -> dict[str, Tensor]:
    """The summaries of each map.

    Args:
        maps: (batch, ...), flattened to (batch, d) and taken as float64.
        names: which summaries, of `SUMMARIES`.

    Returns:
        Name -> (batch,) float64, on the device of the maps.
    """
    rows = maps.reshape(len(maps), -1).double()
    return {name: SUMMARIES[name](rows) for name in names}


Explain = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""explain(model, x, target) -> attributions (batch, ...): native or hardened, from any library."""

CLASS_SUMMARIES = ("l1", "l2", "mean")
"""What is kept of the explanation of each of several classes."""


def collect_signals(
    shadows: Shadows,
    population: Population,
    explain: Explain | Sequence[Explain],
    *,
    batch_size: int = 256,
    keep_attributions: bool = True,
    keep_inputs: bool = False,
    queries: Queries | None = None,
    classes: Sequence[int] | None = None,
    targets: tuple[int, ...] | None = None,
    null: Sequence[int] = (),
    out_of_distribution: NDArray[np.bool_] | None = None,
    meta: Mapping[str, Any] | None = None,
    progress: Progress = silent,
) -> Signals:
    """Ask every model about every example and keep what an attacker would see.

    What is explained is the class predicted for the plain example, also where near-duplicates are asked about. Signals:

        l1, l2, ...                  the summaries of the released map (`safexplain.audit.collect`)
        repeated_l1, ...             the same of the map averaged over the plain answer and `queries.repeats` more;
                                     not there if the first batch of every model got the same answers again
        near_l1, ...                 the same of the map averaged over the plain answer and `queries.near`
                                     near-duplicates; `near_map` is the map itself
        class_l1, class_l2,          summaries of the explanations of each of `classes`, k numbers an example
        class_mean
        label                        the predicted class
        loss                         -log p_y of the true label y; more than an explanation alone releases
        margin                       log p_y - log(1 - p_y), the logit scaling of LiRA (arXiv 2112.03570, section IV-C)

    Probabilities are taken as at least 1e-30 where a model returns them instead of logits.

    Args:
        shadows: m models with membership over `population`.
        population: the pool of n examples.
        explain: see `Explain`, called with float32 batches on the model's device and class indices; or one a model.
        batch_size: examples a call.
        keep_attributions: also keep the whole maps, (m, n, d) float32.
        keep_inputs: also keep what was asked about.
        queries: what else an adaptive attacker asks; None: nothing.
        classes: indices of outputs that are explained for every example, beside the predicted one.
        targets: models that may be attacked; None: all trained ones.
        null: models that are untrained and have no members.
        out_of_distribution: (n,) bool, examples from another source that no model was trained on.
        meta: kept in the file; `shape` (of one map) and `population` (its digest) are added.
        progress: told after each query of a batch, of all queries.

    Raises:
        InputError: membership does not fit the population, `null` or `out_of_distribution`; an explanation is not
            finite, of shape (batch, ...), the same for all; the model's outputs are not finite or too few.
    """
    m, n = shadows.membership.shape
    if n != len(population):
        raise InputError(f"membership is over {n} examples, the population has {len(population)}")
    releases = [explain] * m if callable(explain) else list(explain)
    if len(releases) != m:
        raise InputError(f"expected one explain, or one for each of {m} models; got {len(releases)}")
    queries, classes = queries or Queries.none(), [] if classes is None else [int(c) for c in classes]
    about: dict[str, Any] = {**(meta or {}), "population": population.digest()}
    options = {"targets": targets, "null": list(null) or None, "classes": classes or None}
    about |= {name: [int(i) for i in listed] for name, listed in options.items() if listed is not None}
    if queries != Queries.none():
        about["queries"] = asdict(queries)
    beside: dict[str, Any] = {"out_of_distribution": out_of_distribution}
    Signals(shadows.membership, {"label": np.zeros((m, n))}, None, about, **beside)  # refused before anything long

    oracle = _Oracle(shadows.models, releases, progress, m * n * (1 + len(classes) + queries.repeats + queries.near))
    near = NearDuplicates.of(population, queries)
    scalars, maps = _Table(m, n, np.float64), _Table(m, n, np.float32)
    fresh = [False] * m
    for i, model in enumerate(shadows.models):
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        for start in range(0, n, batch_size):
            part = range(start, min(start + batch_size, n))
            examples, labels = population.x[start : part.stop], population.y[start : part.stop]
            x = examples.to(device)
            seen = _predict(model, x, labels.to(device), classes)
            plain = oracle.ask(i, x, seen.label)
            own = summarise(plain)
            found = {**own, **seen._asdict()}
            if classes:
                asked = (oracle.ask(i, x, torch.full_like(seen.label, c)) for c in classes)
                several = [summarise(a, CLASS_SUMMARIES) for a in asked]
                found |= {f"class_{s}": torch.stack([one[s] for one in several], dim=1) for s in CLASS_SUMMARIES}
            if queries.repeats and (start == 0 or fresh[i]):
                mean, differs = averaged(plain, (oracle.ask(i, x, seen.label) for _ in range(queries.repeats)))
                fresh[i] |= differs
                found |= {f"repeated_{s}": v for s, v in summarise(mean).items()}
            elif queries.repeats:
                oracle.count(len(x) * queries.repeats)
                found |= {f"repeated_{s}": v for s, v in own.items()}
            if queries.near:
                duplicates = ((to.to(device), back) for to, back in near(examples, part))
                mean, _ = averaged(plain, (back(oracle.ask(i, to, seen.label)) for to, back in duplicates))
                found |= {f"near_{s}": v for s, v in summarise(mean).items()}
                if queries.keep_maps:
                    maps.put(i, part, {"near_map": mean.reshape(len(mean), -1)})
            scalars.put(i, part, found)
            if keep_attributions:
                maps.put(i, part, {"attributions": plain.reshape(len(plain), -1)})
    if not any(fresh):
        scalars.arrays = {s: a for s, a in scalars.arrays.items() if not s.startswith("repeated_")}
    if keep_inputs:
        beside["inputs"] = population.x.cpu().numpy()
    whole = maps.arrays.pop("attributions", None)
    about["shape"] = list(oracle.shape or ())
    return Signals(shadows.membership, {**scalars.arrays, **maps.arrays}, whole, about, **beside)


@dataclass(eq=False)
class _Oracle:
    """Asks for explanations, checks them and counts the queries."""

    models: Sequence[nn.Module]
    releases: Sequence[Explain]
    progress: Progress
    total: int
    done: int = 0
    shape: torch.Size | None = None

    def ask(self, i: int, x: Tensor, target: Tensor) -> Tensor:
        a = self.releases[i](self.models[i], x, target)
        if not isinstance(a, Tensor) or a.shape[:1] != x.shape[:1] or not bool(torch.isfinite(a).all()):
            got = tuple(a.shape) if isinstance(a, Tensor) else type(a).__name__
            raise InputError(f"explanations must be finite, of shape ({len(x)}, ...); got {got} from model {i}")
        if self.shape is None:
            self.shape = a.shape[1:]
        if a.shape[1:] != self.shape or not self.shape.numel():
            raise InputError(f"maps must all have one shape, not empty; got {list(a.shape[1:])}, {list(self.shape)}")
        self.count(len(x))
        return a.detach()

    def count(self, queries: int) -> None:
        self.done += queries
        self.progress("explaining", self.done, self.total)


class _Table:
    """Arrays (m, n, ...) that are filled batch by batch, with one move from the device for each."""

    def __init__(self, m: int, n: int, dtype: type[np.floating[Any]]) -> None:
        self.size, self.dtype = (m, n), dtype
        self.arrays: dict[str, NDArray[np.floating[Any]]] = {}

    def put(self, i: int, part: range, found: Mapping[str, Tensor]) -> None:
        kind = torch.float32 if self.dtype is np.float32 else torch.float64
        moved = torch.cat([v.reshape(len(part), -1).to(kind) for v in found.values()], dim=1).cpu().numpy()
        column = 0
        for name, v in found.items():
            after = column + v[0].numel()
            if name not in self.arrays:
                self.arrays[name] = np.zeros((*self.size, *v.shape[1:]), self.dtype)
            self.arrays[name][i, part.start : part.stop] = moved[:, column:after].reshape(v.shape)
            column = after


class _Prediction(NamedTuple):
    label: Tensor
    loss: Tensor
    margin: Tensor


def _predict(model: nn.Module, x: Tensor, y: Tensor, classes: Sequence[int]) -> _Prediction:
    """What the outputs say of each example; outputs that are probabilities already are taken as such."""
    with torch.no_grad():
        out = model(x)
    if out.dim() != 2 or out.shape[1] < 2 or not bool(torch.isfinite(out).all()):
        raise InputError(f"expected finite outputs of shape (batch, classes >= 2), got {tuple(out.shape)}")
    last = out.shape[1] - 1
    if wrong := [c for c in classes if not 0 <= c <= last]:
        raise InputError(f"classes to explain are outputs 0 .. {last} of the model, got {wrong}")
    if int(y.max()) > last:
        raise InputError(f"labels must be outputs 0 .. {last} of the model, got {int(y.max())}")
    rows = out.double()
    scores = rows.clamp_min(1e-30).log() if are_probabilities(rows) else rows.log_softmax(1)
    own = scores.gather(1, y[:, None])[:, 0]
    others = scores.scatter(1, y[:, None], -torch.inf).logsumexp(1)
    return _Prediction(out.argmax(1), -own, own - others)
