"""What a probe refuses, tells apart and leaves alone: before, between and after its trainings."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from safexplain._privacy_loss import Steps
from safexplain._progress import silent
from safexplain.audit.canaries.probe import CanaryProbe
from safexplain.audit.canaries.trainer import NeighbouringData, records
from safexplain.errors import ConfigurationError, InputError
from safexplain.verdict.canaries.result import Claim

N, D = 12, 3
CLAIM = Claim(Steps(6.0, 0.5, 10), 1e-5)

pytestmark = pytest.mark.filterwarnings("ignore:Secure RNG", "ignore:Full backward hook", "ignore:Optimal order")


def data():
    return torch.randn(N, D, generator=torch.Generator().manual_seed(0)), torch.arange(N) % 2


class Rows(Dataset):
    def __init__(self, shift=0.0, jitter=0.0):
        self.x, self.y = data()[0].numpy() + np.float32(shift), data()[1]
        self.jitter = jitter

    def __len__(self):
        return N

    def __getitem__(self, i):
        return self.x[i] + self.jitter * torch.rand(D).numpy(), int(self.y[i])


def quick(dataset, generator):
    model = nn.Linear(D, 2)
    with torch.no_grad():
        model.weight.copy_(torch.randn(2, D, generator=generator))
    return model


def never(dataset, generator):
    raise AssertionError("trained")


def probe(train=quick, records=None, **options):
    options = {"claim": CLAIM, "runs": 8, "threshold": 0.0, "canary": (torch.zeros(D), 0), "target": 1} | options
    return CanaryProbe(train, data() if records is None else records, **options)


def test_a_data_set_with_other_records_has_other_runs(tmp_path):
    assert probe(records=Rows(), cache=tmp_path).folder == probe(records=Rows(), cache=tmp_path).folder
    assert probe(records=Rows(), cache=tmp_path).folder != probe(records=Rows(1.0), cache=tmp_path).folder
    halves = [(x.bfloat16(), data()[1]) for x in (data()[0], data()[0] + 1)]
    assert len({probe(records=half, cache=tmp_path).folder for half in halves}) == 2


def test_a_data_set_that_draws_its_records_at_random_still_resumes(tmp_path):
    first = probe(records=Rows(jitter=1.0), cache=tmp_path).folder
    torch.manual_seed(5)
    assert probe(records=Rows(jitter=1.0), cache=tmp_path).folder == first


def low(model):
    return 0.0


def high(model):
    return 1.0


def test_another_score_does_not_reuse_runs_whatever_the_version(tmp_path):
    folders = {probe(cache=tmp_path, version="1", score=score).folder for score in (None, low, high)}
    assert len(folders) == 3
    own = torch.Generator()
    undigestable = [lambda model: own, None]
    assert len({probe(cache=tmp_path, version="1", score=score).folder for score in undigestable}) == 2
    with pytest.raises(ConfigurationError, match="cache: score cannot be digested"):
        probe(cache=tmp_path, score=undigestable[0])


WRONG = {
    "confidence of 1": ({"confidence": 1.0}, "expected a number in \\[0.5, 1 - 1e-9\\], got 1"),
    "threshold that is a word": ({"threshold": "best"}, "threshold"),
    "negative seed": ({"seed": -1}, "seed: expected"),
    "target beyond the data": ({"canary": None, "target": N}, "target: expected a row from 0 to 11"),
    "canary without a class": ({"canary": (torch.zeros(D), "no")}, "class index"),
    "canary that is no record": ({"canary": torch.zeros(D)}, "expected a record"),
}


@pytest.mark.parametrize(("options", "message"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_is_refused_before_anything_is_trained(options, message):
    with pytest.raises((ConfigurationError, InputError), match=message):
        probe(never, **options)


@pytest.mark.parametrize("train", [lambda dataset: None, "train"])
def test_what_cannot_be_called_with_data_and_a_generator_is_refused(train):
    with pytest.raises(ConfigurationError, match=r"train\(dataset, generator\)"):
        probe(train)
    probe(lambda *args: None)
    probe(lambda dataset, generator, device=None: None)


def test_a_score_that_is_no_number_stops_at_once_and_is_not_stored(tmp_path):
    scores = [1.0, 2.0, float("nan")]
    made = probe(score=lambda model: scores.pop(0), cache=tmp_path, version="1")
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
        probe(broken, scenario=scenario, canary=None, target=None).run(silent)
