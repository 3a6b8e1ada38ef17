"""Settings of all tests."""

import itertools
import os
import random
from collections.abc import Iterator

# One thread a test process: the workers share the cores, and small products wait for each other otherwise.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
import torch
from _pytest.doctest import DoctestModule
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)

# The same examples in every run, and no time limit for one of them: machines that run tests are busy.
settings.register_profile("suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


NUMBERS = itertools.count()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Iterator[None]:
    """A test module that cannot be imported is an error; taken for one with doctests, it would be skipped."""
    found = yield
    return [collector for collector in found if not isinstance(collector, DoctestModule)]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Each test draws the same numbers, whichever ran before it in the same process; generators of its own aside."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - libraries draw from it
    torch.manual_seed(0)


@pytest.fixture
def few_trees(monkeypatch):
    """The complete suite in a tenth of its time: boosted trees are few and small, for tests of what surrounds them."""
    from safexplain.audit.attacks.learned import Boosted

    monkeypatch.setattr(Boosted.__init__, "__defaults__", (10, 4, 0.15, 2, 0, 0))  # trees, leaves, rate, models


@pytest.fixture(scope="session")
def uses_folder(tmp_path_factory):
    """One for all tests: each `mktemp` looks through all folders there are."""
    return tmp_path_factory.mktemp("uses")


@pytest.fixture(autouse=True)
def own_uses(uses_folder, monkeypatch):
    """Each test counts verdicts in a file of its own."""
    monkeypatch.setenv("SAFEXPLAIN_USES", str(uses_folder / f"{next(NUMBERS)}.sqlite"))
