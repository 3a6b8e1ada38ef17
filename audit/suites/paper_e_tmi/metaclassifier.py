"""Metaclassifiers: for each point a classifier of its own tells prediction vectors of members from others'.

TMI's Algorithm 3 (Abascal et al., arXiv 2306.01181, section 4.4): every answer of every reference model about a point
is a row, labelled by whether the model was trained on the point; a classifier of these rows reads the target's answers.
The released code trains one network after the other, each with a data loader of its own. Here all points are one
batched computation: their weights are stacked, and the order of the rows, the dropout and the initial weights are the
same for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from safexplain._validate import check_number, check_whole
from safexplain.audit.attacks.base import Bools, Floats, check_signals
from safexplain.audit.attacks.likelihood import two_sided
from safexplain.errors import ConfigurationError, InputError

from .transfer import numbers_a_query

WIDTH, DROPOUT = 64, 0.5
"""Of the network: hidden units, and the share of them that is left out of a training step."""

LR, WEIGHT_DECAY, BATCH = 5e-3, 5e-4, 64
"""Of Adam, as released; the rate is multiplied by `LR_FACTOR` after every `LR_EPOCHS` epochs."""

LR_EPOCHS, LR_FACTOR = 7, 0.9

CLIP = 10.0
"""Largest standardised number."""

TOGETHER = {"cpu": 64, "cuda": 4096}
"""Networks trained at once, at most: on a processor their hidden units stay in its cache."""

MOST_ROWS = 1 << 16
"""Rows that are taken `BATCH` at a time; with more of them the steps are larger, so that an epoch has no more steps."""

CHUNK = 1 << 24
"""Numbers of the references held in double precision at a time."""

NEWTON_STEPS = 50
"""Of a logistic regression, at most."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Metaclassifier:
    """A classifier of prediction vectors, trained on those of the reference models, reads the target's.

    The score is a log odds of membership, less that of the share of the references that were trained on the point, and
    is averaged over the queries. It is not turned into a probability: near 0 and 1 these are equal in floating point, a
    threshold at few false positives lies just there, and scaling them within a target, as the released code does,
    makes the points of different targets incomparable. The paper averages probabilities.

    Args:
        kind: "mlp": Linear-ReLU-Dropout-Linear trained by Adam, as released; "logistic": a penalised logistic
            regression; "knn": the members among the nearest rows, with one of the expected kind added.
        per_example: False: one classifier for all points, for references that were all trained on the same points (the
            paper's language models, section 5.5). Each half of the points is scored by a classifier of the other half's
            rows: a point's own rows would only tell what the references' membership says already.
        queries: how many answers a point has, one after the other.
        scale: "standard": every number less its mean, divided by its deviation, over the rows of a classifier, and cut
            off at `CLIP`; "unit": vectors longer than 1 are shortened to 1, as released.
        neighbours: of "knn": how many; "sqrt": the square root of the number of rows; "models": that of the references.
        penalty: of "logistic": of half the squared weights of the scaled numbers, the loss being the sum over the rows.
        epochs: of "mlp".
        seed: of the initial weights, the order of the rows, the dropout and the halves.
        device: of "mlp" and "logistic"; "auto" takes a CUDA device when there is one.

    Raises:
        ConfigurationError: an unknown name, or a value out of range.
    """

    kind: Literal["mlp", "logistic", "knn"] = "mlp"
    per_example: bool = True
    queries: int = 1
    scale: Literal["standard", "unit"] = "standard"
    neighbours: int | Literal["sqrt", "models"] = "sqrt"
    penalty: float = 1.0
    epochs: int = 20
    seed: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.kind not in ("mlp", "logistic", "knn"):
            raise ConfigurationError(f"kind is mlp, logistic or knn, got {self.kind!r}")
        if not isinstance(self.per_example, bool):
            raise ConfigurationError(f"per_example is True or False, got {self.per_example!r}")
        if self.scale not in ("standard", "unit"):
            raise ConfigurationError(f"scale is standard or unit, got {self.scale!r}")
        if self.neighbours not in ("sqrt", "models"):
            check_whole("neighbours", self.neighbours, 1)
        check_number("penalty", self.penalty, above=0)
        for name, low in (("queries", 1), ("epochs", 1), ("seed", 0)):
            check_whole(name, getattr(self, name), low)

    def __call__(self, target: Floats, shadows: Floats, membership: Bools) -> Array:
        """Score every point; higher says "member".

        Args:
            target: (n, queries * k) numbers of the target model, such as the log odds that it gives to each of its k
                classes: those of the first query, then those of the second, and so on; (n,) for one number.
            shadows: (m, n, queries * k) or (m, n), the same of reference models.
            membership: (m, n) bool.

        Returns:
            (n,) mean log odds; 0 where no reference model was trained with, or none without, the point, unless there is
            one classifier for all points.

        Raises:
            InputError: shapes disagree, values are not finite, the width is not a multiple of `queries`, no example has
                references on both sides, or (one classifier for all points) half of the points have members or
                non-members only.
        """
        target, shadows, membership = check_signals(target, shadows, membership)
        if target.ndim == 1:
            target, shadows = target[:, None], shadows[:, :, None]
        numbers_a_query(target.shape[1], self.queries)
        return (self._each if self.per_example else self._all)(target, shadows, membership)

    def _each(self, target: Floats, shadows: Floats, membership: Bools) -> Array:
        """A classifier a point."""
        points = np.flatnonzero(two_sided(membership))
        m, scores = len(membership), np.zeros(len(target))
        step = max(1, CHUNK // (m * target.shape[1]))
        for start in range(0, len(points), step):
            part = points[start : start + step]
            rows = _rows(shadows[:, part], self.queries)
            asked = _rows(target[None, part], self.queries)
            label = np.repeat(membership[:, part].T, self.queries, axis=1)
            scores[part] = self._scores(rows, label, asked)
        return scores

    def _all(self, target: Floats, shadows: Floats, membership: Bools) -> Array:
        """A classifier for each half of the points, trained on the other half."""
        n = len(target)
        if n < 2:
            raise InputError(f"one classifier for all points needs at least 2 of them, got {n}")
        first = np.zeros(n, dtype=bool)
        first[np.random.default_rng([self.seed, 0x7311]).permutation(n)[: n // 2]] = True
        scores = np.zeros(n)
        for fit in (first, ~first):
            member = membership[:, fit]
            if member.all() or not member.any():
                raise InputError("one half of the points has members only, or none; give more points")
            rows = _rows(shadows[:, fit], self.queries).reshape(1, -1, target.shape[1] // self.queries)
            label = np.repeat(member.T, self.queries, axis=1).reshape(1, -1)
            asked = _rows(target[None, ~fit], self.queries)
            scores[~fit] = self._scores(rows, label, asked.reshape(1, -1, rows.shape[2]), len(membership), len(asked))
        return scores

    def _scores(self, rows: Array, label: Bools, asked: Array, models: int = 0, points: int = 0) -> Array:
        """(c,) scores of c classifiers, or (points,) of one; classifier i learns rows[i] (R, k) and is asked (q, k)."""
        rows, asked = self._scaled(rows, asked)
        if self.kind == "knn":
            wanted = {"sqrt": round(math.sqrt(rows.shape[1])), "models": models or rows.shape[1] // self.queries}
            near = self.neighbours if isinstance(self.neighbours, int) else wanted[self.neighbours]
            odds = _nearest(rows, label, asked, min(max(near, 1), rows.shape[1]))
        else:
            odds = self._mlp(rows, label, asked) if self.kind == "mlp" else self._logistic(rows, label, asked)
            share = label.mean(1)[:, None]
            odds = odds - np.log(share / (1 - share))
        out: Array = odds.reshape(points or len(odds), -1).mean(1)
        return out

    def _scaled(self, rows: Array, asked: Array) -> tuple[Array, Array]:
        """Both on the scale that is fitted to the rows."""
        if self.scale == "unit":
            return _shortened(rows), _shortened(asked)
        largest = np.abs(rows).max(1, keepdims=True)
        unit = np.where(largest > 0, largest, 1.0)  # squares of what is at most 1 neither overflow nor vanish
        centre = (rows / unit).mean(1, keepdims=True)
        deviation = (rows / unit).std(1, keepdims=True)
        still = deviation <= 1e-9
        spread = np.where(still, np.inf, deviation)
        with np.errstate(over="ignore"):
            one, many = (
                np.clip((np.clip(a / unit, -1e100, 1e100) - centre) / spread, -CLIP, CLIP) for a in (rows, asked)
            )
        return one, many

    def _mlp(self, rows: Array, label: Bools, asked: Array) -> Array:
        """(c, q) log odds."""
        device = _device(self.device)
        together = max(1, min(TOGETHER["cuda" if device.type == "cuda" else "cpu"], (1 << 28) // rows[0].size))
        out = np.empty(asked.shape[:2])
        for start in range(0, len(rows), together):
            part = slice(start, start + together)
            x = torch.from_numpy(rows[part]).to(device, torch.float32)
            y = torch.from_numpy(label[part]).to(device, torch.float32)
            networks = _Networks(x.shape[2], len(x), torch.Generator().manual_seed(self.seed), device)
            networks.train(x, y, self.epochs)
            out[part] = (
                networks.log_odds(torch.from_numpy(asked[part]).to(device, torch.float32)).double().cpu().numpy()
            )
        return out

    def _logistic(self, rows: Array, label: Bools, asked: Array) -> Array:
        """(c, q) log odds of the penalised logistic regressions, by Newton's method for all of them at once."""
        device = _device(self.device)
        out = np.empty(asked.shape[:2])
        step = max(1, (1 << 18) // rows[0].size)  # what stays in a processor's cache
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            x, t = (torch.from_numpy(a[part]).to(device, torch.float64) for a in (rows, asked))
            if x.shape[2] > x.shape[1]:  # the weights are combinations of the rows: so many coordinates say all
                span = torch.linalg.qr(x.transpose(1, 2)).Q
                x, t = x @ span, t @ span
            x, t = _with_one(x), _with_one(t)
            y = torch.from_numpy(label[part]).to(device, torch.float64)
            w = _newton(x, y, self.penalty)
            out[part] = (t @ w[:, :, None])[:, :, 0].cpu().numpy()
        return out


def _device(name: str) -> torch.device:
    """The torch device; "auto" takes a CUDA device when there is one."""
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)


def _rows(values: Floats, queries: int) -> Array:
    """(n, m * queries, k) of (m, n, queries * k): the answers about each point, model after model, in float64."""
    m, n, width = values.shape
    return np.array(values.transpose(1, 0, 2), dtype=np.float64).reshape(n, m * queries, width // queries)


def _shortened(x: Array) -> Array:
    """Vectors of length at most 1."""
    largest = np.maximum(np.abs(x).max(-1, keepdims=True), 1.0)
    part = x / largest
    length = np.sqrt(np.square(part).sum(-1, keepdims=True))
    out: Array = part / np.maximum(length, 1 / largest)
    return out


def _with_one(x: Tensor) -> Tensor:
    return torch.cat([x, x.new_ones((*x.shape[:-1], 1))], -1)


# -------------------------------------------------------------------------------------------- nearest neighbours


def _nearest(rows: Array, label: Bools, asked: Array, near: int) -> Array:
    """(c, q) log odds of the members among the `near` nearest rows, less those of all rows.

    One row is added, a member as far as the rows are members: log ((s + p) / (near - s + 1 - p)) - log (p / (1 - p)).
    """
    share = label.mean(1)[:, None]
    if len(rows) == 1:
        from sklearn.neighbors import KNeighborsClassifier

        fitted = KNeighborsClassifier(near).fit(rows[0], label[0])
        members = fitted.predict_proba(asked[0])[:, fitted.classes_.tolist().index(True)][None] * near
    else:
        members = np.empty(asked.shape[:2])
        step = max(1, (1 << 22) // (rows.shape[1] * asked.shape[1]))
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            x, t = torch.from_numpy(rows[part]), torch.from_numpy(asked[part])
            away = torch.cdist(t, x, compute_mode="donot_use_mm_for_euclid_dist")
            at = away.topk(near, dim=2, largest=False).indices.numpy()
            members[part] = np.take_along_axis(label[part][:, None], at, axis=2).sum(2)
    out: Array = np.log((members + share) / (near - members + 1 - share)) - np.log(share / (1 - share))
    return out


# ---------------------------------------------------------------------------------------------------- regressions


def _newton(x: Tensor, y: Tensor, penalty: float) -> Tensor:
    """(c, k + 1) weights of c logistic regressions; the last column of x (c, R, k + 1) is 1, its weight not penalised.

    A step that would raise the loss of a regression is halved for that one until it does not.
    """
    c, _, k = x.shape
    ridge = torch.full((k,), float(penalty), dtype=x.dtype, device=x.device)
    ridge[-1] = 0.0
    w = x.new_zeros((c, k))

    def loss(w: Tensor) -> Tensor:
        odds = (w[:, None] @ x.transpose(1, 2))[:, 0]
        return (torch.nn.functional.softplus(odds) - y * odds).sum(1) + 0.5 * (ridge * w * w).sum(1)

    now = loss(w)
    for _ in range(NEWTON_STEPS):
        p = torch.sigmoid((w[:, None] @ x.transpose(1, 2))[:, 0])
        slope = ((p - y)[:, None] @ x)[:, 0] + ridge * w
        curve = x.transpose(1, 2) @ (x * (p * (1 - p))[:, :, None]) + torch.diag(ridge + 1e-9)
        step = torch.linalg.solve(curve, slope)
        share = torch.ones_like(now)
        for _ in range(30):
            then = loss(w - share[:, None] * step)
            worse = ~(then <= now)
            if not worse.any():
                break
            share = torch.where(worse, share / 2, share)
        else:
            share, then = torch.where(worse, 0.0, share), torch.where(worse, now, then)
        w, gained, now = w - share[:, None] * step, now - then, then
        if float((gained / (1 + now.abs())).max()) < 1e-12:
            break
    return w


# ------------------------------------------------------------------------------------------------------- networks


class _Networks:
    """`count` networks Linear(k, 64)-ReLU-Dropout-Linear(64, 2) that start alike, their gradients written by hand.

    With u = z_1 - z_0 the difference of the two outputs and v that of their weights, d = (sigmoid(u) - y) / batch is
    the gradient of the cross-entropy by z_1, and -d that by z_0. The gradient of the first layer is

        dW = x^T (d v^T * 1[h > 0]) / (1 - DROPOUT) = ((x * d)^T 1[h > 0]) * v / (1 - DROPOUT),

    a bmm of what is in cache already; biases are the weights of a last column of 1. All parameters of a network are one
    row of one matrix, so that Adam is a few operations on that.
    """

    def __init__(self, k: int, count: int, generator: torch.Generator, device: torch.device) -> None:
        self.generator, self.device = generator, device
        first = _uniform((k + 1, WIDTH), k, generator)
        second = _uniform((2, WIDTH), WIDTH, generator)
        bias = _uniform((2,), WIDTH, generator)
        start = torch.cat([first.flatten(), second.flatten(), bias])
        self.parameters = start.repeat(count, 1).to(device)
        self.first, self.second, self.bias = self._views(self.parameters, k)
        self.k = k

    @staticmethod
    def _views(flat: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        end = (k + 1) * WIDTH
        return flat[:, :end].view(-1, k + 1, WIDTH), flat[:, end:-2].view(-1, 2, WIDTH), flat[:, -2:]

    def draws(self, rows: int, batch: int, epochs: int) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Of every step: its epoch, the rows (b,) in it, and what hidden units (b, 64) are multiplied with."""
        for epoch in range(epochs):
            order = torch.randperm(rows, generator=self.generator).to(self.device)
            for index in torch.split(order, batch):
                kept = torch.rand((len(index), WIDTH), generator=self.generator, dtype=torch.float32) >= DROPOUT
                yield epoch, index, (kept.float() / (1 - DROPOUT)).to(self.device)

    @torch.no_grad()
    def train(self, x: Tensor, y: Tensor, epochs: int) -> None:
        """On rows x (count, R, k) with labels y (count, R), 0 or 1."""
        rows = x.shape[1]
        batch = max(BATCH, math.ceil(rows * BATCH / MOST_ROWS))
        x = _with_one(x).transpose(0, 1).contiguous()  # taking rows is then copying pieces of memory
        y = y.T.contiguous()
        gradient = torch.empty_like(self.parameters)
        to_first, to_second, to_bias = self._views(gradient, self.k)
        adam = _Adam(self.parameters)
        rooms = {size: self._room(x, size) for size in {min(batch, rows), rows % batch} - {0}}
        for epoch, index, kept in self.draws(rows, batch, epochs):
            taken, weighed, hidden, through = rooms[len(index)]
            xs, ys = torch.index_select(x, 0, index, out=taken).transpose(0, 1), y[index].T
            torch.bmm(xs, self.first, out=hidden).clamp_(min=0).mul_(kept)
            v = self.second[:, 1] - self.second[:, 0]
            u = torch.bmm(v[:, None], hidden.transpose(1, 2))[:, 0] + (self.bias[:, 1:] - self.bias[:, :1])
            d = torch.sigmoid_(u).sub_(ys).div_(len(index))
            to_second[:, 1] = torch.bmm(d[:, None], hidden)[:, 0]
            to_second[:, 0] = -to_second[:, 1]
            to_bias[:, 1] = d.sum(1)
            to_bias[:, 0] = -to_bias[:, 1]
            torch.mul(xs, d[:, :, None], out=weighed)
            torch.bmm(weighed.transpose(1, 2), hidden.sign_(), out=through)
            torch.mul(through, v[:, None] / (1 - DROPOUT), out=to_first)
            adam.step(gradient, LR * LR_FACTOR ** (epoch // LR_EPOCHS))

    @staticmethod
    def _room(x: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Where a step with `size` rows of x writes: new memory in every step would take longer than the products."""
        _, count, k = x.shape
        shapes = (size, count, k), (count, size, k), (count, size, WIDTH), (count, k, WIDTH)
        taken, weighed, hidden, through = (x.new_empty(shape) for shape in shapes)
        return taken, weighed, hidden, through

    @torch.no_grad()
    def log_odds(self, x: Tensor) -> Tensor:
        """(count, q) of x (count, q, k), without dropout."""
        hidden = torch.bmm(_with_one(x), self.first).clamp_(min=0)
        v = self.second[:, 1] - self.second[:, 0]
        return torch.bmm(v[:, None], hidden.transpose(1, 2))[:, 0] + (self.bias[:, 1:] - self.bias[:, :1])


def _uniform(shape: tuple[int, ...], inputs: int, generator: torch.Generator) -> Tensor:
    """Initial weights as those of `nn.Linear`."""
    return (2 * torch.rand(shape, generator=generator, dtype=torch.float32) - 1) / math.sqrt(inputs)


class _Adam:
    """`torch.optim.Adam` with weight decay, for one tensor whose gradient is given."""

    def __init__(self, parameters: Tensor) -> None:
        self.parameters = parameters
        self.mean, self.square, self.room = (torch.zeros_like(parameters) for _ in range(3))
        self.steps = 0

    def step(self, gradient: Tensor, lr: float) -> None:
        """Move the parameters; the gradient is overwritten."""
        self.steps += 1
        gradient.add_(self.parameters, alpha=WEIGHT_DECAY)
        self.mean.lerp_(gradient, 0.1)
        self.square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        torch.sqrt(self.square, out=self.room)
        self.room.div_(math.sqrt(1 - 0.999**self.steps)).add_(1e-8)
        self.parameters.addcdiv_(self.mean, self.room, value=-lr / (1 - 0.9**self.steps))
