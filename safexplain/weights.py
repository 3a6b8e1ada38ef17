"""A digest of trained weights that a privacy statement can be tied to, whatever file the model travels in."""

from __future__ import annotations

import hashlib

import torch
from torch import nn


def weights_digest(model: nn.Module) -> str:
    """SHA-256 over the sorted SHA-256 of every parameter's type, shape and bytes.

    Names and classes do not enter, so that a module, its state_dict in another class, and its `torch.export` archive
    have the same digest; one changed weight changes it.

    Args:
        model: on any device.
    """
    each = []
    for parameter in model.parameters():
        found = hashlib.sha256(f"{parameter.dtype} {tuple(parameter.shape)} ".encode())
        found.update(parameter.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        each.append(found.digest())
    return hashlib.sha256(b"".join(sorted(each))).hexdigest()
