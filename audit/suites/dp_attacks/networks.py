"""The task of `suite.py` in which everything trains: whole networks, fine-tuned with DP by `DPFineTuner`.

Models start from one pretrained network (public: only what fine-tuning adds is protected and attacked), a small vision
transformer of timm or a MobileNet whose weights are in the data folder (`--net`). Pool, coin flips, budgets and recipe
are those of `heads.py`. Every model has gradients of its own, so that the full size, 17 models at five epsilons,
needs a GPU; `--quick` shows on a CPU that everything works.

A model is kept in the cache folder once it is trained, and what it releases once that is computed; a training that is
interrupted goes on from its checkpoint.
"""

from __future__ import annotations

import copy
import hashlib
import json
import warnings
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain._digest import model_digest
from safexplain.audit.collect import summarise
from safexplain.dp.heads.closed_form import Heads

from ...shared.run import Progress, code_of
from .heads import CLASSES, Arrays, Budget, Pool, Released, Size, predicted, released, save
from .nets import SIDES, fine_tuned, network

FULL = Size(net="vit_tiny_patch16_224", side=SIDES["vit_tiny_patch16_224"])
QUICK = Size(models=3, pool=150, net="mobilenet_v1_0.25_128_imagenet", side=32, epochs=1, resamples=20)

TRAINING = ("safexplain.dp.sgd.finetune",)
EXPLAINING = ("safexplain.audit.collect",)
"""What decides the weights of a model; and, given these, what it releases."""

NOTHING = Heads(torch.eye(CLASSES)[None], torch.zeros(1, CLASSES))
"""A head on the logits that leaves them as they are."""


@dataclass(frozen=True, eq=False)
class Start:
    """What all models start from, and where they are trained and kept.

    Args:
        net: the pretrained network.
        digest: of its weights.
        size: of the run.
        device: where to compute.
        folder: of trained models and what they release.
    """

    net: nn.Module
    digest: str
    size: Size
    device: torch.device
    folder: Path


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
        recipe = [s.side, s.steps, s.sample_rate, s.lr, self.budget.sigma, self.seed, self.start.device.type]
        what = json.dumps([self.start.digest, self.pool.digest(), members, recipe, code_of(__package__, *TRAINING)])
        return hashlib.sha256(what.encode()).hexdigest()[:32]

    @cached_property
    def file(self) -> Path:
        """Of what it releases."""
        code = code_of(__package__, *EXPLAINING)[:16]
        return self.start.folder / f"{self.key}-{code}.npz"

    def trained(self, progress: Progress, before: int, total: int) -> nn.Module:
        """It, trained or as stored; `before` of `total` models are ready."""
        start, size = self.start, self.start.size
        weights, checkpoint = (start.folder / f"{self.key}.{kind}" for kind in ("npz", "checkpoint"))
        if not weights.is_file():
            member = torch.from_numpy(self.members)
            tuned = fine_tuned(
                start.net, size, self.pool.x[member], self.pool.y[member], self.budget, seed=self.seed,
                device=start.device, checkpoint=checkpoint,
                progress=lambda _, done, steps, note="": progress("training", before + done / steps, total),
            )  # fmt: skip
            save(weights, {name: tensor.cpu().numpy() for name, tensor in tuned.model.state_dict().items()})
            checkpoint.unlink(missing_ok=True)
        model = copy.deepcopy(start.net)
        with np.load(weights, allow_pickle=False) as file:
            model.load_state_dict({name: torch.from_numpy(file[name]) for name in file.files})
        return model.to(start.device).eval()

    def releases(self, progress: Progress, before: int, total: int) -> Arrays:
        """What it releases of the pool, name -> (n,), as stored if it is."""
        if not self.file.is_file():
            model = self.trained(progress, before, total)
            save(self.file, explained(model, self.pool.x, self.pool.y, batch_size=100))
            progress("training", before + 1, total)
        with np.load(self.file, allow_pickle=False) as file:
            return dict(file)


def explained(model: nn.Module, x: Tensor, y: Tensor, batch_size: int) -> Arrays:
    """Summaries of both explanations of the predicted class's probability, label, loss and margin: name -> (n,).

    Args:
        model: in eval mode.
        x: (n, ...) inputs.
        y: (n,) true labels.
        batch_size: inputs at a time.
    """
    model.requires_grad_(False)
    device = next(model.parameters()).device
    found: dict[str, list[NDArray[np.generic]]] = {}
    for rows, own in zip(x.split(batch_size), y.split(batch_size), strict=True):
        batch = rows.to(device).requires_grad_()
        logits = model(batch)
        p = logits.softmax(-1)
        highest = p.gather(-1, p.argmax(-1, keepdim=True))
        (gradient,) = torch.autograd.grad(highest.sum(), batch)
        maps = {"InputXGradient": batch.detach() * gradient, "Saliency": gradient.abs()}
        each = {f"{e} {s}": n.cpu().numpy() for e, m in maps.items() for s, n in summarise(m).items()}
        each |= {name: numbers[0] for name, numbers in predicted(NOTHING, logits.detach().cpu(), own).items()}
        for name, numbers in each.items():
            found.setdefault(name, []).append(numbers)
    return {name: np.concatenate(numbers) for name, numbers in found.items()}


def run(size: Size, nominal: Sequence[float], options: Namespace) -> Released:
    """Train, explain and gather all models; what is in the cache folder is not computed again.

    Raises:
        Unusable: the pretrained weights or the data are not to be had.
    """
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "Full backward hook is firing")
    folder = options.cache / "dp_networks"
    folder.mkdir(parents=True, exist_ok=True)
    pool, budgets = Pool.of(size, options.data), tuple(Budget.of(e, size) for e in nominal)
    net, weights = network(size, options.data)
    start = Start(net, model_digest(net).hex(), size, torch.device(options.device), folder)
    models = [
        Model(start, pool, members, budget, seed=1000 * i + m)
        for i, budget in enumerate(budgets)
        for m, members in enumerate(pool.membership)
    ]
    missing = [model for model in models if not model.file.is_file()]
    progress = Progress("networks: ")
    for i, model in enumerate(missing):
        model.releases(progress, i, len(missing))
    each = [model.releases(progress, len(missing), len(missing)) for model in models]
    scalars = {name: np.stack([e[name] for e in each]) for name in each[0]}
    parameters = sum(p.numel() for p in net.parameters())
    about = {
        "data": pool.source, "weights": weights, "parameters": parameters, "members": pool.membership.sum(1).tolist(),
    }  # fmt: skip
    return released(budgets, scalars, pool, about)
