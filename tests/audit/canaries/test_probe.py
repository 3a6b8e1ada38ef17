"""A user's own training function is audited as it is: what it breaks shows, what it keeps does not, nothing is lost."""

import random

import numpy as np
import pytest
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, Dataset

from safexplain._privacy_loss import Steps
from safexplain._progress import silent
from safexplain.audit.canaries.canary import GradientCanary
from safexplain.audit.canaries.probe import CanaryProbe
from safexplain.audit.canaries.trainer import NeighbouringData, records
from safexplain.errors import ConfigurationError, InputError
from safexplain.verdict.canaries.result import Claim

BUG = "refuted"
N, D, STEPS = 40, 5, 10
SIGMA = 6.0
MODEL = nn.Linear(D, 2)
CLAIM = Claim(Steps(SIGMA, 0.5, STEPS), 1e-5)

pytestmark = pytest.mark.filterwarnings("ignore:Secure RNG", "ignore:Full backward hook", "ignore:Optimal order")


def data():
    """The last record alone has the last feature."""
    g = torch.Generator().manual_seed(0)
    y = torch.arange(N) % 2
    x = torch.randn(N, D, generator=g) + y[:, None]
    x[:-1, -1], x[-1] = 0.0, torch.tensor([0.0] * (D - 1) + [3.0])
    return x, y


def opacus_loop(noise):
    def train(dataset, generator):
        model = nn.Linear(D, 2, bias=False)
        nn.init.zeros_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        model, optimizer, loader = PrivacyEngine().make_private(
            module=model, optimizer=optimizer, data_loader=DataLoader(dataset, batch_size=N // 2),
            noise_multiplier=noise, max_grad_norm=1.0, noise_generator=generator,
        )  # fmt: skip
        for _ in range(STEPS // 2):
            for x, y in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
        return model

    return train


def quick(dataset, generator):
    """Noisy mean of the features: no training worth the name, but instant."""
    x, y = (torch.stack(part) for part in zip(*[dataset[i] for i in range(len(dataset))], strict=True))
    model = nn.Linear(D, 2, bias=False)
    with torch.no_grad():
        weight = nn.functional.one_hot(y, 2).float().T @ x
        model.weight.copy_(weight + torch.randn(weight.shape, generator=generator))
    return model


def probe(train=quick, records=None, **options):
    options = {"claim": CLAIM, "runs": 8, "threshold": 0.0, "model": MODEL} | options
    return CanaryProbe(train, data() if records is None else records, **options)


def with_canary(train=quick, records=None, **options):
    return probe(train, records, **{"canary": (torch.zeros(D), 0), "target": 1, **options})


@pytest.mark.parametrize("scenario", ["gradient", "mislabelled"])
def test_an_opacus_loop_that_ignores_its_noise_is_caught_and_a_right_one_is_not(scenario):
    given = {} if scenario == "gradient" else {"canary": (data()[0][-1], 0), "threshold": 0.0}
    options = {"claim": CLAIM, "scenario": scenario, "runs": 48, "target": N - 1, **given}
    right = CanaryProbe(opacus_loop(SIGMA), data(), **options).run(silent)
    assert right.verdict != BUG
    broken = CanaryProbe(opacus_loop(0.05), data(), **options).run(silent)
    assert broken.verdict == BUG
    assert broken.runs == 48
    assert broken.epsilon_lower <= broken.ceiling
    assert broken.scenario == scenario


def test_a_run_is_a_function_of_seed_world_and_number_alone():
    seen = []

    def train(dataset, generator):
        x, y = dataset[N - 1]
        drawn = torch.rand(1).item(), np.random.random(), random.random(), generator.initial_seed()  # noqa: NPY002
        seen.append((len(dataset), float(x.sum()), int(y), *drawn))
        return quick(dataset, generator)

    options = {"canary": (torch.zeros(D), 0), "target": N - 1}
    before = torch.rand(1, generator=torch.Generator().manual_seed(0)), torch.get_rng_state(), np.random.get_state()  # noqa: NPY002
    probe(train, runs=6, **options).run(silent)
    assert torch.equal(torch.get_rng_state(), before[1]), "the global generators are left as they were"
    assert np.array_equal(np.random.get_state()[1], before[2][1])  # noqa: NPY002
    few = seen[2:]  # after two trainings on the data, with seeds of their own
    assert [row[:3] for row in few] == [(N, 3.0, 1), (N, 0.0, 0)] * 3, "D and D' in turn, equal but for the target"
    assert len({row[3:] for row in few}) == len({row[3] for row in few}) == len({row[-1] for row in few}) == 6
    seen.clear()
    torch.manual_seed(99)
    probe(train, runs=8, **options).run(silent)
    assert seen[2:8] == few


class Stops(Exception):
    pass


def stopping(after):
    """A training that fails from some call on, and what it was called with."""
    calls = []

    def train(dataset, generator):
        calls.append(generator.initial_seed())
        if len(calls) > after:
            raise Stops("no more")
        return quick(dataset, generator)

    return train, calls


def test_an_error_says_which_run_and_what_was_finished_is_not_done_again(tmp_path):
    options = {"cache": tmp_path, "version": "1", "runs": 10}
    train, first = stopping(after=7)
    with pytest.raises(InputError, match=r"run 2 on D' \(seed \d+\) stopped with Stops: no more; 5 of 10 runs"):
        probe(train, **options).run(silent)
    train, rest = stopping(after=100)
    resumed = probe(train, **options).run(silent)
    assert len(rest) == 5
    assert first[7] == rest[0], "the failed run is taken again"
    train, every = stopping(after=100)
    whole = probe(train, runs=10).run(silent)
    assert every == first[:7] + rest
    assert resumed.errors == whole.errors
    assert resumed.epsilon_lower == whole.epsilon_lower


def test_another_training_function_data_canary_or_seed_does_not_reuse_runs(tmp_path):
    def other(dataset, generator):
        return quick(dataset, generator)

    x, y = data()
    folders = {
        probe(cache=tmp_path).folder,
        probe(other, cache=tmp_path).folder,
        probe(cache=tmp_path, version="2").folder,
        probe(cache=tmp_path, seed=1).folder,
        probe(cache=tmp_path, canary=(x[0], 0), target=1).folder,
        probe(cache=tmp_path, canary=(x[0], 0), target=2).folder,
        CanaryProbe(quick, (x + 1, y), claim=CLAIM, model=MODEL, cache=tmp_path).folder,
    }
    assert len(folders) == 7
    assert (
        probe(cache=tmp_path).folder
        == probe(cache=tmp_path, runs=50, claim=Claim(None, 1e-5, 1.0), method="gdp").folder
    )


@pytest.mark.parametrize(("scenario", "wrapped"), [("mislabelled", False), ("crafted", True), ("natural", False)])
def test_a_canary_is_made_on_what_the_function_trains(scenario, wrapped):
    x, y = data()
    train = opacus_loop(1.0) if wrapped else quick
    made = CanaryProbe(train, (x, y), claim=CLAIM, scenario=scenario, auxiliary=(x.flip(1), y)).canary
    assert made.scenario == scenario
    assert made.cosine < 0
    z = x[made.target], int(y[made.target])
    assert (made.y == z[1]) == (scenario == "crafted" or (scenario == "natural" and made.y == z[1]))
    assert torch.equal(made.x, z[0]) == (scenario == "mislabelled")


def test_a_gradient_canary_takes_the_parameter_that_moves_least():
    least = CanaryProbe(opacus_loop(1.0), data(), claim=CLAIM, scenario="gradient", target=N - 1).canary
    assert least.coordinate in (D - 1, 2 * D - 1), "the last feature is zero but in the target, which is left out"
    assert isinstance(least, GradientCanary)
    assert least.drift.shape == (1,)


def test_a_data_set_and_a_score_of_ones_own_are_taken():
    def train(dataset, generator):
        return {"weights": quick(dataset, generator).weight}

    result = CanaryProbe(
        train, Rows(), claim=CLAIM, canary=(torch.full((D,), 50.0), 1), target=3, runs=8, threshold=100.0,
        score=lambda made: -float(made["weights"].detach().sum()),
    ).run(silent)  # fmt: skip
    assert result.errors[0].positives == 4
    assert result.errors[0].false_positives == 0
    assert result.setting["records"] == N


def test_a_function_that_seeds_its_noise_is_told_apart_whatever_it_returns():
    """A score that is often the same, as of a class, or a constant beside each model says nothing of seeds."""
    returned = lambda weight: {"model": weight, "steps": 100}  # noqa: E731
    predicted = {"canary": (torch.ones(D), 0), "target": 3, "score": lambda made: 1.0}
    right = probe(lambda dataset, generator: returned(quick(dataset, generator).weight.detach()), **predicted)
    assert right.run(silent).verdict == "not refuted"
    seeded = lambda dataset, _: returned(quick(dataset, torch.Generator().manual_seed(0)).weight.detach())  # noqa: E731
    with pytest.raises(InputError, match="your function seeds its noise"):
        probe(seeded, **predicted).run(silent)


WRONG = {
    "confidence of 1": ({"confidence": 1.0}, "expected a number in \\[0.5, 1 - 1e-9\\], got 1"),
    "threshold that is a word": ({"threshold": "best"}, "threshold"),
    "negative seed": ({"seed": -1}, "seed: expected"),
    "target beyond the data": ({"canary": None, "target": N}, "target: expected a row from 0 to 39"),
    "canary without a class": ({"canary": (torch.zeros(D), "no"), "target": 1}, "class index"),
    "canary that is no record": ({"canary": torch.zeros(D), "target": 1}, "expected a record"),
    "natural without records": ({"scenario": "natural"}, "auxiliary"),
    "canary without target": ({"canary": (torch.zeros(D), 0)}, "target="),
    "canary that is the target": ({"canary": (data()[0][1], 1), "target": 1}, "would be the same"),
    "too few runs": ({"runs": 2}, "at least 4"),
    "score for a gradient": ({"scenario": "gradient", "score": float}, "no score"),
    "pld without a mechanism": ({"claim": Claim(None, 1e-5, 1.0)}, "clopper-pearson"),
}


@pytest.mark.parametrize(("options", "message"), WRONG.values(), ids=WRONG)
def test_options_that_cannot_be_are_refused_before_anything_is_trained(options, message):
    with pytest.raises((ConfigurationError, InputError), match=message):
        probe(stopping(0)[0], **options)


class Rows(Dataset):
    def __init__(self, shift=0.0, jitter=0.0):
        self.x, self.y = data()[0].numpy() + np.float32(shift), data()[1]
        self.jitter = jitter

    def __len__(self):
        return N

    def __getitem__(self, i):
        return self.x[i] + self.jitter * torch.rand(D).numpy(), int(self.y[i])


def test_a_data_set_with_other_records_has_other_runs(tmp_path):
    assert with_canary(records=Rows(), cache=tmp_path).folder == with_canary(records=Rows(), cache=tmp_path).folder
    assert with_canary(records=Rows(), cache=tmp_path).folder != with_canary(records=Rows(1.0), cache=tmp_path).folder
    halves = [(x.bfloat16(), data()[1]) for x in (data()[0], data()[0] + 1)]
    assert len({with_canary(records=half, cache=tmp_path).folder for half in halves}) == 2


def test_a_data_set_that_draws_its_records_at_random_still_resumes(tmp_path):
    first = with_canary(records=Rows(jitter=1.0), cache=tmp_path).folder
    torch.manual_seed(5)
    assert with_canary(records=Rows(jitter=1.0), cache=tmp_path).folder == first


def low(model):
    return 0.0


def high(model):
    return 1.0


def test_another_score_does_not_reuse_runs_whatever_the_version(tmp_path):
    folders = {with_canary(cache=tmp_path, version="1", score=score).folder for score in (None, low, high)}
    assert len(folders) == 3
    own = torch.Generator()
    undigestable = [lambda model: own, None]
    assert len({with_canary(cache=tmp_path, version="1", score=score).folder for score in undigestable}) == 2
    with pytest.raises(ConfigurationError, match="cache: score cannot be digested"):
        with_canary(cache=tmp_path, score=undigestable[0])


@pytest.mark.parametrize("train", [lambda dataset: None, "train"])
def test_what_cannot_be_called_with_data_and_a_generator_is_refused(train):
    with pytest.raises(ConfigurationError, match=r"train\(dataset, generator\)"):
        with_canary(train)
    with_canary(lambda *args: None)
    with_canary(lambda dataset, generator, device=None: None)


def test_a_score_that_is_no_number_stops_at_once_and_is_not_stored(tmp_path):
    scores = [1.0, 2.0, float("nan")]
    made = with_canary(score=lambda model: scores.pop(0), cache=tmp_path, version="1")
    with pytest.raises(InputError, match=r"run 1 on D .*expected a finite number.*2 of 8 runs"):
        made.run(silent)
    assert len(list(made.folder.glob("run-*.npz"))) == 2
    scores += [1.0, 2.0] * 3
    made.run(silent)
    assert not scores, "a score that is no number counts as a run that is missing"


@pytest.mark.parametrize("given", [data(), Rows()], ids=["tensors", "data set"])
def test_a_record_that_is_changed_in_place_stays_as_it_was_for_others(given):
    instead = (torch.full((D,), 9.0), torch.tensor(1))
    dataset = NeighbouringData(records(given), {1: instead})
    before = [(x.clone(), y.clone()) for x, y in dataset]
    for x, y in [*dataset, *dataset.__getitems__(range(N))]:
        x.add_(1)
        y.add_(1)
    for i in range(N):
        assert torch.equal(dataset[i][0], before[i][0])
        assert torch.equal(dataset[i][1], before[i][1])
    assert torch.equal(instead[0], torch.full((D,), 9.0))


def broken(dataset, generator):
    raise ValueError("no such layer")


@pytest.mark.parametrize("scenario", ["mislabelled", "gradient"])
def test_an_error_of_the_reference_training_says_where_it_was(scenario):
    with pytest.raises(InputError, match=r"reference training on the data .* stopped with ValueError: no such layer"):
        with_canary(broken, scenario=scenario, canary=None, target=None).run(silent)
