"""Loops around Opacus' `PrivacyEngine` and `DPFineTuner`: right ones, and misuse of them.

Their clipping and noise are right; what is wrong is done before, after or beside them.
"""

# ruff: noqa: D102  (what a method does where it is replaced stands in the docstring of its class)
from __future__ import annotations

import copy
import warnings
from collections.abc import Sized
from typing import Any, cast

import torch
from opacus import PrivacyEngine, schedulers
from opacus.data_loader import DPDataLoader
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from safexplain._progress import silent
from safexplain.dp import DPFineTuner

from .by_hand import CLASSES, FEATURES, fetched, mlp, to_norm


class Opacus:
    """Opacus' `PrivacyEngine` on an MLP, SGD in Poisson batches.

    Attributes:
        sigma: noise multiplier; what is accounted.
        rate: q; the loader's batches are of n q records.
        epochs: of 1 / q steps each.
        accounted: steps that the accountant was told of.
    """

    sigma, rate, epochs, lr = 1.4, 0.5, 3, 0.02

    @classmethod
    def train(cls, dataset: Any, generator: torch.Generator) -> nn.Module:
        """A model of D or D'."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Full backward hook is firing")
            warnings.filterwarnings("ignore", "Secure RNG turned off")
            return cls().run(dataset)

    @classmethod
    def accounted(cls) -> int:
        return round(cls.epochs / cls.rate)

    def run(self, dataset: Any) -> nn.Module:
        data = self.prepared(dataset)
        self.model = self.network(data)
        model, optimizer, loader = self.private(DataLoader(data, batch_size=round(self.rate * len(dataset))))
        for _ in range(self.epochs):
            for x, y in loader:
                optimizer.zero_grad()
                self.backward(model, x, y)
                self.step(optimizer)
        return self.released(dataset)

    def prepared(self, dataset: Any) -> Any:
        return dataset

    def network(self, dataset: Any) -> nn.Module:
        return mlp()

    def trained(self) -> list[nn.Parameter]:
        return list(self.model.parameters())

    def private(self, loader: DataLoader[Any], **options: Any) -> tuple[Any, Any, Any]:
        made: tuple[Any, Any, Any] = PrivacyEngine().make_private(
            module=self.model,
            optimizer=torch.optim.SGD(self.trained(), lr=self.lr),
            data_loader=loader,
            noise_multiplier=self.sigma,
            max_grad_norm=1.0,
            **options,
        )
        return made

    def backward(self, model: nn.Module, x: Tensor, y: Tensor) -> None:
        cross_entropy(model(x), y.long()).backward()

    def step(self, optimizer: Any) -> None:
        optimizer.step()

    def released(self, dataset: Any) -> nn.Module:
        return self.model


class FineTunedHead(Opacus):
    """`DPFineTuner`, the last layer of a network."""

    def run(self, dataset: Any) -> nn.Module:
        tuner = DPFineTuner(
            mlp(), fetched(dataset), epsilon=None, delta=1e-5, steps=self.accounted(), optimizer="sgd", lr=self.lr,
            batch_size=self.rate * len(dataset), noise_multiplier=self.sigma, trainable="head", progress=silent,
        )  # fmt: skip
        return tuner.fit().model


# ------------------------------------------------------------------------------------------- Opacus, misused


class ExponentialNoise(Opacus):
    """Opacus' scheduler lowers the noise by 30 % a step; epsilon was computed for the first step's."""

    def private(self, loader: DataLoader[Any], **options: Any) -> tuple[Any, Any, Any]:
        made = super().private(loader, **options)
        self.scheduler = schedulers.ExponentialNoise(made[1], gamma=0.7)
        return made

    def step(self, optimizer: Any) -> None:
        super().step(optimizer)
        self.scheduler.step()


class NotPoisson(Opacus):
    """`poisson_sampling=False` with a shuffling loader, accounted as Poisson batches; little noise."""

    sigma, rate, epochs = 0.5, 0.25, 2

    def private(self, loader: DataLoader[Any], **options: Any) -> tuple[Any, Any, Any]:
        shuffling = DataLoader(loader.dataset, batch_size=loader.batch_size, shuffle=True)
        return super().private(shuffling, poisson_sampling=False)


class OwnOptimizer(Opacus):
    """An optimizer of one's own, derived from Opacus', in place of the engine."""

    optimizer: type[DPOptimizer] = DPOptimizer

    def private(self, loader: DataLoader[Any], **options: Any) -> tuple[Any, Any, Any]:
        model = GradSampleModule(self.model)
        inner = torch.optim.SGD(self.trained(), lr=self.lr)
        size = self.rate * len(cast(Sized, loader.dataset))
        optimizer = self.optimizer(
            inner, noise_multiplier=self.sigma, max_grad_norm=1.0, expected_batch_size=round(size)
        )
        return model, optimizer, DPDataLoader.from_data_loader(loader)


class EachParameterClipped(DPOptimizer):  # type: ignore[misc]
    """Clips the gradient of each parameter by itself, to the whole bound."""

    def clip_and_accumulate(self) -> None:
        for p in self.params:
            p.summed_grad = to_norm(p.grad_sample.flatten(1), self.max_grad_norm).sum(0).view_as(p)


class QuietBias(DPOptimizer):  # type: ignore[misc]
    """Adds noise to weights only."""

    def add_noise(self) -> None:
        super().add_noise()
        for p in self.params:
            if p.dim() == 1:
                p.grad = p.summed_grad.clone()


class EachLayerAtFullBound(OwnOptimizer):
    """Each of four parameters is clipped to C, where the noise is for a whole gradient of norm C."""

    optimizer = EachParameterClipped


class NoNoiseOnBias(OwnOptimizer):
    """Noise for weights only, in an optimizer derived from Opacus'."""

    optimizer = QuietBias


class BatchNormOutside(Opacus):
    """Batch normalisation of the inputs stands before the private module: a record is in the inputs of all others."""

    def network(self, dataset: Any) -> nn.Module:
        self.norm = nn.BatchNorm1d(FEATURES, affine=False)
        return mlp()

    def backward(self, model: nn.Module, x: Tensor, y: Tensor) -> None:
        if len(y) > 1:
            super().backward(model, self.norm(x), y)
        else:
            super().backward(model, x, y)

    def released(self, dataset: Any) -> nn.Module:
        return nn.Sequential(self.norm, self.model)


class InnerOptimizerSteps(Opacus):
    """A wrapper around the training calls `step` of the optimizer inside Opacus', with the gradients of `backward`."""

    def step(self, optimizer: Any) -> None:
        optimizer.original_optimizer.step()


class Resumed(Opacus):
    """Trained on from its checkpoint twice, and the last engine's epsilon reported."""

    epochs = 9

    @classmethod
    def accounted(cls) -> int:
        return round(cls.epochs / cls.rate / 3)


class FourViews(Opacus):
    """Four augmented views of each record in one batch: every view is clipped as a record of its own."""

    def backward(self, model: nn.Module, x: Tensor, y: Tensor) -> None:
        views = x.repeat(4, 1)
        super().backward(model, views + 0.1 * torch.randn_like(views), y.repeat(4))


# ------------------------------------------------------------------------------------------- beside the private loop


class ScaledByLargest(Opacus):
    """Inputs are divided by the largest norm in the private data, and the model is released with that divisor."""

    def prepared(self, dataset: Any) -> Any:
        x, y = fetched(dataset)
        self.largest = x.norm(dim=1).max()
        return TensorDataset(x / self.largest, y)

    def released(self, dataset: Any) -> nn.Module:
        scale = nn.Linear(FEATURES, FEATURES, bias=False)
        scale.weight.data = torch.eye(FEATURES) / self.largest
        return nn.Sequential(scale, self.model)


class HeadOfClassMeans(Opacus):
    """The last layer starts at the private means of each class's features."""

    def network(self, dataset: Any) -> nn.Module:
        x, y = fetched(dataset)
        model: Any = mlp()
        with torch.no_grad():
            features = model[:-1](x)
            model[-1].weight.data = torch.stack([features[y == c].mean(0) for c in range(CLASSES)])
        return nn.Sequential(*model)


class BestStep(Opacus):
    """Released is the model between the steps that has the least loss on the private data."""

    lr = 0.5

    def step(self, optimizer: Any) -> None:
        super().step(optimizer)
        self.kept = [*getattr(self, "kept", []), copy.deepcopy(self.model.state_dict())]

    @torch.no_grad()
    def released(self, dataset: Any) -> nn.Module:
        x, y = fetched(dataset)
        losses = []
        for state in self.kept:
            self.model.load_state_dict(state)
            losses.append(float(cross_entropy(self.model(x), y)))
        self.model.load_state_dict(self.kept[losses.index(min(losses))])
        return self.model


class BiasFittedAfterwards(Opacus):
    """After the private training the last bias is fitted to the private data, to calibrate the classes."""

    def released(self, dataset: Any) -> nn.Module:
        x, y = fetched(dataset)
        bias: Any = self.model[-1].bias  # type: ignore[index]
        for _ in range(20):
            with torch.no_grad():
                wrong = self.model(x).softmax(1) - nn.functional.one_hot(y, CLASSES)
                bias -= 0.5 * wrong.mean(0)
        return self.model
