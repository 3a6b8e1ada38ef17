"""Records that belong together: a person with all of their rows weighs no more than a record does elsewhere."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from dp_accounting import get_epsilon_gaussian
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from safexplain._progress import silent
from safexplain.dp import AutoSClipping, DPFineTuner, FlatClipping, PrivacyStatement, epsilons
from safexplain.dp.sgd.sampling import Persons, PoissonSampler
from safexplain.errors import ConfigurationError, InputError, PrivacyWarning

SIZES = [1, 2, 3, 5, 1, 4, 2, 6]
GROUPS = np.random.default_rng(0).permutation(np.repeat(np.arange(8) * 10 - 3, SIZES))
G = torch.Generator().manual_seed(0)
X = torch.randn(24, 5, generator=G)
Y = torch.randint(0, 3, (24,), generator=G)


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))


def tuner(records=(X, Y), model=None, **options):
    given = {
        "epsilon": 6.0, "delta": 1e-5, "steps": 4, "batch_size": 4, "optimizer": "sgd", "lr": 0.5, "seed": 1,
        "groups": GROUPS, "progress": silent, "pretrained": False, "clipping": FlatClipping(0.3),
    }  # fmt: skip
    return DPFineTuner(model or network(), records, **(given | options))


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def gradient(model, rows):
    """Of the mean loss of some rows, flat; the parameters that train."""
    loss = functional.cross_entropy(model(X[rows]), Y[rows])
    return torch.cat(
        [g.flatten() for g in torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad])]
    )


def slow_training(fitted, most=99):
    """DP-SGD without noise, one person at a time."""
    model, plan = fitted.prepared(), fitted.plan
    sampler, names = PoissonSampler(1), np.unique(GROUPS)
    for t in range(plan.steps):
        total = 0
        for person in sampler.batch(t, len(names), plan.sample_rate):
            g = gradient(model, np.flatnonzero(names[person] == GROUPS))
            total = total + g * fitted.config.clipping.factors(g.norm()[None])[0]
        with torch.no_grad():
            at = 0
            for p in model.parameters():
                if p.requires_grad:
                    p -= 0.5 / plan.expected_batch_size * total[at : at + p.numel()].view_as(p)
                    at += p.numel()
    return flat(model)


@pytest.mark.parametrize(
    ("clipping", "trainable", "piece", "mode"),
    [
        (FlatClipping(0.3), "all", 64, "functorch"),
        (FlatClipping(0.3), "head", 64, None),
        (AutoSClipping(0.5), "all", 16, None),
        (AutoSClipping(0.5), "head", 64, None),
    ],
)
def test_the_mean_gradient_of_each_person_is_clipped_once(clipping, trainable, piece, mode):
    """Beside the slow, obvious training, for whole networks and for a head on features, in any pieces."""
    fitted = tuner(epsilon=None, noise_multiplier=0.0, clipping=clipping, trainable=trainable, piece=piece, mode=mode)
    torch.testing.assert_close(flat(fitted.fit().model), slow_training(fitted), rtol=1e-4, atol=1e-6)


def test_the_sample_rate_and_the_statement_are_of_persons(tmp_path):
    fitted = tuner()
    stated = fitted.fit().statement
    assert (stated.unit, stated.records, stated.rows_per_person) == ("person", 8, 16)
    assert stated.phases[0].sample_rate == 4 / 8
    assert stated.epsilons == epsilons(fitted.plan.noise_multiplier, 0.5, 4, 1e-5)
    assert 5.9 < stated.epsilons.substitute <= 6.0
    assert not any("several records of one person" in line for line in stated.not_protected)
    assert PrivacyStatement.load(stated.save(tmp_path / "privacy.json")) == stated


def replaced(person, factor=50.0):
    """The data with all rows of a person far away, under other labels."""
    mine = torch.tensor(np.unique(GROUPS)[person] == GROUPS)
    return torch.where(mine[:, None], -factor * X.abs() - 1, X), torch.where(mine, (Y + 1) % 3, Y)


def summed(fitted):
    """What one step without noise, with everybody in the batch, adds to the weights: the sum of clipped gradients."""
    before = flat(fitted.prepared())
    return (before - flat(fitted.fit().model)) * fitted.plan.expected_batch_size / 0.5


@pytest.mark.parametrize(("trainable", "person"), [("all", 5), ("all", 7), ("head", 7)])
def test_a_person_whose_rows_are_all_replaced_moves_the_sum_by_twice_the_clip_bound_at_most(trainable, person):
    """And so spends no more than is stated; trained by records, a person of six rows moves it by far more."""
    plain = {"epsilon": None, "noise_multiplier": 0.0, "steps": 1, "trainable": trainable}
    moved = {}
    ways = {"persons": {"batch_size": 8}, "records": {"batch_size": 24, "groups": None, "mode": "hooks"}}
    for name, options in ways.items():
        one, other = (tuner(data, **plain, **options) for data in ((X, Y), replaced(person)))
        moved[name] = float((summed(one) - summed(other)).norm())
    assert moved["persons"] <= 2 * 0.3 * (1 + 1e-5)
    if person == 7:
        promised = epsilons(5.0, 1.0, 1, 1e-5, sampling="full-batch").substitute
        spent = {name: get_epsilon_gaussian(5.0 * 0.3 / distance, 1e-5) for name, distance in moved.items()}
        assert spent["persons"] <= promised + 1e-6
        assert spent["records"] > 1.5 * promised


def test_other_rows_at_the_same_places_belong_to_the_same_persons():
    fitted = tuner(epsilon=None, noise_multiplier=0.0)
    again = fitted.with_data((X, Y), seed=1)
    assert torch.equal(flat(again.fit().model), flat(fitted.fit().model))
    assert again.statement == fitted.statement


@pytest.mark.parametrize("trainable", ["all", "head"])
def test_a_checkpoint_goes_on_with_the_same_persons_only(trainable, tmp_path):
    options = {"checkpoint": tmp_path / "run.pt", "checkpoint_seconds": 0.0, "trainable": trainable}
    done = tuner(**options).fit()
    assert torch.equal(flat(tuner(**options).fit().model), flat(done.model))
    with pytest.raises(InputError, match=r"another training .*groups"):
        tuner(**options, groups=np.roll(GROUPS, 1)).fit()


def test_data_sets_and_texts_as_ids_do_as_well():
    plain = {"epsilon": None, "noise_multiplier": 0.0}
    expected = flat(tuner(**plain).fit().model)
    for groups in (GROUPS.tolist(), torch.tensor(GROUPS), np.array([f"{g + 100:04}" for g in GROUPS], dtype=object)):
        assert torch.equal(flat(tuner(**plain, groups=groups).fit().model), expected)
    torch.testing.assert_close(flat(tuner(TensorDataset(X, Y), **plain).fit().model), expected)


@pytest.mark.parametrize("groups", [[1.0] * 24, [1] * 23, [1] * 12 + ["a"] * 11 + [None], [True] * 24])
def test_ids_that_name_nobody_are_refused(groups):
    with pytest.raises(InputError, match="groups: expected"):
        tuner(groups=groups)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "ghost"}, 'got "ghost"'),
        ({"batch_size": 9}, "number of persons, at most 8, got 9"),
        ({"rows_per_group": 65}, "at most piece, 64, .*got 65"),
        ({"groups": None, "rows_per_group": 3}, "needs groups="),
    ],
)
def test_options_that_do_not_go_with_persons_are_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        tuner(**options)


def test_rows_beyond_the_bound_are_left_out_of_a_step_loudly():
    fitted = tuner(rows_per_group=2)
    with pytest.warns(PrivacyWarning, match="4 of 8 persons have more than 2 rows"):
        stated = fitted.fit().statement
    assert stated.rows_per_person == 2


def test_every_row_of_a_person_with_too_many_gets_its_turn():
    persons = Persons(GROUPS, 24, 2)
    assert persons.over_limit == 4
    sampler, most = PoissonSampler(), int(np.argmax(SIZES))
    seen = Counter(int(r) for t in range(300) for r in persons.rows_of(most, sampler.stream(t, 1)))
    assert set(seen) == set(np.flatnonzero(np.unique(GROUPS)[most] == GROUPS))
    assert max(abs(c - 100) for c in seen.values()) < 5 * math.sqrt(300 * 2 / 9)


@pytest.mark.parametrize("size", [6, 24])
def test_a_person_is_whole_in_one_piece(size):
    persons = Persons(GROUPS, 24, 6)
    chosen = [7, 0, 3, 5]
    pieces = persons.pieces(chosen, size, np.random.default_rng(0))
    names, people = np.unique(GROUPS), []
    for rows, whose in pieces:
        assert len(rows) == len(whose) <= size
        assert whose == sorted(whose)
        assert set(whose) == set(range(whose[-1] + 1))
        for person in sorted(set(whose)):
            mine = [r for r, w in zip(rows, whose, strict=True) if w == person]
            assert len(set(GROUPS[mine])) == 1
            people.append(int(np.searchsorted(names, GROUPS[mine[0]])))
            assert sorted(mine) == np.flatnonzero(GROUPS[mine[0]] == GROUPS).tolist()
    assert people == chosen
    assert persons.pieces([], size, np.random.default_rng(0)) == []


def test_a_row_without_a_finite_gradient_takes_its_person_out():
    x = X.clone()
    x[int(np.flatnonzero(GROUPS[0] == GROUPS)[0])] = math.inf
    with pytest.warns(PrivacyWarning, match="gradients of persons were not finite"):
        done = tuner((x, Y), batch_size=8, steps=2).fit()
    assert done.skipped == 2
    assert flat(done.model).isfinite().all()
