"""The digest that ties noise, caches and certificates to one model."""

import functools
import subprocess
import sys
import warnings

import pytest
import torch
from sklearn.ensemble import RandomForestClassifier
from torch import nn

from safexplain import _digest as identity
from safexplain._digest import OPAQUE_DIGEST, estimator_digest, model_digest, modules_of
from safexplain.errors import OpaqueModelWarning


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))


NET = net()


class Service:
    def __init__(self, model):
        self.parts = {"models": [model]}

    def __call__(self, x):
        return self.predict(x)

    def predict(self, x):
        return self.parts["models"][0](x)


class Slotted:
    __slots__ = ("model",)

    def __init__(self, model):
        self.model = model

    def __call__(self, x):
        return self.model(x)


def by_global(x):
    return (lambda z: NET(z))(x)


def by_default(x, model=NET):
    return model(x)


@pytest.mark.parametrize(
    "forward",
    [
        NET.forward,
        functools.partial(lambda model, x: model(x), NET),
        by_global,
        by_default,
        Service(NET).predict,
        Slotted(NET),
        (lambda model: lambda x: model(x).softmax(1))(NET),
        functools.wraps(by_default)((lambda model: lambda x: model(x))(NET)),
    ],
)
def test_the_module_behind_a_callable_is_found(forward):
    assert modules_of(forward) == (NET,)


def test_modules_inside_others_are_dropped_and_the_order_is_fixed():
    one, two = net(1), net(2)

    def forward(x):
        return one[0](x) + two(x) + one(x) + two[4](x)

    assert modules_of(forward) in ((one, two), (two, one))
    assert modules_of(forward) == modules_of(forward)


def test_a_callable_without_a_module_gets_the_constant_and_one_warning():
    def opaque(x):
        return x.sum(1)

    with pytest.warns(OpaqueModelWarning, match="opaque"):
        assert model_digest(opaque) == OPAQUE_DIGEST
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert model_digest(opaque) == OPAQUE_DIGEST


def test_circular_and_unfinished_objects_are_searched_without_harm():
    loop = Service(NET)
    loop.itself = loop

    def early():
        return late

    if False:
        late = None
    loop.early = early
    assert modules_of(loop) == (NET,)


def test_what_is_known_is_not_hashed_again(monkeypatch):
    model, calls = net(), []
    hash_once = identity._hash
    monkeypatch.setattr(identity, "_hash", lambda m: calls.append(1) or hash_once(m))
    assert len({model_digest(model) for _ in range(5)}) == 1
    assert len(calls) == 1


def test_the_cache_does_not_keep_a_model_alive():
    import gc
    import weakref

    model = net()
    model_digest(model)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_the_digest_is_the_same_in_another_process():
    script = (
        "import torch; from torch import nn; from safexplain._digest import model_digest; torch.manual_seed(0);"
        "net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)); print(model_digest(net).hex());"
        "from sklearn.ensemble import RandomForestClassifier; from safexplain._digest import estimator_digest;"
        "print(estimator_digest(RandomForestClassifier(3, random_state=0).fit([[0], [1], [2]], list('aba'))).hex())"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    torch.manual_seed(0)
    forest = RandomForestClassifier(3, random_state=0).fit([[0], [1], [2]], list("aba"))
    network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    assert out.split() == [model_digest(network).hex(), estimator_digest(forest).hex()]


@pytest.mark.gpu
def test_the_digest_is_the_same_on_every_device():
    assert model_digest(net().cuda()) == model_digest(net())
