"""The service that every platform's server is compared with."""

import pytest

from safexplain.serve import Service

pytest.register_assert_rewrite("tests.serve.platforms.contract")


@pytest.fixture(scope="session")
def expected(noisy):
    """The same service in this process."""
    from tests.serve.platforms.contract import KEY

    with Service.load(noisy.model, noisy.certificate, key=KEY.encode()) as service:
        yield service
