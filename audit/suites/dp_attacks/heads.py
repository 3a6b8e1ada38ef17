"""The task of `suite.py` that a CPU can do: linear heads on a frozen, ImageNet-pretrained MobileNet.

All models share the backbone, so that its features are computed once, every head of every epsilon is trained in one
batched computation, and the explanations of one image by all heads share one forward pass: the gradient of a released
probability with respect to the pixels is the backbone's vector-Jacobian product with its gradient with respect to the
features, which is known in closed form.
"""

from __future__ import annotations

import hashlib
import json
import math
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from safexplain._digest import model_digest
from safexplain._files import whole_file
from safexplain._privacy_loss import epsilons
from safexplain.audit import Signals
from safexplain.audit.collect import SUMMARIES, summarise
from safexplain.dp.accounting.calibration import noise_multiplier
from safexplain.dp.heads.closed_form import Heads, train_heads
from safexplain.dp.heads.features import features, head_input
from safexplain.dp.heads.recipe import HeadRecipe
from safexplain.dp.sgd.clipping import AutoSClipping

from ...shared.run import Progress, code_of, load
from ..third_party.suite import third_party

EXPLAINERS = ("InputXGradient", "Saliency")
PREDICTED = ("label", "loss", "margin")

Arrays = dict[str, NDArray[Any]]

CLASSES = 10
DELTA = 1e-5
TRAINING = ("safexplain.dp.heads.closed_form",)
EXPLAINING = ("safexplain.audit.collect", "safexplain.dp.heads.features")
"""What decides the weights of the heads; and, given these, the summaries of an explanation."""


@dataclass(frozen=True)
class Size:
    """How large a run is. The recipe is that of paper A's released code for CIFAR-10, on fewer examples.

    Args:
        models: that take turns as the target.
        pool: examples; a coin decides for each model and example whether it is a member.
        net: weight file of the backbone.
        side: pixels that images are enlarged to.
        epochs: over a model's members.
        sample_rate: q, of a member in a step.
        lr: of Adam.
        resamples: of examples, for intervals of means over targets.
    """

    models: int = 17
    pool: int = 4000
    net: str = "mobilenet_v2_1.0_224_imagenet"
    side: int = 64
    epochs: int = 30
    sample_rate: float = 0.1
    lr: float = 5e-4
    resamples: int = 200

    @property
    def steps(self) -> int:
        """Of the optimizer."""
        return round(self.epochs / self.sample_rate)


QUICK = Size(models=5, pool=150, net="mobilenet_v1_0.25_128_imagenet", side=32, epochs=5, resamples=20)


class Classifier(nn.Module):
    """Enlarges images, a frozen network without its last layer, and a linear head."""

    def __init__(self, net: nn.Module, side: int, d: int) -> None:
        super().__init__()
        self.net, self.side = net.requires_grad_(False).to(memory_format=torch.channels_last), side
        self.head = nn.Linear(d, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 3, 32, 32) normalised pixels -> (n, classes)."""
        large = F.interpolate(x, size=(self.side, self.side), mode="bilinear")
        logits: Tensor = self.head(self.net.features(large.contiguous(memory_format=torch.channels_last)))
        return logits


@dataclass(frozen=True, eq=False)
class Pool:
    """Images, labels and who is a member of which model."""

    x: Tensor
    y: Tensor
    membership: NDArray[np.bool_]
    source: dict[str, str]

    @classmethod
    def of(cls, size: Size, folder: Path) -> Pool:
        """The first rows of CIFAR-10's training set, normalised as the MobileNets expect, and coin flips."""
        arrays, source = load(folder, "cifar10", ("x_train", "y_train"))
        x = (arrays["x_train"][: size.pool].transpose(0, 3, 1, 2).astype(np.float32) - 128) / 128
        y = torch.from_numpy(arrays["y_train"][: size.pool].astype(np.int64))
        coins = np.random.default_rng(0xD9).random((size.models, len(x))) < 0.5
        return cls(torch.from_numpy(x), y, coins, source)

    def digest(self) -> str:
        """Of images and labels."""
        return hashlib.sha256(self.x.numpy().tobytes() + self.y.numpy().tobytes()).hexdigest()


@dataclass(frozen=True)
class Budget:
    """What a group of models spends: the noise, and epsilon under both adjacencies.

    Args:
        nominal: add/remove, as paper A states it; infinite: no noise and no clipping.
        sigma: noise multiplier.
        add_remove: of that noise.
        substitute: of that noise.
    """

    nominal: float
    sigma: float
    add_remove: float
    substitute: float

    @classmethod
    def of(cls, nominal: float, size: Size) -> Budget:
        """Calibrated with q and steps as they are."""
        if math.isinf(nominal):
            return cls(nominal, 0.0, math.inf, math.inf)
        sigma = noise_multiplier(nominal, size.sample_rate, size.steps, DELTA, adjacency="add_remove")
        spent = epsilons(sigma, size.sample_rate, size.steps, DELTA)
        return cls(nominal, sigma, spent.add_remove, spent.substitute)

    @property
    def name(self) -> str:
        """As tables have it."""
        return f"{self.nominal:g}"

    def to_dict(self) -> dict[str, Any]:
        """Infinity as null."""
        return {k: None if math.isinf(v) else v for k, v in asdict(self).items()}


@dataclass(frozen=True, eq=False)
class Released:
    """What all models of a task release.

    Args:
        budgets: in order.
        signals: (explainer, name of the budget) -> signals of its models.
        accuracy: name of the budget -> "members" and "non_members", one number a model.
        about: what is recorded of the task.
    """

    budgets: tuple[Budget, ...]
    signals: dict[tuple[str, str], Signals]
    accuracy: dict[str, dict[str, list[float]]]
    about: dict[str, Any]


def released(budgets: Sequence[Budget], scalars: Arrays, pool: Pool, about: dict[str, Any]) -> Released:
    """Signals of each explainer and budget, and accuracy of each model on its members and on the others.

    Args:
        budgets: in order.
        scalars: "EXPLAINER SUMMARY", "label", "loss" and "margin" -> (budgets * models, n), those of a budget together.
        pool: of n examples.
        about: what is recorded of the task.
    """
    right = scalars["label"] == pool.y.numpy()
    signals, accuracy, models = {}, {}, len(pool.membership)
    for i, budget in enumerate(budgets):
        own = slice(i * models, (i + 1) * models)
        each = list(zip(right[own], pool.membership, strict=True))
        accuracy[budget.name] = {
            "members": [float(r[m].mean()) for r, m in each],
            "non_members": [float(r[~m].mean()) for r, m in each],
        }
        for explainer in EXPLAINERS:
            values = {s: scalars[f"{explainer} {s}"][own] for s in SUMMARIES}
            values |= {s: scalars[s][own] for s in PREDICTED}
            meta = {"explainer": explainer, "population": pool.digest(), "subject": budget.name}
            signals[explainer, budget.name] = Signals(pool.membership, values, meta=meta, inputs=pool.x.numpy())
    return Released(tuple(budgets), signals, accuracy, about)


def train(size: Size, pool: Pool, seen: Tensor, budgets: Sequence[Budget], progress: Progress) -> Heads:
    """(budgets x models) heads, the same members for each budget; a fixed seed, so that results can be repeated."""
    weights, biases = [], []
    for i, budget in enumerate(budgets):
        recipe = HeadRecipe(
            classes=CLASSES, steps=size.steps, sample_rate=size.sample_rate,
            expected_batch_size=size.sample_rate * len(pool.y) / 2,
            clipping=AutoSClipping(1.0, gamma=0.01) if budget.sigma else None, lr=size.lr, optimizer="adam",
        )  # fmt: skip
        heads = train_heads(
            seen, pool.y, recipe, noise_multiplier=budget.sigma, runs=size.models,
            membership=torch.from_numpy(pool.membership), generator=torch.Generator(seen.device).manual_seed(i),
            progress=lambda _, done, steps, note="", i=i: progress("training", i + done / steps, len(budgets)),
        )  # fmt: skip
        weights.append(heads.weight)
        biases.append(heads.bias)
    return Heads(torch.cat(weights), torch.cat(biases))


def trained(size: Size, pool: Pool, seen: Tensor, budgets: Sequence[Budget], folder: Path, progress: Progress) -> Heads:
    """`train`, or what it stored: trained again, heads may differ in the last bit, and their explanations with them."""
    where = hashlib.sha256(seen.cpu().numpy().tobytes() + np.packbits(pool.membership).tobytes()).hexdigest()
    code = code_of(__package__, *TRAINING)
    what = [asdict(size), [b.sigma for b in budgets], pool.digest(), where, seen.device.type, code]
    path = folder / f"heads-{hashlib.sha256(json.dumps(what).encode()).hexdigest()[:32]}.npz"
    if not path.is_file():
        heads = train(size, pool, seen, budgets, progress)
        save(path, {"weight": heads.weight.cpu().numpy(), "bias": heads.bias.cpu().numpy()})
    with np.load(path, allow_pickle=False) as file:
        return Heads(*(torch.from_numpy(file[name]).to(seen.device) for name in ("weight", "bias")))


def save(path: Path, arrays: Arrays) -> None:
    """All or nothing."""
    with whole_file(path) as partial, partial.open("wb") as file:
        np.savez(file, **arrays)


def explained(model: nn.Module, heads: Heads, x: Tensor) -> Arrays:
    """Summaries of both explanations of the predicted class's probability: "EXPLAINER SUMMARY" -> (heads, n).

    Args:
        model: whose head is replaced by each of `heads` in turn.
        heads: m of them.
        x: (n, ...) inputs.
    """
    x = x.detach().requires_grad_()
    seen = head_input(model, "head", x)
    with torch.no_grad():
        p = heads.probabilities(seen)
        highest, label = p.max(-1)
        residual = F.one_hot(label, p.shape[-1]) - p
        directions = (highest[..., None] * residual) @ heads.weight
    found: dict[str, list[Tensor]] = {}
    for i, direction in enumerate(directions):
        (gradient,) = torch.autograd.grad(seen, x, direction, retain_graph=i + 1 < len(directions))
        maps = {"InputXGradient": x.detach() * gradient, "Saliency": gradient.abs()}
        for explainer, each in maps.items():
            for name, numbers in summarise(each).items():
                found.setdefault(f"{explainer} {name}", []).append(numbers)
    return {name: torch.stack(numbers).cpu().numpy() for name, numbers in found.items()}


def predicted(heads: Heads, seen: Tensor, y: Tensor) -> Arrays:
    """Label, loss and margin of the true label, each (heads, n), as `collect_signals` defines them."""
    log_p = heads.logits(seen).double().log_softmax(-1)
    own = log_p.gather(-1, y.to(seen.device).expand(len(log_p), -1)[..., None])
    others = log_p.scatter(-1, y.to(seen.device).expand(len(log_p), -1)[..., None], -math.inf).logsumexp(-1)
    found = {"label": log_p.argmax(-1), "loss": -own[..., 0], "margin": own[..., 0] - others}
    return {name: numbers.cpu().numpy() for name, numbers in found.items()}


def run(size: Size, nominal: Sequence[float], options: Namespace) -> Released:
    """Features, heads and explanations; each is kept in the cache folder, from which a run resumes."""
    torch.set_num_threads(1)
    folder, device = options.cache / "dp_heads", torch.device(options.device)
    pool, budgets = Pool.of(size, options.data), tuple(Budget.of(e, size) for e in nominal)
    nets, files = third_party(options.data, (size.net,))
    d = nets[size.net].convs[-1].in_channels
    model = Classifier(nets[size.net], size.side, d).to(device).eval()
    progress = Progress("heads: ")
    seen = features(model, "head", pool.x, batch_size=100, cache=folder, progress=progress).to(device)
    heads = trained(size, pool, seen, budgets, folder, progress)
    scalars = parts(model, heads, pool, folder, progress) | predicted(heads, seen, pool.y)
    about = {"data": pool.source, "weights": files, "features": d, "members": pool.membership.sum(1).tolist()}
    return released(budgets, scalars, pool, about)


def parts(model: nn.Module, heads: Heads, pool: Pool, folder: Path, progress: Progress, rows: int = 200) -> Arrays:
    """`explained` for the whole pool, a file for each `rows` images."""
    weights = hashlib.sha256(heads.weight.cpu().numpy().tobytes() + heads.bias.cpu().numpy().tobytes()).hexdigest()
    code = code_of(__package__, *EXPLAINING)
    what = json.dumps([weights, model_digest(model.net).hex(), model.side, pool.digest(), code, rows])
    key, device = hashlib.sha256(what.encode()).hexdigest()[:32], heads.weight.device
    found = []
    for start in range(0, len(pool.x), rows):
        path = folder / f"{key}.{start}.npz"
        if not path.is_file():
            batches = pool.x[start : start + rows].split(50)
            each = [explained(model, heads, batch.to(device)) for batch in batches]
            save(path, {name: np.concatenate([e[name] for e in each], axis=1) for name in each[0]})
        with np.load(path, allow_pickle=False) as file:
            found.append(dict(file))
        progress("explaining", min(start + rows, len(pool.x)), len(pool.x))
    return {name: np.concatenate([f[name] for f in found], axis=1) for name in found[0]}
