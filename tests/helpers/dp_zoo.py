"""Small nets of the kinds that people fine-tune, and per-sample gradients one row at a time."""

import copy
import warnings

import timm
import torch
import torchvision
from opacus.grad_sample import GradSampleModule
from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import GradSampleModuleFastGradientClipping
from timm.models.beit import Beit
from torch import nn
from torch.nn.functional import cross_entropy

TINY = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3, "num_classes": 10}


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 16), nn.ReLU(inplace=True), nn.Linear(16, 10))


NETS = {
    "vit_tiny": lambda: timm.create_model("vit_tiny_patch16_224", pretrained=False, **TINY),
    "vit_small": lambda: timm.create_model("vit_small_patch16_224", pretrained=False, **{**TINY, "init_values": 0.1}),
    "beit": lambda: Beit(**TINY, init_values=0.1),
    "torchvision_vit": lambda: torchvision.models.VisionTransformer(32, 8, 2, 3, 48, 64, num_classes=10),
    "torchvision_resnet18": lambda: torchvision.models.resnet18(num_classes=10),
    "timm_resnet18": lambda: timm.create_model("resnet18", pretrained=False, num_classes=10, channels=(8, 8, 16, 16)),
    "mlp": mlp,
}


def build(name, seed=0):
    torch.manual_seed(seed)
    return awake(NETS[name]())


def awake(model):
    """No parameter at zero: behind a head of zeros, as torchvision's, every gradient would be right."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape))
    return model


def images(rows=2, seed=1, dtype=torch.float32):
    x = torch.randn(rows, 3, 32, 32, generator=torch.Generator().manual_seed(seed))
    return x.to(dtype), torch.arange(rows)


def single_gradients(model, x, y):
    """For each row: name -> gradient of the row's loss, the row alone in the batch."""
    model = copy.deepcopy(model)
    rows = []
    for i in range(len(x)):
        model.zero_grad()
        cross_entropy(model(x[i : i + 1]), y[i : i + 1]).backward()
        rows.append({name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad})
    return rows


def norms(rows):
    return torch.stack([torch.stack([g.norm() for g in row.values()]).norm() for row in rows])


def watched(model, x, y, kind=GradSampleModule):
    """A copy of the model after a forward and backward pass with Opacus' hooks."""
    model = kind(copy.deepcopy(model), loss_reduction="sum")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Full backward hook is firing")
        warnings.filterwarnings("ignore", "There is a performance drop")
        cross_entropy(model(x), y, reduction="sum").backward()
    return model


def largest_error(model, x, y, rows=None):
    """Of per-sample gradients by Opacus' hooks, relative to the gradient (or a millionth of the row's whole)."""
    rows = rows or single_gradients(model, x, y)
    found = dict(watched(model, x, y)._module.named_parameters())
    errors = [0.0]
    for i, (row, whole) in enumerate(zip(rows, norms(rows), strict=True)):
        assert sum(bool(grad.norm() > 1e-6 * whole) for grad in row.values()) > 0.8 * len(row)
        for name, grad in row.items():
            sample = found[name].grad_sample
            assert sample is not None, f"no per-sample gradients of {name}"
            assert len(sample) == len(x), f"{len(sample)} per-sample gradients of {name} for {len(x)} rows"
            errors.append(float((sample[i] - grad).norm() / grad.norm().clamp(min=1e-6 * whole)))
    return max(errors)


def ghost_norms(model, x, y):
    return watched(model, x, y, GradSampleModuleFastGradientClipping).get_norm_sample()


def conv_net(**norm):
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8, **norm), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(2)]
    return awake(nn.Sequential(*body, nn.Flatten(), nn.Linear(32, 10)))


def used(model):
    """The model after some training: running statistics that are not the first ones."""
    model.train()
    with torch.no_grad():
        model(3 * images(8)[0] + 1)
    return model


class Attention(nn.Module):
    def __init__(self, batch_first=True):
        super().__init__()
        layer = nn.TransformerEncoderLayer(12, 2, 16, dropout=0.0, batch_first=batch_first)
        self.transformer = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head, self.axis = nn.Linear(12, 3), int(batch_first)

    def forward(self, x):
        if not self.axis:
            return self.head(self.transformer(x.transpose(0, 1)).mean(0))
        return self.head(self.transformer(x).mean(1))


class Weighed(nn.Module):
    """A parameter of its own beside a layer and dropout."""

    def __init__(self):
        super().__init__()
        self.scale, self.layer, self.drop = nn.Parameter(torch.ones(3)), nn.Linear(3, 3), nn.Dropout(0.1)

    def forward(self, x):
        return self.drop(self.layer(x)) * self.scale
