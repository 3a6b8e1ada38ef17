"""Fixtures of the ledger's tests: a clock that can be set, an SQLite file, a PostgreSQL server."""

import itertools
import os
import tempfile
import warnings
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from safexplain.ledger import Concentrated, Ledger

_NUMBERS = itertools.count()


def gaussian(mu: float) -> Concentrated:
    """A Gaussian answer whose sensitivity is mu standard deviations."""
    return Concentrated(mu * mu / 2)


class SetClock:
    """A clock that tests set; microseconds since 1970."""

    def __init__(self) -> None:
        self.at = datetime(2026, 3, 11, 12, tzinfo=UTC)  # a Wednesday

    def __call__(self) -> int:
        return (self.at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


@pytest.fixture
def clock():
    return SetClock()


@pytest.fixture
def sqlite_url(tmp_path):
    return f"sqlite:///{tmp_path}/ledger.db"


@pytest.fixture
def path(sqlite_url):
    return Path(sqlite_url.removeprefix("sqlite:///"))


@pytest.fixture(scope="session")
def postgres_server():
    """A real server, from a wheel."""
    pytest.importorskip("psycopg", reason="PostgreSQL is not tested: psycopg is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pgserver = pytest.importorskip("pgserver", reason="PostgreSQL is not tested: pgserver is not installed")
        with tempfile.TemporaryDirectory(prefix="pg") as folder:
            try:
                server = pgserver.get_server(folder, cleanup_mode="stop")
            except Exception as error:
                pytest.skip(f"PostgreSQL is not tested: the server of pgserver did not start ({error})")
            try:
                yield server.get_uri()
            finally:
                server.cleanup()


@pytest.fixture
def postgres_url(postgres_server):
    """A schema of its own on the server."""
    import psycopg

    name = f"test_{os.getpid()}_{next(_NUMBERS)}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}")
    return f"{postgres_server}&options=-csearch_path%3D{name}"


in_each_database = pytest.mark.parametrize("url", ["sqlite", "postgres"], indirect=True)
"""For what the two databases could do differently; all else is tested in SQLite, which takes a tenth of the time."""


@pytest.fixture
def url(request):
    """A new ledger's place: an SQLite file, or a schema of its own in PostgreSQL (`in_each_database`)."""
    return request.getfixturevalue(f"{getattr(request, 'param', 'sqlite')}_url")


@pytest.fixture
def make(url, clock):
    """Opens ledgers at the same place; they are closed in the end."""
    opened = []

    def make(**options) -> Ledger:
        opened.append(Ledger(url, **{"clock": clock, **options}))
        return opened[-1]

    yield make
    for ledger in opened:
        ledger.close()
