"""What is trained and explained: linear heads on a frozen, ImageNet-pretrained MobileNet.

All models share the backbone, so that its features are computed once, every head of every epsilon is trained in one
batched computation, and the explanations of one image by all heads share one forward pass: the gradient of a released
probability with respect to the pixels is the backbone's vector-Jacobian product with its gradient with respect to the
features, which is known in closed form.
"""

from __future__ import annotations

import copy
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
from safexplain.audit.answers import summarise
from safexplain.dp.heads import HeadRecipe, Heads, features, head_input, train_heads
from safexplain.dp.sgd.clipping import AutoSClipping

from ...shared.run import Progress, code_of, public_networks, write_arrays
from .plan import EPSILONS, Budget, Pool, Size
from .released import MAPPED, Arrays, Released, faithful_to, gauss_legendre, released

TRAINING = ("safexplain.dp.heads",)
EXPLAINING = ("safexplain.audit.answers", "safexplain.dp.heads")
"""What decides the weights of the heads; and, given these, the summaries of an explanation."""

QUICK = Size(models=6, pool=150, explained=120, mapped=60, side=32, epochs=5, points=2, resamples=20)
ROWS = 200
"""Images whose explanations are kept in one file."""


class Classifier(nn.Module):
    """Enlarges images, a frozen network without its last layer, and a linear head."""

    def __init__(self, net: nn.Module, side: int, d: int, classes: int = 10) -> None:
        super().__init__()
        self.net, self.side = net.requires_grad_(False).to(memory_format=torch.channels_last), side
        self.head = nn.Linear(d, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 3, 32, 32) normalised pixels -> (n, classes)."""
        large = F.interpolate(x, size=(self.side, self.side), mode="bilinear")
        logits: Tensor = self.head(self.net.features(large.contiguous(memory_format=torch.channels_last)))
        return logits


# ------------------------------------------------------------------------------------------------------------- training


def train(size: Size, pool: Pool, seen: Tensor, planned: Sequence[Budget], progress: Progress) -> Heads:
    """(budgets x models) heads, the same members for each budget; a fixed seed, so that results can be repeated."""
    weights, biases = [], []
    for i, budget in enumerate(planned):
        recipe = HeadRecipe(
            classes=pool.classes, steps=size.steps, sample_rate=size.sample_rate,
            expected_batch_size=size.sample_rate * len(pool.y) / 2,
            clipping=AutoSClipping(1.0, gamma=0.01) if budget.sigma else None, lr=size.lr, optimizer="adam",
        )  # fmt: skip
        heads = train_heads(
            seen, pool.y, recipe, noise_multiplier=budget.sigma, runs=size.models,
            membership=torch.from_numpy(pool.membership), generator=torch.Generator(seen.device).manual_seed(i),
            progress=lambda _, done, steps, note="", i=i: progress("training", i + done / steps, len(planned)),
        )  # fmt: skip
        weights.append(heads.weight)
        biases.append(heads.bias)
    return Heads(torch.cat(weights), torch.cat(biases))


def trained(size: Size, pool: Pool, seen: Tensor, planned: Sequence[Budget], folder: Path, progress: Progress) -> Heads:
    """`train`, or what it stored: trained again, heads may differ in the last bit, and their explanations with them."""
    where = hashlib.sha256(seen.cpu().numpy().tobytes() + np.packbits(pool.membership).tobytes()).hexdigest()
    code = code_of(__package__, *TRAINING)
    what = [asdict(size), [b.sigma for b in planned], pool.digest(), where, seen.device.type, code]
    path = folder / f"heads-{hashlib.sha256(json.dumps(what).encode()).hexdigest()[:32]}.npz"
    if not path.is_file():
        heads = train(size, pool, seen, planned, progress)
        write_arrays(path, {"weight": heads.weight.cpu().numpy(), "bias": heads.bias.cpu().numpy()})
    with np.load(path, allow_pickle=False) as file:
        return Heads(*(torch.from_numpy(file[name]).to(seen.device) for name in ("weight", "bias")))


# ----------------------------------------------------------------------------------------------------------- explaining


def gradients(model: nn.Module, heads: Heads, x: Tensor) -> Tensor:
    """(heads, n, ...) gradient of the probability of each head's predicted class with respect to the input.

    Args:
        model: whose head is replaced by each of `heads` in turn.
        heads: m of them.
        x: (n, ...) inputs.
    """
    return _through(model, heads, x.detach()[None], torch.ones(1), None)


def integrated(model: nn.Module, heads: Heads, x: Tensor, points: int) -> Tensor:
    """(heads, n, ...) Integrated Gradients of the same probability from a baseline of zeros, as Captum computes it.

    Args:
        model: as `gradients`.
        heads: m of them.
        x: (n, ...) inputs.
        points: of the Gauss-Legendre rule.
    """
    at, weights = gauss_legendre(points)
    with torch.no_grad():
        label = heads.probabilities(head_input(model, "head", x)).argmax(-1)
    lines = at.to(x).view(-1, *[1] * x.dim()) * x.detach()
    return x.detach() * _through(model, heads, lines, weights, label)


def _through(model: nn.Module, heads: Heads, at: Tensor, weights: Tensor, label: Tensor | None) -> Tensor:
    """(heads, n, ...) weighted sums of gradients at the inputs (k, n, ...); of the class predicted there, if no other.

    With p the probabilities of a head W, the gradient of p_t with respect to the features is p_t (e_t - p) W.
    """
    k, n = at.shape[:2]
    inputs = at.reshape(k * n, *at.shape[2:]).requires_grad_()
    seen = head_input(model, "head", inputs)
    with torch.no_grad():
        p = heads.probabilities(seen)
        target = p.argmax(-1) if label is None else label.repeat(1, k)
        wanted = p.gather(-1, target[..., None]) * weights.to(p).repeat_interleave(n)[:, None]
        directions = (wanted * (F.one_hot(target, p.shape[-1]) - p)) @ heads.weight
    found = []
    for i, direction in enumerate(directions):
        (gradient,) = torch.autograd.grad(seen, inputs, direction, retain_graph=i + 1 < len(directions))
        found.append(gradient.view(at.shape).sum(0))
    return torch.stack(found)


def predicted(heads: Heads, seen: Tensor, y: Tensor) -> Arrays:
    """Label, loss and margin of the true label, each (heads, n), as `collect_signals` defines them."""
    log_p = heads.logits(seen).double().log_softmax(-1)
    own = log_p.gather(-1, y.to(seen.device).expand(len(log_p), -1)[..., None])
    others = log_p.scatter(-1, y.to(seen.device).expand(len(log_p), -1)[..., None], -math.inf).logsumexp(-1)
    found = {"label": log_p.argmax(-1), "loss": -own[..., 0], "margin": own[..., 0] - others}
    return {name: numbers.cpu().numpy() for name, numbers in found.items()}


@dataclass(frozen=True, eq=False)
class Explained:
    """What all heads say of a pool, in files of `ROWS` images each, from which a run resumes."""

    model: Classifier  # the backbone
    heads: Heads  # of all budgets
    pool: Pool  # of examples
    size: Size  # of the run
    folder: Path  # of the files

    def key(self) -> str:
        """Names the files by everything that decides them."""
        weights = self.heads.weight.cpu().numpy().tobytes() + self.heads.bias.cpu().numpy().tobytes()
        size, code = self.size, code_of(__package__, *EXPLAINING)
        what = [hashlib.sha256(weights).hexdigest(), model_digest(self.model.net).hex(), size.side, size.points]
        what += [size.explained, size.mapped, self.pool.digest(), code, ROWS]
        return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:32]

    def files(self, progress: Progress) -> list[Path]:
        """All of them, made as far as they are not there."""
        key, found, n = self.key(), [], min(self.size.explained, len(self.pool.x))
        for start in range(0, n, ROWS):
            path = self.folder / f"{key}.{start}.npz"
            if not path.is_file():
                each = [self._batch(rows, start + 50 * i) for i, rows in enumerate(self._rows(start))]
                names = dict.fromkeys(name for e in each for name in e)
                write_arrays(
                    path, {name: np.concatenate([e[name] for e in each if name in e], axis=1) for name in names}
                )
            found.append(path)
            progress("explaining", min(start + ROWS, n), n)
        return found

    def _rows(self, start: int) -> tuple[Tensor, ...]:
        return self.pool.x[: self.size.explained][start : start + ROWS].split(50)

    def _batch(self, x: Tensor, start: int) -> Arrays:
        """Summaries of all explanations, and whole maps of the first examples."""
        gradient = gradients(self.model, self.heads, x)
        maps = {"InputXGradient": x * gradient, "Saliency": gradient.abs()}
        found: Arrays = {}
        if kept := min(max(self.size.mapped - start, 0), len(x)):
            maps["IG"] = integrated(self.model, self.heads, x[:kept], self.size.points)
            for explainer in MAPPED:
                rows = maps[explainer][:, :kept]
                found[f"map {explainer}"] = rows.flatten(2).cpu().numpy()
        for explainer, each in maps.items():
            for name, numbers in summarise(each.flatten(0, 1)).items():
                found[f"{explainer} {name}"] = numbers.view(each.shape[:2]).cpu().numpy()
        return found


def _read(files: Sequence[Path], models: slice = slice(None), maps: str = "") -> Arrays:
    """What the files hold, together: the summaries of all heads, or the maps of some."""
    found: dict[str, list[NDArray[Any]]] = {}
    for path in files:
        with np.load(path, allow_pickle=False) as file:
            for name in file.files:
                if (name == maps) if maps else not name.startswith("map "):
                    found.setdefault(name, []).append(file[name][models])
    return {name: np.concatenate(parts, axis=1) for name, parts in found.items()}


def run(size: Size, options: Namespace, data: str) -> Released:
    """Features, heads and explanations; each is kept in the cache folder, from which a run resumes."""
    torch.set_num_threads(1)
    folder, pool = options.cache / "dp_heads", Pool.of(size, options.data, data)
    budgets = tuple(Budget.of(epsilon, size) for epsilon in EPSILONS)
    nets, files = public_networks(options.data, (size.net,))
    d = nets[size.net].convs[-1].in_channels
    model, progress = Classifier(nets[size.net], size.side, d, pool.classes).eval(), Progress(f"heads, {data}: ")
    seen = features(model, "head", pool.x, batch_size=100, cache=folder, progress=progress)
    heads = trained(size, pool, seen, budgets, folder, progress)
    kept = Explained(model, heads, pool, size, folder).files(progress)

    def maps(explainer: str, budget: int) -> NDArray[np.float32]:
        own = slice(budget * size.models, (budget + 1) * size.models)
        found: NDArray[np.float32] = _read(kept, own, f"map {explainer}")[f"map {explainer}"]
        return found

    def network(budget: int, number: int) -> nn.Module:
        own, which = copy.deepcopy(model), budget * size.models + number
        own.head.weight.data, own.head.bias.data = heads.weight[which], heads.bias[which]
        return own

    about = {
        "data": pool.source,
        "pixels": list(pool.x.shape[2:]),
        "weights": files,
        "features": d,
        "members": pool.membership.sum(1).tolist(),
    }
    found = released(budgets, _read(kept) | predicted(heads, seen, pool.y), maps, pool, about)
    return faithful_to(found, network, pool, size, folder, __package__)
