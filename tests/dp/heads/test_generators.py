"""Heads with generators of their own: the same whoever trains beside them."""

from __future__ import annotations

import pytest
import torch

from safexplain.dp import FlatClipping
from safexplain.dp.heads.closed_form import train_heads
from safexplain.dp.heads.recipe import HeadRecipe
from safexplain.errors import InputError

RECIPE = HeadRecipe(3, 30, 0.2, 4.0, FlatClipping(0.5), 0.1)


def heads(which, **changes):
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(20, 5, generator=g), torch.randint(0, 3, (20,), generator=g)
    members = torch.rand(4, 20, generator=g) < 0.7
    own = [torch.Generator().manual_seed(i) for i in which]
    return train_heads(
        x, y, RECIPE, **{"noise_multiplier": 1.0, "runs": len(which), "membership": members[list(which)],
                         "generator": own, **changes},
    )  # fmt: skip


def test_a_head_does_not_depend_on_who_trains_beside_it():
    every = heads(range(4)).weight
    for which in ([2], [3, 2], [0, 1, 2]):
        found = heads(which).weight[which.index(2)]
        assert torch.allclose(found, every[2], atol=1e-6)
    assert len({float(w.sum()) for w in every}) == 4


@pytest.mark.parametrize(
    "changes",
    [{"generator": [torch.Generator()]}, {"shared_batches": True}],
    ids=["too few", "common batches"],
)
def test_too_few_generators_or_common_batches_are_refused(changes):
    with pytest.raises(InputError, match="one for each of 4 runs"):
        heads(range(4), **changes)
