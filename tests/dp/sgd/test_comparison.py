"""What privacy costs in accuracy: the same training with other budgets and without; nothing of it in what is kept."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional

from safexplain._progress import silent
from safexplain.dp import DPFineTuner, FlatClipping
from safexplain.dp.sgd import finetune
from safexplain.dp.sgd.finetune import accuracy_of
from safexplain.dp.sgd.sampling import PoissonSampler, records_of
from safexplain.errors import ConfigurationError, InputError


def data(n, seed):
    x = torch.randn(n, 6, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] + x[:, 1] > 0).long()


RECORDS, OTHERS = data(300, 0), data(400, 1)


def tuner(**options):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    given = {"epsilon": 8.0, "delta": 1e-5, "steps": 60, "batch_size": 60, "lr": 0.05, "seed": 1, "progress": silent}
    return DPFineTuner(network, RECORDS, **(given | options))


@pytest.fixture(scope="module")
def compared():
    """A training compared with one of epsilon 1, and one without privacy; tests only read it."""
    return tuner().fit(compare=OTHERS, epsilons=[1])


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("trainable", ["all", "head"])
def test_each_row_is_the_training_with_that_budget(trainable):
    done = tuner(trainable=trainable, steps=30).fit(compare=OTHERS, epsilons=[8, 0.5])
    rows = done.comparison.trainings
    alone = {e: tuner(trainable=trainable, steps=30, epsilon=e).fit() for e in (0.5, 8)}
    assert [t.accuracy for t in rows[:2]] == [accuracy_of(alone[e].model, records_of(OTHERS), 64) for e in alone]
    assert [t.epsilons for t in rows[:2]] == [a.statement.epsilons for a in alone.values()]
    assert done.accuracy == rows[1].accuracy
    assert torch.equal(weights(done.model), weights(alone[8].model)), "the model is the one without compare"
    assert (rows[2].epsilons, rows[2].noise_multiplier) == (None, 0.0)
    assert rows[0].accuracy < rows[2].accuracy > 0.85


def test_without_privacy_gradients_are_whole_and_no_noise_is_added():
    """The plain training, written out: the same batches, the sum of gradients over the expected size."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    sampler, (x, y) = PoissonSampler(1), RECORDS
    for t in range(20):
        rows = sampler.batch(t, 300, 0.2)
        model.zero_grad()
        (functional.cross_entropy(model(x[rows]), y[rows], reduction="sum") / 60).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.5 * p.grad
    made = tuner(steps=20, optimizer="sgd", lr=0.5, clipping=FlatClipping(0.01))
    found = made.fit(compare=OTHERS).comparison.trainings[-1]
    assert found.accuracy == accuracy_of(model.eval(), records_of(OTHERS), 64) > 0.9
    others = made._comparison_tuners(records_of(OTHERS), [])
    assert torch.allclose(weights(others[-1]._train_copy(silent, {})[0]), weights(model), atol=1e-5)


def test_what_was_compared_is_not_printed_with_the_model_nor_kept_in_copies(compared):
    done = compared
    without = f"{done.comparison.trainings[-1].accuracy:.3f}"
    assert f"Accuracy on other records             {done.accuracy:.3f}" in str(done)
    assert without not in str(done)
    assert without in str(done.comparison)
    for kept in (copy.copy(done), pickle.loads(pickle.dumps(done))):
        assert kept.comparison is None
        assert kept.accuracy == done.accuracy
    assert without not in done.statement.to_markdown()
    assert not any(isinstance(value, nn.Module) for value in vars(done.comparison).values())


def test_the_table_says_both_epsilons_and_for_whom_it_is(compared):
    text = str(compared.comparison)
    lines = text.splitlines()
    assert lines[0] == "Accuracy on 400 other records, by the epsilon of the training"
    assert [line.split()[1] for line in lines[2:5]] == ["1.00", "8.00", "none"]
    assert "±" in lines[2]
    assert "For internal use only" in text


def test_the_figure_has_a_point_for_each_epsilon_and_a_line_without(compared, tmp_path):
    figure = compared.comparison.plot(tmp_path / "cost.png")
    axes = figure.axes[0]
    assert list(axes.get_lines()[0].get_xdata()) == pytest.approx([1.0, 8.0], rel=1e-3)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["without", "with privacy"]
    assert (tmp_path / "cost.png").stat().st_size > 0


def test_the_features_of_a_frozen_backbone_are_computed_once(monkeypatch):
    calls = []
    real = finetune.features
    monkeypatch.setattr(finetune, "features", lambda *a, **k: calls.append(1) or real(*a, **k))
    tuner(trainable="head").fit(compare=OTHERS, epsilons=[1, 2])
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("compare", "epsilons", "error", "message"),
    [
        (None, [1], ConfigurationError, "compare="),
        (OTHERS, [0], ConfigurationError, "epsilons"),
        ((OTHERS[0][:, :3], OTHERS[1]), [], InputError, "cannot take rows"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_training(compare, epsilons, error, message):
    told = []
    with pytest.raises(error, match=message):
        tuner(progress=lambda *a: told.append(a)).fit(compare=compare, epsilons=epsilons)
    assert not told


def test_a_regression_has_no_accuracy():
    model = nn.Sequential(nn.Linear(6, 1), nn.Flatten(0))
    made = DPFineTuner(
        model, (RECORDS[0], RECORDS[0][:, 0]), epsilon=8.0, delta=1e-5, steps=5, progress=silent,
        loss=lambda out, y: (out - y).square(), batch_size=60,
    )  # fmt: skip
    with pytest.raises(InputError, match="accuracy needs outputs of shape"):
        made.fit(compare=(OTHERS[0], OTHERS[0][:, 0]))


def test_a_tuner_and_its_result_print_what_they_are():
    made = tuner(trainable="head")
    for text in (str(made), str(made.fit())):
        for part in ("Sequential", "8.000", "1e-05", "60 steps with noise", "AutoSClipping", "18 of 74 parameters"):
            assert part in text
    assert "Accuracy" not in str(made.fit())
