"""Batches of a training: an epoch's random numbers are drawn together and moved to the device in one copy.

All draws come from a CPU generator in one fixed order, so that GPU and CPU train on the same batches. Data that fits
stays on the device for the whole training; data that does not is copied batch by batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor

from safexplain.errors import InputError

AugmentationName = Literal["none", "flip", "crop-flip"]

SHARE = 1 / 3
"""Largest share of the free memory of a GPU that data takes; the rest is for the training."""


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
        option = (
            f"augmentation {augmentation!r}" if augmentation != "none" else "channels_last" if channels_last else ""
        )
        if option and x.dim() != 4:
            raise InputError(f"{option}: expected images (batch, channels, height, width), got {tuple(x.shape)}")
        self.near = fits(x, device)
        self.x, self.y = (x.to(device) if self.near else x), y.to(device)
        self.sizes, self.steps = sizes, len(sizes)
        self.generator = generator
        self.augmentation, self.device = augmentation, device
        self.crops = Crops(x, device) if augmentation == "crop-flip" else None
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
        """(1 to 3, members) int64: positions; rows and columns of crops, or whether an image is mirrored."""
        g, drawn = self.generator, []
        order = torch.randperm(len(self.y), generator=g)[None]
        for size in self.sizes:
            if self.crops:
                rows, columns = (torch.randint(0, self.crops.most, (size,), generator=g) for _ in range(2))
                mirrored = (torch.rand(size, generator=g) < 0.5).long()
                drawn.append(torch.stack([rows, self.crops.column(columns, mirrored)]))
            elif self.augmentation == "flip":
                drawn.append((torch.rand(size, generator=g) < 0.5).long()[None])
        return torch.cat([order, torch.cat(drawn, dim=1)]) if drawn else order

    def _augmented(self, x: Tensor, index: Tensor, drawn: list[Tensor]) -> Tensor:
        if self.crops:
            return self.crops.of(x, index, *drawn)
        x = x[index]
        return torch.where(drawn[0].bool()[:, None, None, None], x.flip(3), x) if drawn else x


class Crops:
    """Crops of reflect-padded images (n, c, h, w), mirrored or not, as one gather from the unpadded images. Raises
    InputError for images too narrow to be padded."""

    def __init__(self, x: Tensor, device: torch.device) -> None:
        pad, (h, w) = padding(x), x.shape[2:]
        if pad >= min(h, w):
            raise InputError(f"images of {h} x {w} pixels are too small for crops of images padded by {pad}")
        self.most = 2 * pad + 1
        rows, columns = (_reflected(side, pad) for side in (h, w))
        self._rows, self._columns = rows.to(device), torch.cat([columns, columns.flip(1)]).to(device)

    def column(self, shift: Tensor, mirrored: Tensor) -> Tensor:
        """The column for `of`, from its shift and whether the crop is mirrored (0 or 1)."""
        return mirrored * self.most + shift

    def of(self, x: Tensor, index: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """(b, c, h, w) crops of the images `index` (b,) of x (n, c, h, w): the first row of each in the padded image,
        0 .. 2 * padding, and its column from `column`."""
        pixels = x.permute(0, 2, 3, 1)
        found = pixels[index[:, None, None], self._rows[rows][:, :, None], self._columns[columns][:, None, :]]
        return found.permute(0, 3, 1, 2)


def _reflected(side: int, pad: int) -> Tensor:
    """(2 * pad + 1, side): for each shift, the source pixels of a crop of the reflect-padded image."""
    at = (torch.arange(2 * pad + 1)[:, None] + torch.arange(side) - pad).abs()
    return side - 1 - (side - 1 - at).abs()


def padding(x: Tensor) -> int:
    """Pixels by which images (b, c, h, w) are padded on each side for crops: 1/8 of the height."""
    return max(x.shape[2] // 8, 1)


def shift_and_flip(x: Tensor, rows: Tensor, columns: Tensor, mirrored: Tensor) -> Tensor:
    """A crop of each image (b, c, h, w), reflect-padded by `padding`: it starts at row and column (b,), 0 .. 2 *
    padding, and is mirrored (b,) or not."""
    crops = Crops(x, x.device)
    index = torch.arange(len(x), device=x.device)
    return crops.of(x, index, rows.to(x.device), crops.column(columns, mirrored.long()).to(x.device))
