"""TMI's attacks on prediction vectors whose classes are not those of the points' own labels (arXiv 2306.01181).

A model is pre-trained on some data and fine-tuned to another task; its classes say nothing about the labels of the
pre-training data, but the log odds that it gives to all its classes still differ with what it was pre-trained on. All
of the attacks here read the log odds of k classes, (n, queries * k): those of the first query, then those of the
second, and so on; (n,) is one number a point. References (m, ...) and their membership (m, n) are as in any attack.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from safexplain.audit.attacks import Attack, LikelihoodRatio
from safexplain.audit.attacks.base import Bools, Floats, check_signals
from safexplain.audit.attacks.likelihood import two_sided
from safexplain.errors import InputError

WIDTH, DROPOUT = 64, 0.5
"""Of the network: hidden units, and the share of them that is left out of a training step."""

LR, WEIGHT_DECAY, BATCH = 5e-3, 5e-4, 64
"""Of Adam, as released; the rate is multiplied by `LR_FACTOR` after every `LR_EPOCHS` epochs."""

LR_EPOCHS, LR_FACTOR = 7, 0.9

TOGETHER = {"cpu": 64, "cuda": 4096}
"""Networks trained at once, at most: on a processor their hidden units stay in its cache."""

MOST_ROWS = 1 << 16
"""Rows that are taken `BATCH` at a time; with more of them the steps are larger, so that an epoch has no more steps."""

CHUNK = 1 << 24
"""Numbers of the references held in double precision at a time."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class AtTargetLabel:
    """The likelihood ratio of one class a point, the one that the target predicts, in all models: adapted LiRA.

    TMI, section 4.2 and Algorithm 2: the class with the target's largest log odds stands in for the true label, which
    the fine-tuned task does not have. The class is the target's for the reference models too, whatever they predict.
    """

    def __call__(self, target: Floats, shadows: Floats, membership: Bools) -> Array:
        """(n,) scores of (n, k) and (m, n, k) log odds; higher says "member".

        Raises:
            InputError: shapes disagree, values are not finite, or there are no classes.
        """
        target, shadows, membership = check_signals(target, shadows, membership)
        if target.ndim != 2 or target.shape[1] < 1:
            raise InputError(f"AtTargetLabel needs the log odds of every class, (n, k), got shape {target.shape}")
        point, label = np.arange(len(target)), target.argmax(1)
        return LikelihoodRatio("identity")(target[point, label], shadows[:, point, label], membership)


@dataclass(frozen=True)
class OverQueries:
    """Adds up an attack's scores over several queries about each point, such as augmentations of it.

    For log ratios this treats the answers as independent given membership, which they are not: the order of the points
    is that of the mean, and the size of the sum is no evidence. TMI's adapted LiRA over augmentations, with a class for
    every query, is `OverQueries(AtTargetLabel(), queries)`.
    """

    attack: Attack  # scores the answer to one query
    queries: int  # how many answers a point has, one after the other

    def __call__(self, target: Floats, shadows: Floats, membership: Bools) -> Array:
        """(n,) sums of the attack's scores; for one class it is given one number a point, (n,).

        Raises:
            InputError: shapes disagree, the width is not a multiple of `queries`, or as the attack.
        """
        target, shadows, membership = check_signals(target, shadows, membership)
        if target.ndim == 1:
            target, shadows = target[:, None], shadows[:, :, None]
        k, total = numbers_a_query(target.shape[1], self.queries), np.zeros(len(target))
        for start in range(0, self.queries * k, k):
            part = start if k == 1 else slice(start, start + k)
            total += self.attack(target[:, part], shadows[:, :, part], membership)
        return total


def numbers_a_query(width: int, queries: int) -> int:
    """k of (..., queries * k) numbers.

    Raises:
        InputError: the width is not a multiple of `queries`.
    """
    if width < queries or width % queries:
        raise InputError(
            f"expected the answers to {queries} queries one after the other, a multiple of {queries} numbers a point;"
            f" got {width}"
        )
    return width // queries


@dataclass(frozen=True)
class Metaclassifier:
    """A network a point, trained on the prediction vectors of the reference models, reads the target's.

    TMI's Algorithm 3 (section 4.4): every answer of every reference model about a point is a row, labelled by whether
    the model was trained on the point; Linear-ReLU-Dropout-Linear is trained on these rows by Adam, as released. The
    released code trains one network after the other; here all points are one batched computation: their weights are
    stacked, and the order of the rows, the dropout and the initial weights are the same for all of them.

    The score is a log odds of membership, less that of the share of the references that were trained on the point, and
    is averaged over the queries. It is not turned into a probability: near 0 and 1 these are equal in floating point, a
    threshold at few false positives lies just there, and scaling them within a target, as the released code does,
    makes the points of different targets incomparable. The paper averages probabilities. Vectors longer than 1 are
    shortened to 1, as released.
    """

    queries: int = 1  # how many answers a point has, one after the other
    epochs: int = 20  # of the training
    seed: int = 0  # of the initial weights, the order of the rows and the dropout
    device: str = "auto"  # "auto" takes a CUDA device when there is one

    def __call__(self, target: Floats, shadows: Floats, membership: Bools) -> Array:
        """(n,) mean log odds, higher says "member"; 0 where no reference model was trained with, or without, the point.

        Raises:
            InputError: shapes disagree, values are not finite, the width is not a multiple of `queries`, or no example
                has references on both sides.
        """
        target, shadows, membership = check_signals(target, shadows, membership)
        if target.ndim == 1:
            target, shadows = target[:, None], shadows[:, :, None]
        numbers_a_query(target.shape[1], self.queries)
        points, scores = np.flatnonzero(two_sided(membership)), np.zeros(len(target))
        step = max(1, CHUNK // (len(membership) * target.shape[1]))
        for start in range(0, len(points), step):
            part = points[start : start + step]
            rows, asked = (_shortened(_rows(a, self.queries)) for a in (shadows[:, part], target[None, part]))
            label = np.repeat(membership[:, part].T, self.queries, axis=1)
            share = label.mean(1)[:, None]
            scores[part] = (self._log_odds(rows, label, asked) - np.log(share / (1 - share))).mean(1)
        return scores

    def _log_odds(self, rows: Array, label: Bools, asked: Array) -> Array:
        """(c, q) of c networks; network i learns rows[i] (R, k) and is asked asked[i] (q, k)."""
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
