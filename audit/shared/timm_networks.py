"""Networks of timm whose weights are given by path: nothing is downloaded.

`timm` itself can fetch most of its weights; what suites report must not depend on whether it could, so that they take a
file: `.safetensors`, a state dictionary of torch (`.pth`, `.pt`, `.bin`; read without running what a pickle may hold),
or the `.npz` in which Google published its vision transformers.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .run import Unusable

SHOWN = 3
"""Names of parameters that an error message lists."""


class Backbone(nn.Module):
    """A network of timm without its classifier, and a linear head.

    Args:
        net: made with `num_classes=0`.
        classes: of the head.
    """

    def __init__(self, net: nn.Module, classes: int) -> None:
        super().__init__()
        from timm.data import resolve_model_data_config

        found: dict[str, Any] = resolve_model_data_config(net)
        self.net, self.size, self.mode = net, tuple(found["input_size"][1:]), found["interpolation"]
        for name in ("mean", "std"):
            self.register_buffer(name, torch.tensor(found[name])[:, None, None], persistent=False)
        self.head = nn.Linear(int(net.num_features), classes)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 3, height, width) pixels from 0 to 1 -> (n, classes)."""
        mode = self.mode if self.mode in ("bilinear", "bicubic", "nearest") else "bicubic"
        large = F.interpolate(x, size=self.size, mode=mode, antialias=mode != "nearest")
        logits: Tensor = self.head(self.net((large - self.get_buffer("mean")) / self.get_buffer("std")))
        return logits


def backbone(arch: str, path: Path, classes: int) -> tuple[Backbone, dict[str, str]]:
    """The network with the weights of a file, in eval mode, and what to record about both.

    A classifier in the file is left out; everything else must be there, and fit.

    Args:
        arch: timm's name of the architecture, such as vit_base_patch16_224.
        path: of the weights.
        classes: of the head, which is new.

    Raises:
        Unusable: timm is missing or does not know the architecture, or the file does not fit.
    """
    try:
        import timm
    except ImportError:
        raise Unusable(f"{arch} is a network of timm: pip install timm") from None
    if not path.is_file():
        raise Unusable(f"--weights: there is no file {path}")
    try:
        net = timm.create_model(arch, pretrained=False, num_classes=0)
    except (RuntimeError, ValueError, TypeError) as error:
        raise Unusable(f"--arch: timm makes no {arch} ({_line(error)}); timm.list_models() has its names") from None
    try:
        (_from_arrays if path.suffix == ".npz" else _from_state)(net, path)
    except Unusable:
        raise
    except Exception as error:  # torch, safetensors, numpy and timm all have their own
        raise Unusable(f"--weights: {path.name} cannot be read as weights of {arch}: {_line(error)}") from None
    about = {"arch": arch, "file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    return Backbone(net, classes).eval(), about


def _from_arrays(net: nn.Module, path: Path) -> None:
    """Google's format, which timm's vision transformers read themselves."""
    if not hasattr(net, "load_pretrained"):
        raise Unusable(f"--weights: {type(net).__name__} of timm reads no .npz file; give .safetensors or .pth")
    net.load_pretrained(str(path))


def _from_state(net: nn.Module, path: Path) -> None:
    """A state dictionary."""
    from timm.models import load_state_dict

    state = load_state_dict(str(path), device="cpu", weights_only=True)
    named = getattr(net, "pretrained_cfg", {}).get("classifier") or "head"
    heads = tuple(f"{name}." for name in ([named] if isinstance(named, str) else named))
    own = net.state_dict()
    state = {name: value for name, value in state.items() if name in own or not name.startswith(heads)}
    missing, unknown = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
    other = sorted(name for name in own.keys() & state.keys() if own[name].shape != state[name].shape)
    for what, names in (("lacks", missing), ("has also", unknown), ("has of another shape", other)):
        if names:
            listed = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
            raise Unusable(f"--weights: {path.name} {what} {listed}; it holds another architecture than --arch says")
    net.load_state_dict(state)


def _line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
