"""Small trainings for the tests of canaries, and one run of them by Opacus."""

import warnings
from itertools import pairwise

import opacus.optimizers.optimizer as opacus_optimizer
import torch
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.nn import functional as F

from audit.suites.paper_c_canaries.mlp import MLP
from safexplain.audit.canaries.canary import GradientCanary
from safexplain.audit.canaries.run import KeyedDraws, LinearHead
from safexplain.dp.heads import HeadRecipe
from safexplain.dp.sgd.clipping import FlatClipping

N, D = 40, 6
NETWORKS = {
    "one logit": LinearHead(D, 2, bias=False, one_logit=True),
    "ten classes": LinearHead(D, 10),
    "MLP": MLP(D, (5, 4), 3),
}


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def data(network, seed=0):
    g = seeded(seed)
    return torch.randn(N, D, generator=g, dtype=torch.float64), torch.randint(0, network.classes, (N,), generator=g)


def recipe(network, **changes):
    return HeadRecipe(**{
        "classes": network.classes, "steps": 30, "sample_rate": 0.3, "expected_batch_size": 12.0,
        "clipping": FlatClipping(0.8), "lr": 0.2, "bias": network.bias, "one_logit": network.one_logit, **changes,
    })  # fmt: skip


class Recorded(KeyedDraws):
    """Draws that remember what they gave."""

    def __init__(self, *args):
        super().__init__(*args)
        self.given = {"batches": [], "coins": [], "noise": []}

    def batches(self, records):
        for index, weight in super().batches(records):
            self.given["batches"].append((index, weight))
            yield index, weight

    def coins(self, runs):
        self.given["coins"].append(super().coins(runs))
        return self.given["coins"][-1]

    def noise(self, like, std):
        self.given["noise"].append(super().noise(like, std))
        return self.given["noise"][-1].clone()


class ExactOptimizer(DPOptimizer):
    """Opacus with min(1, C / norm) as it is written, without the 1e-6 that it adds to the norm."""

    def clip_and_accumulate(self):
        """Of Opacus, with other factors."""
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in self.grad_samples], 1).norm(dim=1)
        factors = FlatClipping(self.max_grad_norm).factors(norms)
        for p in self.params:
            p.summed_grad = torch.einsum("i,i...", factors, self._get_flat_grad_sample(p))


def module(network, theta):
    """The torch module whose parameters are theta (P,)."""
    widths = (D, *getattr(network, "hidden", ()), network.outputs)
    layers = []
    for below, width in pairwise(widths):
        layers += [nn.Linear(below, width, bias=network.bias).double(), nn.Tanh()]
    net = nn.Sequential(*layers[:-1])
    with torch.no_grad():
        for parameter, part in zip(net.parameters(), in_parts(network, theta), strict=True):
            parameter.copy_(part)
    return net


def in_parts(network, theta):
    """(P,) -> weight and bias of each layer, as torch orders them."""
    widths, parts, at = (D, *getattr(network, "hidden", ()), network.outputs), [], 0
    for below, width in pairwise(widths):
        matrix = theta[at : at + width * (below + network.bias)].view(width, -1)
        at += matrix.numel()
        parts += [matrix[:, :below], matrix[:, below]] if network.bias else [matrix]
    return parts


def flat(network, parts):
    """The inverse of `in_parts`."""
    if not network.bias:
        return torch.cat([p.flatten() for p in parts])
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return torch.cat([torch.cat([w, b[:, None]], 1).flatten() for w, b in pairs])


def by_opacus(network, x, y, canary, made_by, start, given, run, monkeypatch, *, swapped=False):
    """theta (P,) of one run with these draws and this canary on all records x, y; even runs on D, unless `swapped`."""
    model = GradSampleModule(module(network, start[run]))
    noise = iter([part for step in given["noise"] for part in in_parts(network, step[run])])
    monkeypatch.setattr(opacus_optimizer, "_generate_noise", lambda **_: next(noise))
    parameters = list(model.parameters())
    inner = (
        torch.optim.Adam(parameters, lr=made_by.lr)
        if made_by.optimizer == "adam"
        else torch.optim.SGD(parameters, lr=made_by.lr, momentum=made_by.momentum)
    )
    optimizer = ExactOptimizer(
        inner, noise_multiplier=1.0, max_grad_norm=made_by.clipping.bound,
        expected_batch_size=made_by.expected_batch_size,
    )  # fmt: skip
    others = torch.arange(len(x)) != canary.target
    on_d = (run % 2 == 0) != swapped
    for (index, weight), coins in zip(given["batches"], given["coins"], strict=True):
        rows = torch.arange(int(others.sum())) if index is None else index if index.dim() == 1 else index[run]
        rows = rows if weight is None else rows[weight[run if len(weight) > 1 else 0]]
        xb, yb, coin = x[others][rows], y[others][rows], bool(coins[run])
        if coin and not isinstance(canary, GradientCanary):
            z = (x[canary.target], int(y[canary.target])) if on_d else (canary.x, canary.y)
            xb, yb = torch.cat([xb, z[0][None]]), torch.cat([yb, torch.tensor([z[1]])])
        optimizer.zero_grad()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            logits = model(xb)
            if network.outputs == 1:
                F.binary_cross_entropy_with_logits(logits[:, 0], yb.to(logits)).backward()
            else:
                F.cross_entropy(logits, yb).backward()
        if coin and isinstance(canary, GradientCanary):
            direction = torch.zeros(network.parameters, dtype=x.dtype)
            direction[canary.coordinate] = made_by.clipping.bound * (1 if on_d else -1)
            for p, part in zip(parameters, in_parts(network, direction), strict=True):
                p.grad_sample = torch.cat([p.grad_sample, part.reshape(1, *p.shape)])
        optimizer.step()
    return flat(network, [p.detach() for p in parameters])
