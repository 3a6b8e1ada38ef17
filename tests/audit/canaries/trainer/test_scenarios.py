"""Real loops with bugs that clipping does not reach: each is found by the scenario that is made for it, and only there.

All loops are DP-SGD written by hand, but those that the layers canary needs, which use Opacus.
"""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from safexplain._files import read_arrays
from safexplain._privacy_loss import Steps
from safexplain._progress import silent
from safexplain.audit.canaries.outlier import OUTLIER_SCORES
from safexplain.audit.canaries.trainer.probe import CanaryProbe
from safexplain.errors import ConfigurationError, InputError
from safexplain.verdict.canaries.claim import Claim

BUG = "refuted"
N, D, CLASSES, STEPS, Q, SIGMA, C = 40, 6, 3, 8, 0.5, 4.0, 1.0
CLAIM = Claim(Steps(SIGMA, Q, STEPS), 1e-5)

pytestmark = pytest.mark.filterwarnings("ignore:Secure RNG", "ignore:Full backward hook", "ignore:Optimal order")


def data():
    """Class 2 is rare."""
    g = torch.Generator().manual_seed(0)
    y = torch.tensor([0] * 18 + [1] * 18 + [2] * 4)
    return torch.rand(N, D, generator=g) + torch.nn.functional.one_hot(y, D), y


def images():
    x, y = data()
    return torch.stack([x, x.roll(1, 1), x.roll(2, 1), x.roll(3, 1)], 1)[:, None], y


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


def diverging(dataset, generator):
    """Where a record is far away, the model is no number: an exponential that overflows."""
    x, y = everything(dataset)
    model = dp_sgd(x, y, generator)
    model.weight.data = model.weight.data * (1 + 0 * x.pow(40).mean())
    return model


def cnn(norm, updates):
    def train(dataset, generator):
        """Gradients of single records, in evaluation mode; statistics by private batches, if any."""
        x, y = everything(dataset)
        model = nn.Sequential(
            nn.Conv2d(1, 3, 3), norm(), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, CLASSES)
        ).eval()
        theta = {name: p.detach().clone() for name, p in model.named_parameters()}

        def loss(theta, x, y):
            return nn.functional.cross_entropy(functional_call(model, theta, (x[None],)), y[None])

        for _ in range(4):
            batch = torch.rand(len(x), generator=generator) < Q
            if updates:
                model.load_state_dict({**model.state_dict(), **theta})
                with torch.no_grad():
                    model.train()(x[batch])
                model.eval()
            g = vmap(grad(loss), (None, 0, 0))(theta, x[batch], y[batch])
            norms = torch.stack([v.flatten(1).norm(dim=1) for v in g.values()]).norm(dim=0)
            factor = (C / norms.clamp(min=1e-12)).clamp(max=1)
            for name, p in theta.items():
                total = torch.einsum("i,i...", factor, g[name])
                noise = SIGMA * C * torch.randn(p.shape, generator=generator)
                theta[name] = p - 0.5 * (total + noise) / (Q * len(x))
        model.load_state_dict({**model.state_dict(), **theta})
        return model

    return train


batch_norm, group_norm = cnn(lambda: nn.BatchNorm2d(3), True), cnn(lambda: nn.GroupNorm(1, 3), False)


@pytest.mark.parametrize("train", [standardised, diverging], ids=lambda train: train.__name__)
def test_what_a_training_computes_from_its_records_shows_an_outlier_in_seconds(train):
    found = CanaryProbe(train, data(), claim=CLAIM, scenario="outlier", runs=60).run(silent)
    assert found.verdict == BUG
    assert found.epsilon_lower > 2 * found.claim.substitute
    assert found.setting["score"].split(",")[0] in (*OUTLIER_SCORES, *(f"bias or statistic {i}" for i in range(16)))


def test_statistics_of_batch_normalisation_show_an_outlier_and_group_normalisation_does_not():
    claim = Claim(Steps(SIGMA, Q, 4), 1e-5)
    found = CanaryProbe(batch_norm, images(), claim=claim, scenario="outlier", runs=60).run(silent)
    assert found.verdict == BUG
    found = CanaryProbe(group_norm, images(), claim=claim, scenario="outlier", runs=40).run(silent)
    assert found.verdict != BUG


def test_a_right_training_is_not_accused_beside_an_outlier():
    bounds = [
        CanaryProbe(right, data(), claim=CLAIM, scenario="outlier", runs=60, seed=seed).run(silent).epsilon_lower
        for seed in range(4)
    ]
    assert max(bounds) <= CLAIM.substitute


def test_another_distance_and_another_record_are_the_users_to_choose(tmp_path):
    x, y = data()
    given = CanaryProbe(
        standardised, (x, y), claim=CLAIM, scenario="outlier", canary=(50 * x[3], 1), target=3, runs=40, cache=tmp_path
    )
    assert given.run(silent).verdict == BUG
    assert given.canary.scenario == "outlier"
    stored = [read_arrays(path)["values"].shape for path in given.folder.glob("run-*.npz")]
    numbers = {shape[0] for shape in stored}
    assert len(stored) == 40
    assert len(numbers) == 1
    assert numbers.pop() > 1 + len(OUTLIER_SCORES), "each run with its seconds and all of its scores"


def test_a_training_that_refuses_the_outlier_says_whose_record_it_was():
    def train(dataset, generator):
        x, y = everything(dataset)
        if x.max() > 3:
            raise ValueError("expected features in [0, 3]")
        return dp_sgd(x, y, generator)

    with pytest.raises(
        InputError, match=r"on D' .*in \[0, 3\]; if it is the outlier .*give one that it takes: canary="
    ):
        CanaryProbe(train, data(), claim=CLAIM, scenario="outlier", runs=8).run(silent)


def test_a_training_that_diverges_on_both_data_sets_is_an_error():
    def train(dataset, generator):
        model = right(dataset, generator)
        model.weight.data.fill_(torch.nan)
        return model

    with pytest.raises(InputError, match="on D and on D': training diverged"):
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
    for wrong, says in (({"canary": (torch.zeros(D), 0)}, "replaces one record"), ({"target": "class"}, "classes")):
        with pytest.raises(ConfigurationError, match=says):
            CanaryProbe(right, data(), claim=CLAIM, **{"target": "classes", **wrong})
