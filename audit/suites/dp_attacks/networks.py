"""The task of `suite.py` in which a network trains, or a part of it: fine-tuned with DP by `DPFineTuner`.

Models start from one pretrained network (public: only what fine-tuning adds is protected and attacked). On a CPU that
is a transformer of four small blocks, which is first trained on public images of another data set; with `--full` a
ViT-S of timm, whose weights are downloaded or given; or a MobileNet of the data folder (`--net`). All of it trains, its
last block, or low-rank adapters and the head. Pool, coin flips, budgets and recipe are those of `plan.py`. Every model
has gradients of its own, so that the full size, 17 models at five epsilons, needs a GPU.

A model is kept in the cache folder once it is trained, and what it releases once that is computed; a training that is
interrupted goes on from its checkpoint.
"""

from __future__ import annotations

import copy
import hashlib
import json
import warnings
from argparse import Namespace
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain._digest import model_digest
from safexplain.audit.asked import summarise
from safexplain.dp.heads.closed_form import Heads

from ...shared.run import Progress, code_of
from .heads import predicted, save
from .nets import SIDES, SMALL_VIT, fine_tuned, network
from .plan import EPSILONS, Budget, Pool, Size, budgets
from .released import MAPPED, Arrays, Released, faithful_to, gauss_legendre, released

TRAINABLE = ("all", "last-block", "lora")
FULL = Size(net="vit_small_patch16_224", side=SIDES["vit_small_patch16_224"], explained=4000, mapped=1000, points=20)
SMALL = Size(models=5, pool=700, explained=700, mapped=400, net=SMALL_VIT, side=SIDES[SMALL_VIT], epochs=10)
QUICK = replace(
    SMALL, models=3, pool=150, explained=150, mapped=60, targets=1, epochs=1, points=2, resamples=20, public=200
)

TRAINING = ("safexplain.dp.sgd.finetune",)
EXPLAINING = ("safexplain.audit.asked",)
"""What decides the weights of a model; and, given these, what it releases."""

FORWARD = {"vit_tiny_patch16_224": 2.5e9, "vit_small_patch16_224": 9.2e9}
"""Operations of one image, forwards."""
SPEED = 2e13
"""Operations a second of a current data-centre GPU in single precision, about a third of what it is sold for."""


def expected_hours(size: Size, trainings: int) -> float:
    """What a full run will take: an estimate from counted operations, not a measurement.

    Args:
        size: of the run.
        trainings: how many choices of what trains.
    """
    steps = 5 * size.epochs * size.pool / 2  # forwards, backwards for the norms, backwards for the clipped sum
    explained = 3 * (size.pool + size.mapped * size.points)
    models = size.models * len(EPSILONS) * trainings
    return FORWARD.get(size.net, max(FORWARD.values())) * models * (steps + explained) / SPEED / 3600


@dataclass(frozen=True, eq=False)
class Start:
    """What all models start from, and where they are trained and kept.

    Args:
        net: the pretrained network.
        digest: of its weights.
        size: of the run.
        device: where to compute.
        folder: of trained models and what they release.
        trainable: what trains, as `DPFineTuner` takes it.
    """

    net: nn.Module
    digest: str
    size: Size
    device: torch.device
    folder: Path
    trainable: str = "all"


@dataclass(frozen=True, eq=False)
class Model:
    """One model of the run.

    Args:
        start: what it starts from.
        pool: all examples.
        members: (n,) bool, whether it is trained on each.
        budget: what it spends.
        seed: of its batches and noise.
    """

    start: Start
    pool: Pool
    members: NDArray[np.bool_]
    budget: Budget
    seed: int

    @cached_property
    def key(self) -> str:
        """Names its weights by everything that decides them."""
        s, members = self.start.size, hashlib.sha256(np.packbits(self.members).tobytes()).hexdigest()
        recipe = [
            s.side,
            s.steps,
            s.sample_rate,
            s.lr,
            self.budget.sigma,
            self.seed,
            self.start.device.type,
            self.start.trainable,
        ]
        what = json.dumps([self.start.digest, self.pool.digest(), members, recipe, code_of(__package__, *TRAINING)])
        return hashlib.sha256(what.encode()).hexdigest()[:32]

    @cached_property
    def file(self) -> Path:
        """Of what it releases."""
        size = self.start.size
        code = f"{code_of(__package__, *EXPLAINING)[:16]}-{size.mapped}-{size.points}"
        return self.start.folder / f"{self.key}-{code}.npz"

    def trained(self, progress: Progress, before: int, total: int) -> nn.Module:
        """It, trained or as stored; `before` of `total` models are ready."""
        start, size = self.start, self.start.size
        weights, checkpoint = (start.folder / f"{self.key}.{kind}" for kind in ("npz", "checkpoint"))
        if not weights.is_file():
            member = torch.from_numpy(self.members)
            tuned = fine_tuned(
                start.net, size, self.pool.x[member], self.pool.y[member], self.budget, seed=self.seed,
                device=start.device, checkpoint=checkpoint, trainable=start.trainable,
                progress=lambda _, done, steps, note="": progress("training", before + done / steps, total),
            )  # fmt: skip
            save(weights, {name: tensor.cpu().numpy() for name, tensor in tuned.model.state_dict().items()})
            checkpoint.unlink(missing_ok=True)
        model = copy.deepcopy(start.net)
        with np.load(weights, allow_pickle=False) as file:
            model.load_state_dict({name: torch.from_numpy(file[name]) for name in file.files})
        return model.to(start.device).eval()

    def releases(self, progress: Progress, before: int, total: int) -> Arrays:
        """What it releases of the pool, as `explained` says, as stored if it is."""
        if not self.file.is_file():
            model = self.trained(progress, before, total)
            size = self.start.size
            save(self.file, explained(model, self.pool.x, self.pool.y, 100, size.mapped, size.points))
            progress("training", before + 1, total)
        with np.load(self.file, allow_pickle=False) as file:
            return dict(file)


def explained(model: nn.Module, x: Tensor, y: Tensor, batch_size: int, mapped: int, points: int) -> Arrays:
    """What the model releases: name -> (n,) numbers; "map EXPLAINER" -> (mapped, d).

    Summaries of the explanations of the predicted class's probability ("EXPLAINER SUMMARY"), label, loss and margin.
    Integrated Gradients, and whole maps, are those of the first examples.

    Args:
        model: in eval mode.
        x: (n, ...) inputs.
        y: (n,) true labels.
        batch_size: inputs at a time.
        mapped: how many examples have whole maps.
        points: of Integrated Gradients.
    """
    model.requires_grad_(False)
    device = next(model.parameters()).device
    found: dict[str, list[NDArray[np.generic]]] = {}
    for start in range(0, len(x), batch_size):
        batch, own = x[start : start + batch_size].to(device), y[start : start + batch_size]
        with torch.no_grad():
            logits = model(batch)
        label = logits.argmax(-1)
        gradient = _gradient(model, batch, label)
        maps = {"InputXGradient": batch * gradient, "Saliency": gradient.abs()}
        each = {}
        if kept := min(max(mapped - start, 0), len(batch)):
            few, line = batch[:kept], zip(*gauss_legendre(points), strict=True)
            maps["IG"] = few * sum(w.item() * _gradient(model, a.item() * few, label[:kept]) for a, w in line)
            each = {f"map {e}": maps[e][:kept].flatten(1).cpu().numpy() for e in MAPPED}
        each |= {f"{e} {s}": n.cpu().numpy() for e, m in maps.items() for s, n in summarise(m).items()}
        nothing = Heads(torch.eye(logits.shape[1])[None], torch.zeros(1, logits.shape[1]))  # leaves logits as they are
        each |= {name: numbers[0] for name, numbers in predicted(nothing, logits.cpu(), own).items()}
        for name, numbers in each.items():
            found.setdefault(name, []).append(numbers)
    return {name: np.concatenate(numbers) for name, numbers in found.items()}


def _gradient(model: nn.Module, x: Tensor, label: Tensor) -> Tensor:
    """Of the probability of these classes."""
    at = x.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(model(at).softmax(-1).gather(-1, label[:, None]).sum(), at)
    return gradient


def run(size: Size, options: Namespace, data: str, trainable: str) -> Released:
    """Train, explain and gather all models; what is in the cache folder is not computed again.

    Raises:
        Unusable: the pretrained weights or the data are not to be had.
    """
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "Full backward hook is firing")
    folder = options.cache / "dp_networks"
    folder.mkdir(parents=True, exist_ok=True)
    progress = Progress(f"networks, {trainable}: ")
    pool, (planned, _) = Pool.of(size, options.data, data), budgets(size, options.epsilon)
    net, weights = network(size, pool.classes, options, data, progress)
    start = Start(net, model_digest(net).hex(), size, torch.device(options.device), folder, trainable)
    models = [
        Model(start, pool, members, budget, seed=1000 * i + m)
        for i, budget in enumerate(planned)
        for m, members in enumerate(pool.membership)
    ]
    missing = [model for model in models if not model.file.is_file()]
    for i, model in enumerate(missing):
        model.releases(progress, i, len(missing))
    each = [model.releases(progress, len(missing), len(missing)) for model in models]
    scalars = {name: np.stack([e[name] for e in each]) for name in each[0] if not name.startswith("map ")}

    def maps(explainer: str, budget: int) -> NDArray[np.float32]:
        own = each[budget * size.models : (budget + 1) * size.models]
        return np.stack([e[f"map {explainer}"] for e in own])

    def one(budget: int, number: int) -> nn.Module:
        return models[budget * size.models + number].trained(progress, len(missing), len(missing))

    about = {
        "data": pool.source, "pixels": list(pool.x.shape[2:]), "weights": weights, "trained": trainable,
        "parameters": sum(p.numel() for p in net.parameters()), "members": pool.membership.sum(1).tolist(),
    }  # fmt: skip
    found = released(planned, scalars, maps, pool, about)
    return faithful_to(found, one, pool, size, folder, __package__)
