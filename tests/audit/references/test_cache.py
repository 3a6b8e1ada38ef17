"""The cache of finished models: what it reuses, what it does not, and what it never runs."""

import dataclasses
import logging
import os
import shutil
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import safexplain
from safexplain._digest import Undigestable, code_digest, digest
from safexplain._progress import silent
from safexplain.audit import ModelCache
from safexplain.audit.references import shadows
from safexplain.dp import DPFineTuner
from safexplain.errors import InputError

LR = 0.1
log = logging.getLogger(__name__)
settings = types.ModuleType("settings")
settings.RATE = 0.5


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 20), nn.BatchNorm1d(20), nn.Linear(20, 3))


def same(a, b):
    return all(torch.equal(p, q) for p, q in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def test_a_damaged_file_is_not_loaded_and_leaves_the_model_alone(tmp_path):
    cache = ModelCache(tmp_path)
    stored = net(0)
    stored[1].running_mean += 1
    cache.save("key", stored)
    path = tmp_path / "key.pt"
    whole = path.read_bytes()
    at = whole.index(stored[0].weight.detach().numpy().tobytes()[:16])
    flipped = bytearray(whole)
    flipped[at + 5] ^= 1
    for damaged in (b"", whole[:100], whole[: len(whole) // 2], b"x" * 500, bytes(flipped), whole[::-1]):
        path.write_bytes(damaged)
        model = net(1)
        assert not cache.load("key", model)
        assert same(model, net(1))
    path.write_bytes(whole)
    other = net(1).train()
    assert cache.load("key", other)
    assert same(stored, other)
    assert not other.training


def test_another_architecture_is_not_loaded_and_leaves_the_model_alone(tmp_path):
    cache = ModelCache(tmp_path)
    torch.manual_seed(0)
    wider = nn.Sequential(nn.Linear(8, 20), nn.BatchNorm1d(20), nn.Linear(20, 4))
    cache.save("key", wider)
    model = net(1)
    assert not cache.load("key", model)
    assert same(model, net(1))


class Payload:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def test_a_malicious_pickle_does_not_run(tmp_path):
    proof = tmp_path / "it ran"
    torch.save({"0.weight": Payload(str(proof))}, tmp_path / "key.pt")
    model = net(1)
    assert not ModelCache(tmp_path).load("key", model)
    assert not proof.exists()
    assert same(model, net(1))
    torch.load(tmp_path / "key.pt", weights_only=False)
    assert proof.exists()  # the payload is a working one


def test_a_full_disk_is_said_and_keeps_what_was_stored(tmp_path, monkeypatch):
    cache = ModelCache(tmp_path)
    cache.save("first", net(0))

    def full(state, path):
        path.write_bytes(b"half of a fi")
        raise RuntimeError("write failed")

    monkeypatch.setattr(shadows.torch, "save", full)
    with pytest.raises(InputError, match="free some space and resume"):
        cache.save("second", net(1))
    with pytest.raises(InputError, match="free some space and resume"):
        cache.save("first", net(1))
    assert os.listdir(tmp_path) == ["first.pt"]
    model = net(2)
    assert cache.load("first", model)
    assert same(model, net(0))


def function(x, rate=0.5):
    return x * LR * rate


def function_with_inner(x):
    return [(lambda v: v * LR)(v) for v in x]


def function_of_a_module(x):
    return x * settings.RATE


def closing_over(value):
    def inner(x):
        return x * value

    return inner


class Callable:
    def __init__(self, rate):
        self.rate = rate

    def __call__(self, x):
        return x * self.rate

    def method(self, x):
        return x + self.rate


VALUES = [
    None, 0, False, "0", b"0", [0], [[0]], {"a": 0}, {"b": 0},
    np.zeros(2), np.zeros(2, np.float32), np.zeros((2, 1)), np.ones(2), torch.ones(3),
    function, closing_over(1), closing_over(2), Callable(1), Callable(2), Callable(1).method, Callable,
    net(0), net(1), nn.Linear, torch.nn.functional.relu,
]  # fmt: skip


def test_different_things_have_different_digests():
    digests = [digest(v) for v in VALUES]
    assert len(set(digests)) == len(VALUES)
    assert digests == [digest(v) for v in VALUES]
    assert digest(1, 2) != digest(2, 1)
    assert digest("ab", "c") != digest("a", "bc")


def test_equal_things_have_equal_digests():
    assert digest(closing_over(3)) == digest(closing_over(3))
    assert digest(Callable(3)) == digest(Callable(3))
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert digest(np.arange(4)[::2]) == digest(np.array([0, 2]))
    assert digest(net(0)) == digest(net(0))


class Trainer:
    def __call__(self, x):
        return self.through(x)

    def through(self, x):
        return Trainer, function(x)


@dataclasses.dataclass
class Options:
    rate: float = 0.5
    many: list = dataclasses.field(default_factory=list)

    def scaled(self):
        log.debug("scaled")
        return self.rate * LR


USERS = [function_with_inner, Trainer().through, Options()]


@pytest.mark.parametrize("used", USERS)
def test_a_changed_global_changes_the_digest_of_what_uses_it(monkeypatch, used):
    before = digest(used)
    assert digest(used) == before
    monkeypatch.setitem(globals(), "LR", 0.2)
    assert digest(used) != before


def test_a_changed_number_in_a_module_changes_the_digest_of_what_uses_it(monkeypatch):
    before = digest(function_of_a_module)
    monkeypatch.setattr(settings, "RATE", 0.6)
    assert digest(function_of_a_module) != before


def test_what_has_no_stable_identity_is_said():
    lines = {}
    exec("def from_nowhere(x): return x", lines)
    for value in (lines["from_nowhere"], iter([]), np.array([object()]), torch.Generator()):
        with pytest.raises(Undigestable):
            digest(value)


@pytest.mark.parametrize(
    ("module", "depends_on", "does_not"),
    [
        ("safexplain.audit.references.shadows", "audit/references/recipe.py", "audit/certify.py"),
        ("safexplain.audit.canaries.run", "dp/sgd/clipping.py", "audit/report/outcome.py"),
    ],
)
def test_what_other_code_computed_is_not_used_again(tmp_path, module, depends_on, does_not):
    package = shutil.copytree(Path(safexplain.__file__).parent, tmp_path / "safexplain")
    before = code_digest(module, package=package)
    assert before == code_digest(module)
    for changed in (does_not, depends_on):
        path = package / changed
        path.write_text(path.read_text() + "# another way\n")
        code_digest.cache_clear()
        assert (code_digest(module, package=package) == before) == (changed == does_not)


def loop_of_their_own(dataset, generator):
    return DPFineTuner(nn.Linear(2, 2), dataset, epsilon=1, delta=1e-5, epochs=1).fit().model


def test_functions_of_this_package_stand_by_their_code_not_by_what_their_modules_keep():
    """A training function that calls `DPFineTuner` has a digest: the audit of one stores its runs by it."""
    first = digest(loop_of_their_own)
    data = TensorDataset(torch.randn(8, 2), torch.zeros(8, dtype=torch.long))
    DPFineTuner(
        nn.Linear(2, 2), data, epsilon=None, noise_multiplier=1.0, delta=1e-2, steps=2, batch_size=4, progress=silent
    ).fit()
    assert digest(loop_of_their_own) == first
