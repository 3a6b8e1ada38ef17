"""A certified model of digits as files, made once a session."""

import pytest
from served_digits import Certified, certified, digits, exported, trained

from safexplain.hardening.hardening import Hardening


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A certified model; its hardening has no noise and needs no key."""
    folder = tmp_path_factory.mktemp("served")
    path = exported(trained(), folder / "model.pt2")
    rows = digits()
    return Certified(path, certified(path, folder), rows[900:1700], rows[400:900])


@pytest.fixture(scope="session")
def noisy(tmp_path_factory):
    """A certified model whose hardening has noise, and so needs a key."""
    folder = tmp_path_factory.mktemp("noisy")
    path = exported(trained(1), folder / "model.pt2")
    rows = digits()
    return Certified(path, certified(path, folder, Hardening.ranked()), rows[900:1700], rows[400:900])
