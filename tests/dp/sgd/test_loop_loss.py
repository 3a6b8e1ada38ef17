"""The loss of a loop of one's own: what takes a record beyond its share is refused, before training or in its first
steps; what is only unusual is not."""

from __future__ import annotations

import pytest
import torch
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from safexplain.dp import FlatClipping, make_private
from safexplain.dp.sgd.loop_loss import check_loop_loss
from safexplain.errors import ConfigurationError, ConfigurationTypeError, RefusedError

G = torch.Generator().manual_seed(0)
X = torch.randn(200, 5, generator=G)
CLASSES = torch.randint(0, 4, (200,), generator=G)
WEIGHT = torch.tensor([1.0, 2.0, 3.0, 8.0])


def training(outputs=4, y=CLASSES, last=None, batch_size=20, **options):
    torch.manual_seed(0)
    layers = [nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, outputs)]
    model = nn.Sequential(*layers, *([last] if last else []))
    loader = DataLoader(TensorDataset(X, y), batch_size=batch_size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"epsilon": None, "noise_multiplier": 1.0, "delta": 1e-5, "epochs": 2, "seed": 0} | options
    return make_private(model, optimizer, loader, clipping=FlatClipping(100.0), **options)


def train(made, loss, pieces=None):
    model, optimizer, loader, privacy = made

    def steps(loader):
        for x, y in loader:
            optimizer.zero_grad()
            if len(y):
                loss(model(x), y).backward()
            optimizer.step()

    for _ in range(2):
        if pieces is None:
            steps(loader)
        else:
            with BatchMemoryManager(data_loader=loader, max_physical_batch_size=pieces, optimizer=optimizer) as split:
                steps(split)
    return privacy.steps


def own_weights(outputs, y):
    return (WEIGHT[y] * functional.cross_entropy(outputs, y, reduction="none")).mean()


def by_batch(outputs, y):
    return functional.cross_entropy(outputs, y, reduction="sum") / 20


BREAKING = {
    "sum": (nn.CrossEntropyLoss(reduction="sum"), "sum over the batch"),
    "sum over the expected batch": (by_batch, "sum over the batch"),
    "class weights": (nn.CrossEntropyLoss(weight=WEIGHT), "divides by something of the whole batch"),
    "class weights, smoothed": (
        lambda o, y: nn.CrossEntropyLoss(label_smoothing=0.1, weight=WEIGHT * 0 + 1, reduction="sum")(o, y),
        "sum over the batch",
    ),
    "a class left out": (nn.CrossEntropyLoss(ignore_index=2), "divides by something of the whole batch"),
}
HARMLESS = {
    "mean": nn.CrossEntropyLoss(),
    "mean, smoothed": nn.CrossEntropyLoss(label_smoothing=0.1),
    "weights of each record's own": own_weights,
    "scaled": lambda o, y: 1024 * functional.cross_entropy(o, y),
    "another": lambda o, y: (o.gather(1, y[:, None]) - 1).square().mean(),
}


@pytest.mark.parametrize(("loss", "message"), BREAKING.values(), ids=BREAKING)
def test_a_loss_that_ties_records_together_is_refused_in_the_first_steps(loss, message):
    made = training()
    with pytest.raises(RefusedError, match=message):
        train(made, loss)
    assert made.privacy.steps <= 3


@pytest.mark.parametrize("loss", HARMLESS.values(), ids=HARMLESS)
@pytest.mark.parametrize("pieces", [None, 7])
def test_a_loss_of_each_record_by_itself_is_not(loss, pieces):
    assert train(training(), loss, pieces) == 20


def test_log_probabilities_and_single_outputs_are_known_too():
    single = (CLASSES > 1).float()

    def made():
        return training(1, single)

    with pytest.raises(RefusedError, match="sum over the batch"):
        train(made(), lambda o, y: functional.binary_cross_entropy_with_logits(o[:, 0], y, reduction="sum"))
    weighted = torch.tensor(3.0)
    for factor in (None, weighted):  # a weight of the positives belongs to each record
        plain = nn.BCEWithLogitsLoss(pos_weight=factor)
        assert train(made(), lambda o, y, plain=plain: plain(o[:, 0], y)) == 20
    for wrong in (nn.NLLLoss(reduction="sum"), nn.NLLLoss(weight=WEIGHT)):
        with pytest.raises(RefusedError):
            train(training(last=nn.LogSoftmax(1)), wrong)
    assert train(training(last=nn.LogSoftmax(1)), nn.NLLLoss()) == 20
    squares = training(1, single)
    assert train(squares, lambda o, y: functional.mse_loss(o[:, 0], y)) == 20


def test_a_loss_of_several_labels_a_record_is_known_too():
    y = torch.nn.functional.one_hot(CLASSES, 4).float()
    assert train(training(4, y), nn.BCEWithLogitsLoss()) == 20
    with pytest.raises(RefusedError, match="sum over the batch"):
        train(training(4, y), nn.BCEWithLogitsLoss(reduction="sum"))


def test_a_sum_over_pieces_is_noticed():
    with pytest.raises(RefusedError, match="sum over the batch"):
        train(training(), nn.CrossEntropyLoss(reduction="sum"), pieces=7)


def test_a_sum_over_all_records_is_a_mean_of_them():
    """With the whole data in every batch the number of rows is no secret, and the factor is public."""
    assert train(training(batch_size=200), nn.CrossEntropyLoss(reduction="sum")) == 2


@pytest.mark.parametrize("name", [name for name in BREAKING if name != "a class left out"])
def test_a_loss_that_is_given_is_refused_before_the_first_step(name):
    loss, message = BREAKING[name]
    with pytest.raises(ConfigurationError, match=message):
        training(loss=loss)


@pytest.mark.parametrize("name", list(HARMLESS))
def test_a_harmless_loss_can_be_given(name):
    assert train(training(loss=HARMLESS[name]), HARMLESS[name]) == 20


def test_given_losses_may_be_of_any_kind():
    outputs, targets = torch.randn(3, 2), torch.randn(3, 2)
    check_loop_loss(nn.MSELoss(), outputs, targets)
    check_loop_loss(nn.HuberLoss(), outputs, targets)
    with pytest.raises(ConfigurationError, match="sum over the batch"):
        check_loop_loss(nn.MSELoss(reduction="sum"), outputs, targets)
    with pytest.raises(ConfigurationError, match="whole batch"):
        check_loop_loss(lambda o, y: (o - o.mean(0)).square().mean(), outputs, targets)
    with pytest.raises(ConfigurationError, match="one number"):
        check_loop_loss(nn.MSELoss(reduction="none"), outputs, targets)
    with pytest.raises(ConfigurationError, match="cannot be computed"):
        check_loop_loss(nn.CrossEntropyLoss(), torch.randn(3, 2, 5), torch.zeros(3, 4).long())
    with pytest.raises(ConfigurationTypeError, match="a function"):
        check_loop_loss("mse", outputs, targets)


def test_what_one_record_changes_in_a_summed_loss_is_more_than_the_clip_bound():
    """The reason for all this: records whose gradients are below the bound all grow when one more joins the batch."""
    torch.manual_seed(0)
    weight = nn.Linear(5, 4).weight
    own = torch.autograd.grad(functional.cross_entropy(X[:1] @ weight.T, CLASSES[:1]), weight)[0]  # of each of equals
    bound = 12 * float(own.norm())

    def clipped_sum(rows: int, factor: int) -> torch.Tensor:
        gradient = factor * own
        return rows * gradient * min(1.0, bound / float(gradient.norm()))

    assert float((clipped_sum(12, 1) - clipped_sum(11, 1)).norm()) <= bound
    assert float((clipped_sum(12, 12) - clipped_sum(11, 11)).norm()) > 1.9 * bound
