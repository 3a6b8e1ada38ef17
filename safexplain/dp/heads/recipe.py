"""How linear heads are trained, many runs at once: every choice but the noise and the data, and the Poisson batches.

In a batch each member of each run is in with the same probability, independently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from safexplain._validate import check_whole, keep_number
from safexplain.dp.sgd.clipping import Clipping
from safexplain.dp.sgd.sampling import Source, uniform
from safexplain.errors import ConfigurationError

Batch = tuple[Tensor | None, Tensor | None]
"""(index, weight). index: rows of the batch, (b,) for all runs or (runs, b); None: all n rows, in order.
weight: (runs, b) or (1, b) bool, False where a row is padding or not in the run's batch; None: every row is in."""

_AT_ONCE = 2**18
"""Sampling decisions that are drawn together."""
_AT_ONCE_EACH = 2**16
"""The same of each run that has a generator of its own: its numbers must not depend on how many others there are."""
_DENSE = 0.5
"""From this share of the rows on, multiplying all of them beats gathering some."""


Generators = Source | Sequence[Source]
"""One for all runs, or one for each."""


def own_batches(sample_rate: float, members: Tensor, steps: int, generator: Generators) -> Iterator[Batch]:
    """A sample of its own for each run.

    Args:
        sample_rate: in (0, 1]; 1 takes all members and draws nothing.
        members: (runs, n) bool.
        steps: how many batches.
        generator: torch's on the device of `members`, or a cryptographic one; one for each run where samples must not
            depend on who else trains.
    """
    runs, n = members.shape
    if sample_rate >= 1:
        whole = None if bool(members.all()) else members
        yield from ((None, whole) for _ in range(steps))
        return
    dense = sample_rate * float(members.float().mean()) > _DENSE
    single = isinstance(generator, Source)
    together = max(1, _AT_ONCE // (runs * n) if single else _AT_ONCE_EACH // n)
    for start in range(0, steps, together):
        count = min(together, steps - start)
        if isinstance(generator, Source):
            drawn = uniform((count, runs, n), generator, members.device) < sample_rate
        else:
            each = [uniform((count, n), one, members.device) < sample_rate for one in generator]
            drawn = torch.stack(each, 1)
        drawn &= members
        yield from ((None, chosen) for chosen in drawn) if dense else _gathered(drawn)


def _gathered(drawn: Tensor) -> Iterator[Batch]:
    """The chosen rows of each step, (steps, runs, n) bool, padded to the longest run of the step."""
    steps, runs, n = drawn.shape
    sizes = drawn.sum(2)
    ends = sizes.flatten().cumsum(0)
    sample, row = drawn.view(steps * runs, n).nonzero(as_tuple=True)
    index = torch.zeros(steps * runs, n, dtype=torch.long, device=drawn.device)
    index[sample, torch.arange(len(row), device=row.device) - (ends - sizes.flatten())[sample]] = row
    widths = sizes.amax(1).tolist()  # the only wait for a GPU
    for chosen, size, width in zip(index.view(steps, runs, n), sizes, widths, strict=True):
        if runs == 1:
            yield chosen[0, :width], None
        else:
            yield chosen[:, :width], torch.arange(width, device=row.device) < size[:, None]


def common_batches(sample_rate: float, members: Tensor, steps: int, generator: Source) -> Iterator[Batch]:
    """One sample of the rows for all runs, each of which takes its members of it; arguments as in `own_batches`."""
    everyone = bool(members.all())
    for index, weight in own_batches(sample_rate, torch.ones_like(members[:1]), steps, generator):
        if everyone:
            yield index, weight
        elif index is None:
            yield None, members if weight is None else members & weight
        else:
            yield index, members[:, index]


HeadOptimizer = Literal["sgd", "adam"]

Update = Callable[[Tensor], None]
"""Moves the parameters by one step along a gradient."""


@dataclass(frozen=True)
class HeadRecipe:
    """Training of a linear head by DP-SGD.

    Args:
        classes: how many there are, a public number that is not read off the labels.
        steps: of the optimizer.
        sample_rate: probability of each row that a head trains on to be in a batch; 1: full batches.
        expected_batch_size: what the noisy sum of gradients is divided by, a public constant; normally sample_rate
            times the rows that a head trains on.
        clipping: `FlatClipping` or `AutoSClipping`; None only for training without noise.
        lr: learning rate.
        optimizer: as in `torch.optim`.
        momentum: of SGD.
        l2: this multiple of the parameters, the bias included, is added to the noisy gradient; it reads no data.
        bias: whether there is a constant.
        one_logit: for two classes, one vector of weights (logistic regression) instead of two.

    Raises:
        ConfigurationError: a value is out of range.
    """

    classes: int
    steps: int
    sample_rate: float
    expected_batch_size: float
    clipping: Clipping | None
    lr: float
    optimizer: HeadOptimizer = "sgd"
    momentum: float = 0.0
    l2: float = 0.0
    bias: bool = True
    one_logit: bool = False

    def __post_init__(self) -> None:
        for name, least in (("classes", 2), ("steps", 1)):
            check_whole(name, getattr(self, name), least)
        keep_number(self, "sample_rate", above=0.0)
        if self.sample_rate > 1:
            raise ConfigurationError(f"sample_rate: expected a probability in (0, 1], got {self.sample_rate!r}")
        for name in ("expected_batch_size", "lr"):
            keep_number(self, name, above=0.0)
        for name in ("momentum", "l2"):
            keep_number(self, name, minimum=0.0)
        if self.optimizer not in get_args(HeadOptimizer):
            raise ConfigurationError(f"optimizer: expected one of {get_args(HeadOptimizer)}, got {self.optimizer!r}")
        if self.momentum >= 1 or (self.momentum and self.optimizer != "sgd"):
            raise ConfigurationError(f"momentum: expected a number in [0, 1), and 0 for Adam, got {self.momentum!r}")
        if self.clipping is not None and self.clipping.per_layer:
            raise ConfigurationError("a head is clipped as a whole: use FlatClipping or AutoSClipping")
        if self.one_logit and self.classes != 2:
            raise ConfigurationError(f"one_logit is for 2 classes, got {self.classes}")

    @property
    def outputs(self) -> int:
        """Rows of a head's weight matrix."""
        return 1 if self.one_logit else self.classes

    def make_update(self, theta: Tensor) -> Update:
        """Steps of `torch.optim`, elementwise, so that heads in one tensor do not meet.

        Its functions are used, not its classes, whose bookkeeping would add up to two thirds to a small head's step.

        Args:
            theta: changed in place by each step.
        """
        options: dict[str, Any] = {"lr": self.lr, "weight_decay": self.l2, "maximize": False, "foreach": False}
        if self.optimizer == "sgd":
            buffers: list[Tensor | None] = [None]
            options |= {"momentum": self.momentum, "dampening": 0.0, "nesterov": False}
            return lambda gradient: sgd([theta], [gradient], buffers, **options)
        first, second, count = torch.zeros_like(theta), torch.zeros_like(theta), torch.zeros(())
        options |= {"amsgrad": False, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
        return lambda gradient: adam([theta], [gradient], [first], [second], [], [count], **options)
