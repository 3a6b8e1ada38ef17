"""The statement of a loop that Opacus made private: its history, under both adjacencies, of these weights."""

import copy

import pytest
import torch
from opacus import PrivacyEngine, schedulers
from opacus.accountants import RDPAccountant
from opacus.optimizers import DPOptimizer
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from safexplain._digest import weights_digest
from safexplain.dp import PrivacyStatement, Steps, composed, epsilons, statement_from
from safexplain.dp.sgd.steps import without_hooks
from safexplain.errors import ConfigurationError, InputError, RefusedError

pytestmark = pytest.mark.filterwarnings(
    "ignore:Secure RNG", "ignore:Full backward hook", "ignore:GDP accounting", "ignore:PrivacyEngine detected new"
)

X = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))


def private(engine=None, model=None, batch_size=10, records=50, accountant="prv", **options):
    """Engine, model, optimizer and loader."""
    engine, model = engine or PrivacyEngine(accountant=accountant), model or network()
    made = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1),
        data_loader=DataLoader(TensorDataset(X[:records], Y[:records]), batch_size=batch_size),
        **({"noise_multiplier": 1.5, "max_grad_norm": 1.0} | options),
    )
    return engine, *made


def train(model, optimizer, loader, epochs=2, after=lambda: None):
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            after()


@pytest.mark.parametrize("accountant", ["prv", "rdp", "gdp"])
def test_both_epsilons_are_those_of_the_history_whichever_accountant_keeps_it(accountant):
    engine, model, optimizer, loader = private(accountant=accountant)
    train(model, optimizer, loader)
    stated = statement_from(engine, model, optimizer, loader, delta=1e-5)
    assert stated.phases == (Steps(1.5, 0.2, 10),)
    assert stated.epsilons == epsilons(1.5, 0.2, 10, 1e-5)
    assert (stated.records, stated.own_loop) == (50, True)
    if accountant == "prv":  # an upper bound, up to 0.01 above
        assert 0 <= engine.get_epsilon(1e-5) - stated.epsilons.add_remove < 0.02
    assert stated.epsilons.substitute > 1.4 * stated.epsilons.add_remove


def test_the_statement_is_of_these_weights_inside_the_wrapper_or_outside(tmp_path):
    engine, model, optimizer, loader = private()
    train(model, optimizer, loader)
    stated = statement_from(engine, model, optimizer, loader, delta=1e-5, pretrained=False)
    assert stated == statement_from(engine, model._module, optimizer, loader, delta=1e-5, pretrained=False)
    for same in (model, model._module, without_hooks(copy.deepcopy(model))):
        stated.check_model(same)
    train(model, optimizer, loader, 1)
    with pytest.raises(RefusedError, match="other weights"):
        stated.check_model(model)
    assert PrivacyStatement.load(stated.save(tmp_path / "privacy.json")) == stated


def test_noise_that_changed_is_composed_step_by_step():
    engine, model, optimizer, loader = private(accountant="rdp")
    scheduler = schedulers.ExponentialNoise(optimizer, gamma=0.9)
    train(model, optimizer, loader, 1, scheduler.step)
    stated = statement_from(engine, model, optimizer, loader, delta=1e-5)
    assert [p.noise_multiplier for p in stated.phases] == pytest.approx([1.5 * 0.9**t for t in range(5)])
    assert stated.epsilons == composed(stated.phases, 1e-5)


def test_batches_in_pieces_are_batches():
    engine, model, optimizer, loader = private()
    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=3, optimizer=optimizer) as pieces:
        train(model, optimizer, pieces)
    for batches in (pieces, loader):
        assert statement_from(engine, model, optimizer, batches, delta=1e-5).phases == (Steps(1.5, 0.2, 10),)


def test_a_training_that_goes_on_counts_the_steps_of_its_checkpoint(tmp_path):
    engine, model, optimizer, loader = private()
    train(model, optimizer, loader)
    engine.save_checkpoint(path=tmp_path / "run.pt", module=model, optimizer=optimizer)
    engine, model, optimizer, loader = private()
    engine.load_checkpoint(path=tmp_path / "run.pt", module=model, optimizer=optimizer)
    train(model, optimizer, loader, 1)
    assert statement_from(engine, model, optimizer, loader, delta=1e-5).phases == (Steps(1.5, 0.2, 15),)


def test_a_model_that_opacus_did_not_wrap_is_given_as_it_is():
    model = network()
    engine, hooks, optimizer, loader = private(model=model, wrap_model=False)
    train(model, optimizer, loader, 1)
    statement_from(engine, model, optimizer, loader, delta=1e-5).check_model(model)
    with pytest.raises(InputError, match="model: expected a Module, got GradSampleHooks"):
        statement_from(engine, hooks, optimizer, loader, delta=1e-5)


def test_full_batches_are_said_and_cost_no_sampling():
    engine, model, optimizer, loader = private(batch_size=50)
    train(model, optimizer, loader)
    stated = statement_from(engine, model, optimizer, loader, delta=1e-5)
    assert stated.phases == (Steps(1.5, 1.0, 2, "full-batch"),)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_grad_norm": 0.5}, "FlatClipping(max_grad_norm=0.5)"),
        ({"max_grad_norm": [0.5] * 4, "clipping": "per_layer"}, "PerLayerClipping(max_grad_norm=1.0)"),
        ({"max_grad_norm": [3.0, 4.0, 0, 0], "clipping": "per_layer"}, "together at most 5"),
    ],
)
def test_clipping_is_said_as_audits_read_it(options, said):
    engine, model, optimizer, loader = private(**options)
    train(model, optimizer, loader, 1)
    assert said in statement_from(engine, model, optimizer, loader, delta=1e-5).clipping


def test_what_was_trained_is_named_unless_it_is_all():
    engine, model, optimizer, loader = private()
    train(model, optimizer, loader, 1)
    assert statement_from(engine, model, optimizer, loader, delta=1e-5).trained == "all: 44 of 44 parameters"
    frozen = network()
    frozen[0].requires_grad_(False)
    engine, model, optimizer, loader = private(model=frozen)
    train(model, optimizer, loader, 1)
    told = statement_from(engine, model, optimizer, loader, delta=1e-5).trained
    assert told == "2.weight, 2.bias: 14 of 44 parameters"


def test_a_generator_of_the_users_counts_as_a_seed():
    engine, model, optimizer, loader = private(noise_generator=torch.Generator().manual_seed(1))
    train(model, optimizer, loader, 1)
    assert statement_from(engine, model, optimizer, loader, delta=1e-5).seeded


def test_a_training_of_no_steps_has_no_statement():
    with pytest.raises(RefusedError, match="counted no step"):
        statement_from(*private(), delta=1e-5)


def test_batches_that_are_not_poisson_samples_are_refused():
    engine, model, optimizer, loader = private(poisson_sampling=False)
    train(model, optimizer, loader, 1)
    with pytest.raises(RefusedError, match="poisson_sampling=True"):
        statement_from(engine, model, optimizer, loader, delta=1e-5)


class Moments(RDPAccountant):
    pass


class Quiet(DPOptimizer):
    pass


def test_accountants_and_optimizers_of_ones_own_are_not_vouched_for():
    engine, model, optimizer, loader = private()
    train(model, optimizer, loader, 1)
    own = Quiet(optimizer.original_optimizer, noise_multiplier=1.5, max_grad_norm=1.0, expected_batch_size=10)
    with pytest.raises(ConfigurationError, match="expected one of Opacus, got Quiet"):
        statement_from(engine, model, own, loader, delta=1e-5)
    engine.accountant = Moments()
    with pytest.raises(ConfigurationError, match="rdp, prv or gdp of Opacus, got Moments"):
        statement_from(engine, model, optimizer, loader, delta=1e-5)


def test_adaptive_clipping_is_another_mechanism():
    engine, model, optimizer, loader = private(
        clipping="adaptive", target_unclipped_quantile=0.5, clipbound_learning_rate=0.2, max_clipbound=10.0,
        min_clipbound=0.1, unclipped_num_std=5.0,
    )  # fmt: skip
    train(model, optimizer, loader, 1)
    with pytest.raises(RefusedError, match="adaptive clipping"):
        statement_from(engine, model, optimizer, loader, delta=1e-5)


def test_parts_of_different_trainings_are_refused():
    engine, model, optimizer, loader = private()
    train(model, optimizer, loader, 1)
    other_engine, other, other_optimizer, _ = private()
    train(other, other_optimizer, loader, 1)
    with pytest.raises(InputError, match="another accountant"):
        statement_from(other_engine, model, optimizer, loader, delta=1e-5)
    with pytest.raises(InputError, match="not this model's"):
        statement_from(engine, other, optimizer, loader, delta=1e-5)
    with pytest.raises(InputError, match="not the one that the engine"):
        statement_from(engine, model, optimizer, private(records=40, batch_size=8)[-1], delta=1e-5)
    with pytest.raises(InputError, match=r"at a rate of 0.5, but the accountant counted 0.2"):
        statement_from(engine, model, optimizer, private(batch_size=25)[-1], delta=1e-5)


@pytest.mark.parametrize("position", [0, 3])
def test_what_make_private_did_not_return_is_named(position):
    given = [*private()]
    given[position] = "something"
    name = ("privacy_engine", "model", "optimizer", "loader")[position]
    with pytest.raises(InputError, match=rf"^{name}: expected a \w+, got str; pass the engine with the model"):
        statement_from(*given, delta=1e-5)


def test_batch_normalisation_that_opacus_overlooks_is_refused():
    """Opacus looks at layers whose parameters train."""
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6, affine=False), nn.Linear(6, 2))
    engine, wrapped, optimizer, loader = private(model=model)
    train(wrapped, optimizer, loader, 1)
    with pytest.raises(RefusedError, match=r"1 \(BatchNorm1d\) computes statistics over the records"):
        statement_from(engine, wrapped, optimizer, loader, delta=1e-5)
    model[1].eval()
    assert statement_from(engine, wrapped, optimizer, loader, delta=1e-5).weights == weights_digest(model)
