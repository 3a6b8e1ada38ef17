"""Slow and plain: one example at a time, its gradient, its factor by the rule's formula, the sum."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from safexplain.dp.sgd.clipping import AutoSClipping, Clipping, FlatClipping, PerLayerClipping
from safexplain.dp.sgd.steps import PerSampleStep, make_step

C = 0.7
GAMMA = 0.05


def flat(norms: list[float]) -> list[float]:
    return [min(1.0, C / math.hypot(*norms))] * len(norms)


def per_layer(norms: list[float]) -> list[float]:
    return [min(1.0, C / math.sqrt(len(norms)) / n) for n in norms]


def auto_s(norms: list[float]) -> list[float]:
    return [C / (math.hypot(*norms) + GAMMA)] * len(norms)


RULES: dict[str, tuple[Clipping, Callable[[list[float]], list[float]]]] = {
    "flat": (FlatClipping(C), flat),
    "per-layer": (PerLayerClipping(C), per_layer),
    "auto-s": (AutoSClipping(C, GAMMA), auto_s),
}


def loss(outputs: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, y, reduction="none")


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(768, 24), nn.Tanh(), nn.Linear(24, 12), nn.GELU(), nn.Linear(12, 5))


def conv_net() -> nn.Module:
    first = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), nn.GroupNorm(4, 8), nn.ReLU()
    return nn.Sequential(
        *first, nn.Conv2d(8, 6, 3, stride=2), nn.GroupNorm(2, 6), nn.ReLU(), nn.Flatten(), nn.Linear(54, 5)
    )


class Attention(nn.Module):
    """Self-attention of two heads, with the queries, keys and values from one linear layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(2, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        mixed = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(dim=-1) @ v
        return self.projection(mixed.transpose(1, 2).flatten(2))


class Transformer(nn.Module):
    """One pre-norm block on patches of an image: what timm's ViTs are made of."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))
        self.attention = Attention(width)
        self.mlp = nn.Sequential(nn.Linear(width, 48), nn.GELU(), nn.Linear(48, width))
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patches(x).flatten(2).mT
        h = h + self.attention(self.norm1(h))
        h = h + self.mlp(self.norm2(h))
        return self.head(self.norm3(h).mean(dim=1))


MODELS: dict[str, Callable[[], nn.Module]] = {"mlp": mlp, "conv": conv_net, "transformer": Transformer}


def build(name: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name]().to(dtype)


def batch(n: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Images 3 x 16 x 16 of very different contrast: some gradients are clipped, some are not."""
    g = torch.Generator().manual_seed(1)
    x = torch.randn(n, 3, 16, 16, generator=g, dtype=torch.float64) * torch.logspace(-2, 0.5, n)[:, None, None, None]
    return x.to(dtype), torch.randint(0, 5, (n,), generator=g)


def trainable(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def clipped_sums(model: nn.Module, x: Tensor, y: Tensor, rule: Callable[[list[float]], list[float]]) -> list[Tensor]:
    """Sum of the clipped gradients of the examples, one at a time, added in float64."""
    params = trainable(model)
    sums = [torch.zeros_like(p, dtype=torch.float64) for p in params]
    for i in range(len(y)):
        gradients = [g.double() for g in torch.autograd.grad(loss(model(x[i : i + 1]), y[i : i + 1]).sum(), params)]
        for total, g, factor in zip(sums, gradients, rule([g.norm().item() for g in gradients]), strict=True):
            total += factor * g
    return sums


def prepare(model: nn.Module, clipping: Clipping, *, lr: float = 1.0, **options: object) -> PerSampleStep:
    """A step without noise, divided by 1, of plain gradient descent, unless the options say otherwise."""
    sgd = torch.optim.SGD(trainable(model), lr=lr)
    settings = {"noise_multiplier": 0.0, "expected_batch_size": 1, "loss": loss} | options
    return make_step(model, sgd, clipping=clipping, **settings)


def sums_of(step: PerSampleStep) -> list[Tensor]:
    return [p.summed_grad for p in step.optimizer.params]


def relative_error(found: list[Tensor], expected: list[Tensor]) -> float:
    """2-norm of the difference over all tensors, relative to that of the expected ones."""
    difference = math.hypot(*[(f.double() - e.double()).norm().item() for f, e in zip(found, expected, strict=True)])
    return difference / math.hypot(*[e.double().norm().item() for e in expected])
