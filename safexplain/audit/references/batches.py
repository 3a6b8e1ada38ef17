"""Batches of a training: an epoch's random numbers are drawn together, on the CPU, and moved to the device in one copy.

So GPU and CPU train on the same batches. Data that does not fit on the device is copied batch by batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from safexplain.errors import InputError

AugmentationName = Literal["none", "flip", "crop-flip"]

SHARE = 1 / 3  # largest share of the free memory of a GPU that data takes; the rest is for the training


def fits(x: Tensor, device: torch.device) -> bool:
    """Whether data can stay on the device: it is there, or takes at most `SHARE` of the free memory."""
    if x.device == device or device.type != "cuda":
        return True
    free = torch.cuda.mem_get_info(device)[0]
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return bool(x.nbytes <= SHARE * free)


def moved(x: Tensor, device: torch.device) -> Tensor:
    """A tensor on the device; copies to a GPU are asynchronous, from pinned memory."""
    if x.device.type == "cpu" and device.type == "cuda":
        return x.pin_memory().to(device, non_blocking=True)
    return x.to(device)


class Batches:
    """The (b, ...) inputs and (b,) labels of one model's epochs, on the device, in batches of the given sizes, which
    sum to the members. A CPU generator draws order and augmentation.

    Raises:
        InputError: augmentation or channels_last for data other than images, or images too small for crops.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        sizes: Sequence[int],
        augmentation: AugmentationName,
        device: torch.device,
        generator: torch.Generator,
        channels_last: bool = False,
    ) -> None:
        if (augmentation != "none" or channels_last) and x.dim() != 4:
            option = "channels_last" if augmentation == "none" else f"augmentation {augmentation!r}"
            raise InputError(f"{option}: expected images (batch, channels, height, width), got {tuple(x.shape)}")
        if augmentation == "crop-flip" and padding(x) >= min(h := x.shape[2], w := x.shape[3]):
            raise InputError(f"images of {h} x {w} pixels are too small for crops of images padded by {padding(x)}")
        self.near = fits(x, device)
        self.x, self.y = (x.to(device) if self.near else x), y.to(device)
        self.sizes, self.steps = sizes, len(sizes)
        self.generator = generator
        self.augmentation, self.device = augmentation, device
        self.channels_last = channels_last

    def epoch(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of one epoch, drawn together."""
        order = self._draws()
        draws = moved(order, self.device)
        for size, end in zip(self.sizes, accumulate(self.sizes), strict=True):
            index, *drawn = draws[:, end - size : end].unbind()
            if self.near:
                x = self._augmented(self.x, index, drawn)
            else:
                copied = moved(self.x[order[0, end - size : end]], self.device)
                x = self._augmented(copied, torch.arange(size, device=self.device), drawn)
            yield x.contiguous(memory_format=torch.channels_last) if self.channels_last else x, self.y[index]

    def _draws(self) -> Tensor:
        """(1, 2 or 4, members) int64: positions; rows and columns of crops; and whether an image is mirrored."""
        g, drawn = self.generator, []
        order = torch.randperm(len(self.y), generator=g)[None]
        for size in self.sizes:
            corner = torch.empty((0, size), dtype=torch.int64)
            if self.augmentation == "crop-flip":
                corner = torch.randint(0, 2 * padding(self.x) + 1, (2, size), generator=g)
            if self.augmentation != "none":
                drawn.append(torch.cat([corner, (torch.rand(size, generator=g) < 0.5).long()[None]]))
        return torch.cat([order, torch.cat(drawn, dim=1)]) if drawn else order

    def _augmented(self, x: Tensor, index: Tensor, drawn: list[Tensor]) -> Tensor:
        x = x[index]
        if len(drawn) == 3:
            return shift_and_flip(x, *drawn)
        return torch.where(drawn[0].bool()[:, None, None, None], x.flip(3), x) if drawn else x


def padding(x: Tensor) -> int:
    """Pixels by which images (b, c, h, w) are padded on each side for crops: 1/8 of the height."""
    return max(x.shape[2] // 8, 1)


def shift_and_flip(x: Tensor, rows: Tensor, columns: Tensor, mirrored: Tensor) -> Tensor:
    """A crop of each image (b, c, h, w), reflect-padded by `padding`: it starts at row and column (b,), 0 .. 2 *
    padding, and is mirrored (b,) or not."""
    (h, w), device = x.shape[2:], x.device
    padded = F.pad(x, (padding(x),) * 4, mode="reflect").permute(0, 2, 3, 1)
    at = columns.to(device)[:, None] + torch.arange(w, device=device)
    at = torch.where(mirrored.to(device).bool()[:, None], at.flip(1), at)
    down = rows.to(device)[:, None] + torch.arange(h, device=device)
    index = torch.arange(len(x), device=device)[:, None, None]
    return padded[index, down[:, :, None], at[:, None, :]].permute(0, 3, 1, 2)
