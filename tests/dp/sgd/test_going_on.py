"""A loop of one's own that goes on: what was spent comes back whichever way the training does, or it is refused."""

from __future__ import annotations

import copy
import io
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from safexplain.dp import BudgetSpent, composed, make_private
from safexplain.errors import ConfigurationError, InputError, PrivacyWarning

X = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()
BUDGET = {"epsilon": 3.0, "delta": 1e-5, "epochs": 2}


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))


def private(model, **options):
    loader = DataLoader(TensorDataset(X, Y), batch_size=10)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return make_private(model, optimizer, loader, **(BUDGET | options))


def train(training, steps=5):
    model, optimizer, loader, _ = training
    for _ in range(steps // 5):
        for x, y in loader:
            optimizer.zero_grad()
            if len(y):
                functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return training


def through_a_file(content):
    """As torch.save and torch.load, which executes nothing."""
    file = io.BytesIO()
    torch.save(content, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.fixture
def saved():
    """A checkpoint of a training of five steps of ten, as any loop writes it."""
    training = train(private(network()))
    return through_a_file({"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()})


@pytest.mark.parametrize("loaded", ["optimizer", "model", "both"])
def test_either_state_brings_back_what_was_spent(saved, loaded):
    training = private(network(1))
    if loaded in ("model", "both"):
        training.model.load_state_dict(saved["model"])
    if loaded in ("optimizer", "both"):
        training.optimizer.load_state_dict(saved["optimizer"])
    assert training.privacy.steps == 5
    train(training)
    assert training.privacy.steps == 10
    assert 2.95 < training.privacy.statement.epsilons.substitute <= 3.0
    with pytest.raises(BudgetSpent, match="all 10 steps"):
        train(training)


def test_the_inner_optimizer_goes_on_too(saved):
    training = private(network(1))
    training.optimizer.load_state_dict(saved["optimizer"])
    assert all(float(s["step"]) == 5 for s in training.optimizer.state.values())


def test_loading_twice_or_stepping_back_counts_nothing_twice_and_gives_nothing_back():
    training = train(private(network()))
    early = through_a_file(training.optimizer.state_dict())
    train(training)
    for _ in range(2):
        training.optimizer.load_state_dict(early)
        assert training.privacy.steps == 10
    with pytest.raises(BudgetSpent):
        train(training)


def test_two_runs_that_went_on_from_one_state_add_up_when_they_meet(saved):
    one, other = private(network(1), epochs=6), private(network(1), epochs=6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        for training in (one, other):
            training.optimizer.load_state_dict(saved["optimizer"])
            train(training)
        one.optimizer.load_state_dict(other.optimizer.state_dict())
    assert one.privacy.steps == 15


def test_steps_that_were_taken_before_a_state_is_loaded_stay_counted(saved):
    training = train(private(network(1)))
    training.optimizer.load_state_dict(saved["optimizer"])
    assert training.privacy.steps == 10


def test_a_state_without_a_count_is_refused_unless_the_steps_are_said():
    training = train(private(network()))
    inner = training.optimizer.original_optimizer.state_dict()
    with pytest.raises(InputError, match="has no count"):
        private(network(1)).optimizer.load_state_dict(inner)
    told = private(network(1), steps_taken=5)
    told.optimizer.load_state_dict(inner)
    assert told.privacy.steps == 5


@pytest.mark.parametrize("told", [0, 4, 6])
def test_steps_that_are_said_and_contradict_the_state_are_refused(saved, told):
    with pytest.raises(ConfigurationError, match=f"steps_taken={told} contradicts.*5 steps"):
        private(network(1), steps_taken=told).optimizer.load_state_dict(saved["optimizer"])
    with pytest.raises(ConfigurationError, match="contradicts"):
        private(network(1), steps_taken=told).model.load_state_dict(saved["model"])


def test_steps_that_are_said_and_agree_with_the_state_count_once(saved):
    training = private(network(1), steps_taken=5)
    training.model.load_state_dict(saved["model"])
    training.optimizer.load_state_dict(saved["optimizer"])
    assert training.privacy.steps == 5
    again = private(network(2))
    again.optimizer.load_state_dict(training.optimizer.state_dict())
    assert again.privacy.steps == 5


def pickled(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def with_weights_of(model):
    fresh = network(7)
    fresh.load_state_dict({name: value.clone() for name, value in model.state_dict().items()})
    return fresh


COMES_BACK = {
    "as itself": lambda model: model,
    "as it was trained": lambda model: model,
    "as a copy": copy.deepcopy,
    "from a file": pickled,
    "as parts of another model": lambda model: nn.Sequential(*model),
    "as weights in a new module": with_weights_of,
}


@pytest.mark.parametrize("back", COMES_BACK.values(), ids=COMES_BACK)
def test_a_model_that_was_trained_here_and_comes_back_without_a_state_is_known(back):
    model = network()
    trained = train(private(model)).model
    model = trained if back is COMES_BACK["as it was trained"] else model
    with pytest.warns(PrivacyWarning, match="5 steps are counted"):
        training = private(back(model))
    assert training.privacy.steps == 5
    with pytest.raises(ConfigurationError, match="steps_taken=0 contradicts"):
        private(back(model), steps_taken=0)
    train(training)
    with pytest.raises(BudgetSpent):
        train(training)


def test_weights_that_were_saved_halfway_are_known_after_the_training_went_on():
    training = train(private(network()))
    halfway = {name.removeprefix("_module."): v.clone() for name, v in training.model.state_dict().items()}
    train(training)
    fresh = network(7)
    fresh.load_state_dict(halfway)
    with pytest.warns(PrivacyWarning, match="5 steps are counted"):
        private(fresh)


def test_a_copy_made_before_training_is_a_new_model():
    model = network()
    spare = copy.deepcopy(model)
    train(private(model))
    assert private(spare).privacy.steps == 0


def test_going_on_with_other_noise_composes_and_never_passes_the_budget(saved):
    """Planned for one epoch only, the noise is less: five more steps would spend more than was asked for."""
    training = private(network(1), epochs=1)
    with pytest.warns(PrivacyWarning, match="other noise"):
        training.optimizer.load_state_dict(saved["optimizer"])
    with pytest.raises(BudgetSpent):
        train(training)
    stated = training.privacy.statement
    assert len(stated.phases) == 2
    assert stated.epsilons == composed(stated.phases, 1e-5)
    assert stated.epsilons.substitute <= 3.0
    one_more = [*stated.phases[:1], training.privacy.plan.phase(stated.phases[1].steps + 1)]
    assert composed(one_more, 1e-5).substitute > 3.0


def test_going_on_on_other_data_counts_as_if_the_records_were_the_same(saved):
    loader = DataLoader(TensorDataset(X[:40], Y[:40]), batch_size=10)
    model = network(1)
    training = make_private(model, torch.optim.Adam(model.parameters()), loader, **(BUDGET | {"epochs": 9}))
    with pytest.warns(PrivacyWarning, match="other noise or batches"):
        training.optimizer.load_state_dict(saved["optimizer"])
    stated = training.privacy.statement
    assert stated.phases[0].sample_rate == 0.2
    assert stated.expected_batch_size is None


def test_no_batch_and_no_noise_is_drawn_again_after_a_seeded_training_goes_on(saved):
    def first(loaded):
        training = private(network(1), seed=3)
        if loaded:
            training.optimizer.load_state_dict(saved["optimizer"])
        noise = torch.randn(3, generator=training.optimizer.generator)
        return [x.tolist() for x, _ in training.loader], noise.tolist()

    assert first(True) == first(True)
    assert first(True)[0] != first(False)[0]
    assert first(True)[1] != first(False)[1]


def test_a_damaged_count_is_refused(saved):
    training = private(network(1))
    saved["optimizer"]["safexplain_privacy"]["runs"] = {"a": {"steps": -5}}
    with pytest.raises(InputError, match="cannot be read"):
        training.optimizer.load_state_dict(saved["optimizer"])


def test_the_statement_says_whose_loop_it_was():
    assert any("owner's" in line for line in private(network()).privacy.statement.assumptions)
