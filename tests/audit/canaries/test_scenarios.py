"""Real loops with bugs that clipping does not reach: each is found by the scenario that is made for it, and only there.

All loops are DP-SGD written by hand, but those that the layers canary needs, which use Opacus.
"""

import pytest
import torch
from torch import nn

from safexplain._privacy_loss import Steps
from safexplain._progress import silent
from safexplain.audit.canaries.canary import OUTLIER_SCORES
from safexplain.audit.canaries.probe import CanaryProbe
from safexplain.errors import ConfigurationError, InputError
from safexplain.verdict.canaries.result import Claim

BUG = "refuted"
N, D, CLASSES, STEPS, Q, SIGMA, C = 40, 6, 3, 8, 0.5, 4.0, 1.0
CLAIM = Claim(Steps(SIGMA, Q, STEPS), 1e-5)

pytestmark = pytest.mark.filterwarnings("ignore:Secure RNG", "ignore:Full backward hook", "ignore:Optimal order")


def data():
    """Class 2 is rare."""
    g = torch.Generator().manual_seed(0)
    y = torch.tensor([0] * 18 + [1] * 18 + [2] * 4)
    return torch.rand(N, D, generator=g) + torch.nn.functional.one_hot(y, D), y


def everything(dataset):
    return (torch.stack(part) for part in zip(*dataset.__getitems__(range(len(dataset))), strict=True))


def dp_sgd(x, y, generator, start=None, weights=None, sigma=SIGMA):
    """Softmax regression in closed form; class weights multiply gradients that are clipped already, which is a bug."""
    w = torch.zeros(CLASSES, x.shape[1]) if start is None else start
    for _ in range(STEPS):
        batch = torch.rand(len(x), generator=generator) < Q
        residual = (x[batch] @ w.T).softmax(1) - nn.functional.one_hot(y[batch], CLASSES)
        g = residual[:, :, None] * x[batch][:, None]
        g = g * (C / g.flatten(1).norm(dim=1).clamp(min=1e-12)).clamp(max=1)[:, None, None]
        if weights is not None:
            g = g * weights[y[batch]][:, None, None]
        w = w - 0.5 * (g.sum(0) + sigma * C * torch.randn(w.shape, generator=generator)) / (Q * len(x))
    model = nn.Linear(x.shape[1], CLASSES, bias=False)
    model.weight.data = w
    return model


def right(dataset, generator):
    return dp_sgd(*everything(dataset), generator)


class Standardised(nn.Module):
    def __init__(self, mean, deviation, model):
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("deviation", deviation)
        self.model = model

    def forward(self, x):
        return self.model((x - self.mean) / self.deviation)


def standardised(dataset, generator):
    """The scaler is fitted on private data."""
    x, y = everything(dataset)
    mean, deviation = x.mean(0), x.std(0)
    return Standardised(mean, deviation, dp_sgd((x - mean) / deviation, y, generator))


def test_what_a_training_computes_from_its_records_shows_an_outlier_in_seconds():
    found = CanaryProbe(standardised, data(), claim=CLAIM, scenario="outlier", runs=60).run(silent)
    assert found.verdict == BUG
    assert found.epsilon_lower > 2 * found.claim.substitute
    assert found.setting["score"].split(",")[0] in (*OUTLIER_SCORES, *(f"bias or statistic {i}" for i in range(16)))


def test_a_right_training_is_not_accused_beside_an_outlier():
    bounds = [
        CanaryProbe(right, data(), claim=CLAIM, scenario="outlier", runs=60, seed=seed).run(silent).epsilon_lower
        for seed in range(4)
    ]
    assert max(bounds) <= CLAIM.substitute


def test_a_training_that_refuses_the_outlier_says_whose_record_it_was():
    def train(dataset, generator):
        x, y = everything(dataset)
        if x.max() > 3:
            raise ValueError("expected features in [0, 3]")
        return dp_sgd(x, y, generator)

    with pytest.raises(
        InputError, match=r"on D' .*in \[0, 3\]; if it refuses the outlier, give one that it accepts: canary="
    ):
        CanaryProbe(train, data(), claim=CLAIM, scenario="outlier", runs=8).run(silent)


def test_a_training_that_diverges_on_both_data_sets_is_an_error():
    def train(dataset, generator):
        model = right(dataset, generator)
        model.weight.data.fill_(torch.nan)
        return model

    with pytest.raises(InputError, match="none in any run: training diverged"):
        CanaryProbe(train, data(), claim=CLAIM, scenario="outlier", runs=8).run(silent)


def weighted(dataset, generator):
    return dp_sgd(*everything(dataset), generator, weights=torch.tensor([1.0, 1.0, 20.0]))


def test_class_weights_after_clipping_show_where_a_record_of_every_class_is_replaced(tmp_path):
    probe = CanaryProbe(weighted, data(), claim=CLAIM, target="classes", runs=120, seed=1, cache=tmp_path, version="1")
    every = probe.each(silent)
    assert [found.setting["class"] for found in every] == [2, 0, 1], "the rarest first"
    assert [int(data()[1][found.setting["target"]]) for found in every] == [2, 0, 1]
    assert all(found.confidence == pytest.approx(1 - 0.05 / 3) for found in every)
    decides = probe.run(silent)
    assert decides.verdict == BUG
    assert decides.epsilon_lower == max(found.epsilon_lower for found in every)
    assert len(list(tmp_path.glob("*/run-0.npz"))) == 3, "runs of its own for each, which are taken up"


def test_a_target_of_every_class_takes_no_record_of_ones_own():
    for wrong, says in (({"canary": (torch.zeros(D), 0)}, "without canary="), ({"target": "class"}, "classes")):
        with pytest.raises(ConfigurationError, match=says):
            CanaryProbe(right, data(), claim=CLAIM, **{"target": "classes", **wrong})
