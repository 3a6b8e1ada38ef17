"""DP-SGD loops written by hand: a right one, and what people get wrong, each as the few lines in which it differs.

`Loop` clips the gradient of every record, adds Gaussian noise to the sum (by `noisy`, which hands the step to a white
box that watches), divides by the expected batch size and lets a torch optimizer step. Gradients of single records are
the rows of one matrix (batch, P): in closed form for the linear model of `Loop`, by `torch.autograd.grad` for the
networks of `NetworkLoop`. The method `train` of each class is what `CanaryProbe`, `WhiteBox` and `safexplain canaries`
call.
"""

# ruff: noqa: D102  (what a method does where it is replaced stands in the docstring of its class)
from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from safexplain.audit.canaries import add_noise

FEATURES, CLASSES, RARE = 5, 2, 1
"""Class `RARE` has the fewest records."""


def mlp(*middle: nn.Module) -> nn.Module:
    """A small network from public weights: they are the same in every training."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(FEATURES, 6), *middle, nn.ReLU(), nn.Linear(6, CLASSES))


def fetched(dataset: Any) -> tuple[Tensor, Tensor]:
    """All records as x (n, d) and y (n,)."""
    x, y = zip(*[dataset[i] for i in range(len(dataset))], strict=True)
    return torch.stack(x), torch.stack(y).long()


def to_norm(rows: Tensor, bound: float | Tensor) -> Tensor:
    """Rows no longer than the bound."""
    return rows * (bound / rows.norm(dim=-1, keepdim=True).clamp(min=1e-12)).clamp(max=1)


class Loop:
    """DP-SGD of a linear model as it should be.

    Attributes:
        sigma: noise multiplier; what is accounted.
        bound: C.
        lr: learning rate.
        steps: T.
        rate: q of Poisson batches; 1: all records in every batch.
    """

    sigma, bound, lr, steps, rate = 3.5, 1.0, 0.1, 8, 1.0

    mean_of_all = False
    """Whether the sum and the noise are divided by the expected batch size before they are added."""

    def __init__(self, generator: torch.Generator, step: Any = add_noise) -> None:
        self.generator, self.watched = generator, step

    @classmethod
    def train(cls, dataset: Any, generator: torch.Generator, step: Any = add_noise) -> nn.Module:
        """A model of D or D'."""
        return cls(generator, step).run(*fetched(dataset))

    @classmethod
    def clip(cls, records: int) -> float:
        """C in the units of what is handed to `step`."""
        return cls.bound / (cls.rate * records) if cls.mean_of_all else cls.bound

    @classmethod
    def accounted(cls) -> int:
        """Steps that the accountant is told of."""
        return cls.steps

    def run(self, x: Tensor, y: Tensor) -> nn.Module:
        self.expected = self.rate * len(y)
        x, y = self.prepared(x, y)
        self.model: Any = self.network(x, y)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.sizes = [p.numel() for p in self.parameters]
        self.optimizer = self.make_optimizer()
        for t in range(self.steps):
            self.t = t
            self.drawn = batch = self.batch(len(y))
            self.update(self.step(x[batch], y[batch]))
        return self.released(x, y)

    def prepared(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x, y

    def network(self, x: Tensor, y: Tensor) -> nn.Module:
        model = nn.Linear(FEATURES, CLASSES)
        for p in model.parameters():
            nn.init.zeros_(p)
        return model

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters, lr=self.lr)

    def batch(self, n: int) -> Tensor:
        """(n,) whether each record is in this step's batch."""
        return torch.rand(n, generator=self.generator) < self.rate

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        """(P,) what the optimizer is given as gradient."""
        total = self.total(self.clipped(self.gradients(x, y), y), y)
        return self.noisy(total, self.noise()) / self.expected

    def noisy(self, total: Tensor, noise: Tensor) -> Tensor:
        """(P,) the sum with its noise."""
        found: Tensor = self.watched(total, noise, self.drawn)
        return found

    @torch.no_grad()
    def gradients(self, x: Tensor, y: Tensor) -> Tensor:
        """(b, P) of each record's cross-entropy."""
        residual = self.model(x).softmax(1) - one_hot(y, CLASSES)
        return torch.cat([(residual[:, :, None] * x[:, None]).flatten(1), residual], dim=1)

    def clipped(self, rows: Tensor, y: Tensor) -> Tensor:
        return to_norm(rows, self.bound)

    def total(self, rows: Tensor, y: Tensor) -> Tensor:
        return rows.sum(0)

    def noise(self) -> Tensor:
        """(P,) to add to the sum."""
        return self.sigma * self.bound * self.normal()

    def normal(self) -> Tensor:
        return torch.randn(sum(self.sizes), generator=self.generator)

    def update(self, gradient: Tensor) -> None:
        for p, piece in zip(self.parameters, gradient.split(self.sizes), strict=True):
            p.grad = piece.view_as(p).clone()
        self.optimizer.step()

    def released(self, x: Tensor, y: Tensor) -> nn.Module:
        return self.model


class NetworkLoop(Loop):
    """The same of a network, by autograd."""

    def network(self, x: Tensor, y: Tensor) -> nn.Module:
        return mlp()

    def gradients(self, x: Tensor, y: Tensor) -> Tensor:
        losses = self.losses(x, y)
        found = torch.autograd.grad(losses, self.parameters, torch.eye(len(y)), is_grads_batched=True)
        return torch.cat([g.flatten(1) for g in found], dim=1)

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(self.model(x), y, reduction="none")


# ------------------------------------------------------------------------------------------- right ones


class PoissonMomentum(Loop):
    """Poisson batches and momentum."""

    sigma, steps, rate, lr = 2.2, 12, 0.5, 0.02

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters, lr=self.lr, momentum=0.8)


class Adam(Loop):
    """Adam on noisy gradients."""

    lr = 0.01

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters, lr=self.lr)


class AutoS(Loop):
    """Every gradient scaled to nearly the norm C (Bu et al. 2023, arXiv 2206.07136)."""

    def clipped(self, rows: Tensor, y: Tensor) -> Tensor:
        return rows * (self.bound / (rows.norm(dim=1, keepdim=True) + 0.01))


class PublicStandardisation(Loop):
    """Features are standardised by public statistics."""

    def prepared(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (x - 0.1) / 1.5, y


class AveragedViews(Loop):
    """Four augmented views of each record, their gradients averaged before they are clipped."""

    def gradients(self, x: Tensor, y: Tensor) -> Tensor:
        views = x.repeat(4, 1)
        views = views + 0.1 * torch.randn(views.shape, generator=self.generator)
        return super().gradients(views, y.repeat(4)).unflatten(0, (4, len(y))).mean(0)


class Dropout(NetworkLoop):
    """A network with dropout."""

    def network(self, x: Tensor, y: Tensor) -> nn.Module:
        return mlp(nn.Dropout(0.1))


class FrozenBatchNorm(NetworkLoop):
    """Batch normalisation by the statistics of public data, which stay as they are."""

    def network(self, x: Tensor, y: Tensor) -> nn.Module:
        return mlp(nn.BatchNorm1d(6)).eval()


class LoRA(nn.Module):
    """A frozen layer and two trained factors beside it."""

    def __init__(self, layer: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            self.down = nn.Parameter(torch.randn(rank, layer.in_features) / rank)
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x) + x @ self.down.T @ self.up.T
        return found


class LowRank(NetworkLoop):
    """Only the factors of LoRA layers are trained."""

    def network(self, x: Tensor, y: Tensor) -> nn.Module:
        model: Any = mlp()
        return nn.Sequential(LoRA(model[0]), nn.ReLU(), LoRA(model[2]))


class Functional(Loop):
    """NumPy only, parameters in a dictionary, as with jax: no module, no torch optimizer."""

    @classmethod
    def train(cls, dataset: Any, generator: torch.Generator, step: Any = add_noise) -> Any:
        x, y = (part.numpy().astype(float) for part in fetched(dataset))
        rng = np.random.default_rng(generator.initial_seed())
        theta = {"w": np.zeros((CLASSES, FEATURES)), "b": np.zeros(CLASSES)}
        for _ in range(cls.steps):
            logits = x @ theta["w"].T + theta["b"]
            odds = np.exp(logits - logits.max(1, keepdims=True))
            residual = odds / odds.sum(1, keepdims=True) - np.eye(CLASSES)[y.astype(int)]
            rows = {"w": residual[:, :, None] * x[:, None], "b": residual}
            norms = np.sqrt(sum((g**2).reshape(len(x), -1).sum(1) for g in rows.values()))
            factor = np.minimum(1, cls.bound / np.maximum(norms, 1e-12))
            clipped = {k: np.tensordot(factor, g, 1) for k, g in rows.items()}
            noise = {k: cls.sigma * cls.bound * rng.normal(size=g.shape) for k, g in clipped.items()}
            noisy = step(clipped, noise, np.arange(len(x)))
            theta = {k: theta[k] - cls.lr * noisy[k] / len(x) for k in theta}
        return theta


# ------------------------------------------------------------------------------------------- noise


class NoiseDividedTwice(Loop):
    """Noise is divided by the batch size before it is added to the sum, which is divided again."""

    def noise(self) -> Tensor:
        return super().noise() / self.expected


class NoiseTimesLearningRate(Loop):
    """The noise meant for the parameters is added to the gradient."""

    def noise(self) -> Tensor:
        return self.lr * super().noise()


class NoiseWithoutBound(Loop):
    """Noise of standard deviation sigma, not sigma C."""

    bound = 4.0

    def noise(self) -> Tensor:
        return self.sigma * self.normal()


class UniformNoise(Loop):
    """torch.rand for torch.randn."""

    def normal(self) -> Tensor:
        return torch.rand(sum(self.sizes), generator=self.generator) - 0.5


class DecayingNoise(Loop):
    """Noise decays by a fifth a step; the accountant was told of the first step's."""

    def noise(self) -> Tensor:
        return super().noise() * 0.8**self.t


class NoNoiseOnBias(Loop):
    """Noise for weights only."""

    def noise(self) -> Tensor:
        found = super().noise()
        found[-CLASSES:] = 0.0
        return found


class ConstantSeed(Loop):
    """A seed in the code: the same noise in every training, known to all who have the code."""

    def __init__(self, generator: torch.Generator, step: Any = add_noise) -> None:
        super().__init__(torch.Generator().manual_seed(0), step)


class SameNoiseEveryStep(Loop):
    """The generator is made anew in every step, from one secret seed."""

    def normal(self) -> Tensor:
        fresh = torch.Generator().manual_seed(self.generator.initial_seed())
        return torch.randn(sum(self.sizes), generator=fresh)


class NoNoiseInLastStep(Loop):
    """A final step without noise, to finish on clean gradients."""

    def noise(self) -> Tensor:
        return super().noise() * (self.t < self.steps - 1)


class NoiseInEveryFourthStep(Loop):
    """Noise comes with every fourth step, as where gradients are accumulated, but each step was to have its own."""

    def noise(self) -> Tensor:
        return super().noise() * (self.t % 4 == 0)


class NoiseInEveryMicroBatch(Loop):
    """Four micro-batches to a step, the noise of the whole step added to each of them."""

    def noise(self) -> Tensor:
        return sum((super(NoiseInEveryMicroBatch, self).noise() for _ in range(4)), torch.zeros(()))


# ------------------------------------------------------------------------------------------- clipping


class ClipAfterAveraging(Loop):
    """`clip_grad_norm_` on the gradient of the batch."""

    mean_of_all = True

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        mean = to_norm(self.gradients(x, y).mean(0), self.bound)
        return self.noisy(mean, self.noise() / self.expected)


class MicroBatchesClipped(Loop):
    """The means of micro-batches of four records are clipped, and averaged with the noise of clipped records."""

    mean_of_all = True

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        means = torch.stack([part.mean(0) for part in self.gradients(x, y).split(4)])
        return self.noisy(to_norm(means, self.bound).mean(0), self.noise() / self.expected)


class MicroBatchesScaledBack(Loop):
    """The means of micro-batches of four records are clipped and multiplied by four again: a sum as if of records."""

    def total(self, rows: Tensor, y: Tensor) -> Tensor:
        means = torch.stack([part.mean(0) for part in rows.split(4)])
        return 4 * to_norm(means, self.bound).sum(0)

    def clipped(self, rows: Tensor, y: Tensor) -> Tensor:
        return rows


class WeightsAndBiasEach(Loop):
    """Weights and bias are each clipped to C."""

    def clipped(self, rows: Tensor, y: Tensor) -> Tensor:
        return torch.cat([to_norm(rows[:, :-CLASSES], self.bound), to_norm(rows[:, -CLASSES:], self.bound)], dim=1)


class UpsideDown(Loop):
    """The factor is max(1, C / norm): nothing is ever shortened."""

    bound = 0.5

    def clipped(self, rows: Tensor, y: Tensor) -> Tensor:
        return rows * (self.bound / rows.norm(dim=1, keepdim=True).clamp(min=1e-12)).clamp(min=1)


class SquaredNorm(Loop):
    """The square root of the norm is forgotten: with C = 0.05 a gradient of norm 0.2 is left as it is."""

    bound, lr = 0.05, 2.0

    def gradients(self, x: Tensor, y: Tensor) -> Tensor:
        return super().gradients(x, y) / 8  # the loss is divided by the number of micro-batches

    def clipped(self, rows: Tensor, y: Tensor) -> Tensor:
        return rows * (self.bound / rows.square().sum(1, keepdim=True).clamp(min=1e-12)).clamp(max=1)


class ValueClipping(Loop):
    """`clip_grad_value_`: every entry is clipped to C."""

    bound = 0.5

    def clipped(self, rows: Tensor, y: Tensor) -> Tensor:
        return rows.clamp(-self.bound, self.bound)


class LayerLeftOut(NetworkLoop):
    """Norm and factor of the last layer's gradients only; the first layer gets noise, but is not clipped."""

    def clipped(self, rows: Tensor, y: Tensor) -> Tensor:
        head = sum(self.sizes[-2:])
        return torch.cat([rows[:, :-head], to_norm(rows[:, -head:], self.bound)], dim=1)


class LoRAFactorLeftOut(LowRank):
    """The adapters' upward factors, which start at 0, are left out of the norm and of clipping."""

    def clipped(self, rows: Tensor, y: Tensor) -> Tensor:
        parts = rows.split(self.sizes, dim=1)
        down = to_norm(torch.cat(parts[::2], dim=1), self.bound).split(self.sizes[::2], dim=1)
        return torch.cat([part for pair in zip(down, parts[1::2], strict=True) for part in pair], dim=1)


class BoundOfLabel(Loop):
    """A larger bound for the rare class, that it may be learned."""

    def clipped(self, rows: Tensor, y: Tensor) -> Tensor:
        return to_norm(rows, torch.where(y == RARE, 4.0, 1.0)[:, None] * self.bound)


class ClassWeightsAfterClipping(Loop):
    """Clipped gradients are weighted by the inverse frequency of their class."""

    def total(self, rows: Tensor, y: Tensor) -> Tensor:
        return (torch.tensor([1.0, 4.0])[y][:, None] * rows).sum(0)


class LargestNormBound(Loop):
    """C is the largest norm in the batch, found without noise; the noise is scaled along."""

    def clipped(self, rows: Tensor, y: Tensor) -> Tensor:
        self.bound = float(rows.norm(dim=1).max())
        return rows


class QuantileBound(Loop):
    """C follows the batch's 80 % quantile of norms, found without noise."""

    def clipped(self, rows: Tensor, y: Tensor) -> Tensor:
        self.bound = float(rows.norm(dim=1).quantile(0.8))
        return super().clipped(rows, y)


class AugmentationsClippedEach(Loop):
    """Four noisy copies of each record, every copy's gradient clipped to C."""

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        copies = x.repeat(4, 1)
        copies = copies + 0.1 * torch.randn(copies.shape, generator=self.generator)
        return super().step(copies, y.repeat(4))


class Mixup(Loop):
    """Each input is mixed with another record's before its gradient is clipped: a record is in two of them."""

    def gradients(self, x: Tensor, y: Tensor) -> Tensor:
        return super().gradients(0.6 * x + 0.4 * x.roll(1, 0), y)


# ------------------------------------------------------------------------------------------- what is not noisy


class MomentumFromCleanSums(Loop):
    """The momentum buffer gathers clean gradients, and noise is added to what it gives."""

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        clean = self.clipped(self.gradients(x, y), y).sum(0)
        self.buffer = clean + (0.9 * self.buffer if self.t else 0.0)
        return self.noisy(self.buffer, self.noise()) / self.expected


class AdamFromCleanSums(Adam):
    """Adam steps on clean gradients, and the parameters get the noise of an SGD step."""

    mean_of_all = True

    lr = 0.3

    def update(self, gradient: Tensor) -> None:
        noise = self.noisy(gradient, self.noise() / self.expected) - gradient
        super().update(gradient)
        with torch.no_grad():
            for p, piece in zip(self.parameters, noise.split(self.sizes), strict=True):
                p -= self.lr * piece.view_as(p)

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        return self.clipped(self.gradients(x, y), y).sum(0) / self.expected


class SecondMomentFromCleanSums(Loop):
    """Adam by hand: the first moment is of noisy gradients, the second of clean ones, "which only scales"."""

    lr = 0.05

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        clean = self.clipped(self.gradients(x, y), y).sum(0) / self.expected
        self.second = 0.1 * clean.square() + (0.9 * self.second if self.t else 0.0)
        return self.noisy(clean * self.expected, self.noise()) / self.expected / (self.second.sqrt() + 1e-3)


class CleanGradientsAddedAgain(Loop):
    """`zero_grad` is forgotten: the private gradient is added to the one that `backward` left."""

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        return super().step(x, y) + self.gradients(x, y).mean(0)


class PullTowardsPrivateMeans(Loop):
    """A penalty that pulls the weights of each class towards the mean of its private records."""

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        means = torch.stack([x[y == c].mean(0) for c in range(CLASSES)])
        pull = (0.1 * (self.model.weight.detach() - means)).flatten()
        return super().step(x, y) + torch.cat([pull, torch.zeros(CLASSES)])


# ------------------------------------------------------------------------------------------- data beside the loop


class BatchNormalised(NetworkLoop):
    """Batch normalisation is left in: one record is in the gradients of all others."""

    def network(self, x: Tensor, y: Tensor) -> nn.Module:
        return mlp(nn.BatchNorm1d(6))


class CentredLogits(NetworkLoop):
    """Logits less their mean over the batch: the loss of one record depends on all."""

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        logits = self.model(x)
        return cross_entropy(logits - logits.mean(0), y, reduction="none")


class StandardisedByPrivateData(Loop):
    """Features less their mean over their deviation in the private data; the model is released with both."""

    def prepared(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        self.mean, self.std = x.mean(0), x.std(0)
        return (x - self.mean) / self.std, y

    def released(self, x: Tensor, y: Tensor) -> nn.Module:
        scale = nn.Linear(FEATURES, FEATURES)
        scale.weight.data = torch.diag(1 / self.std)
        scale.bias.data = -self.mean / self.std
        return nn.Sequential(scale, self.model)


class StartsAtClassMeans(Loop):
    """A linear model that starts at the class means of the private data."""

    def network(self, x: Tensor, y: Tensor) -> nn.Module:
        model = nn.Linear(FEATURES, CLASSES)
        model.weight.data = torch.stack([x[y == c].mean(0) for c in range(CLASSES)])
        model.bias.data = -model.weight.data.square().sum(1) / 2
        return model


class BestCheckpoint(Loop):
    """The model between the steps with the least loss on the private data is released."""

    def update(self, gradient: Tensor) -> None:
        super().update(gradient)
        self.kept = [*getattr(self, "kept", []), copy.deepcopy(self.model)]

    def released(self, x: Tensor, y: Tensor) -> nn.Module:
        with torch.no_grad():
            return min(self.kept, key=lambda model: float(cross_entropy(model(x), y)))


class RateByPrivateLoss(Loop):
    """The learning rate falls to a tenth for good when the loss on the private data rises."""

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            loss = float(cross_entropy(self.model(x), y))
        if self.t and loss > self.before:
            self.optimizer.param_groups[0]["lr"] = 0.1 * self.lr
        self.before = loss
        return super().step(x, y)


class Oversampled(Loop):
    """Records of the rare class are there four times, each clipped by itself."""

    def prepared(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        times = torch.where(y == RARE, 4, 1)
        return x.repeat_interleave(times, 0), y.repeat_interleave(times)


# ------------------------------------------------------------------------------------------- sampling


class Shuffled(Loop):
    """Each epoch goes over the records in a new order, accounted as Poisson batches; little noise."""

    sigma, steps, rate = 0.5, 8, 0.25

    def batch(self, n: int) -> Tensor:
        per_epoch = round(1 / self.rate)
        if self.t % per_epoch == 0:
            self.of = torch.arange(n)[torch.randperm(n, generator=self.generator)] * per_epoch // n
        return self.of == self.t % per_epoch


class ShuffledMoreNoise(Shuffled):
    """The same with the noise of a smaller epsilon."""

    sigma = 2.0


class FixedOrder(Shuffled):
    """Batches in the order of the file, accounted as Poisson batches."""

    def batch(self, n: int) -> Tensor:
        per_epoch = round(1 / self.rate)
        return torch.arange(n) * per_epoch // n == self.t % per_epoch


class ActualBatchSize(Loop):
    """Divided by the number of records that were drawn, with the noise for the expected number."""

    sigma, steps, rate = 1.0, 20, 0.125
    mean_of_all = True

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        mean = self.clipped(self.gradients(x, y), y).sum(0) / max(len(y), 1)
        return self.noisy(mean, self.noise() / self.expected)
