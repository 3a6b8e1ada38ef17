from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from safexplain.errors import LedgerError
from safexplain.ledger import Ledger, Pure

psycopg = pytest.importorskip("psycopg", reason="PostgreSQL is not tested: psycopg is not installed")


def test_time_is_that_of_the_server(postgres_url):
    with Ledger(postgres_url, epsilon=1.0) as ledger, psycopg.connect(postgres_url) as connection:
        charge = ledger.charge("ann", epsilon=0.5)
        server = connection.execute("SELECT clock_timestamp()").fetchone()[0]
        assert abs((server - charge.time).total_seconds()) < 5
        assert abs((datetime.now(UTC) - charge.time).total_seconds()) < 60


def test_a_server_that_cannot_be_reached_is_named_without_its_password():
    with pytest.raises(LedgerError, match="check the URL, the server") as error:
        Ledger("postgresql://ann:topsecret@127.0.0.1:1/none", epsilon=1.0, timeout=1.0)
    assert "topsecret" not in str(error.value)
    assert "127.0.0.1" in str(error.value)


def test_a_cut_connection_is_opened_again(postgres_url):
    with Ledger(postgres_url, epsilon=1.0) as ledger, psycopg.connect(postgres_url, autocommit=True) as other:
        ledger.charge("ann", epsilon=0.25)
        own = ledger._storage._connection.info.backend_pid
        other.execute("SELECT pg_terminate_backend(%s, 5000)", (own,))
        ledger.charge("ann", epsilon=0.25)
        other.execute("SELECT pg_terminate_backend(%s, 5000)", (ledger._storage._connection.info.backend_pid,))
        assert ledger.spent("ann") == 0.5


def test_a_connection_cut_inside_a_transaction_charges_nothing(postgres_url):
    with Ledger(postgres_url, epsilon=1.0) as ledger, psycopg.connect(postgres_url, autocommit=True) as other:

        def cut_short():
            with ledger._storage.transaction() as execute:
                execute("UPDATE ledger_accounts SET charges = 7", ())
                other.execute("SELECT pg_terminate_backend(%s, 5000)", (ledger._storage._connection.info.backend_pid,))
                execute("UPDATE ledger_accounts SET charges = 8", ())

        with pytest.raises(LedgerError, match="ledger"):
            cut_short()
        assert ledger.total().charges == 0
        ledger.charge("ann", epsilon=0.25)


def test_rows_that_others_hold_are_waited_for_no_longer_than_said(postgres_url):
    with Ledger(postgres_url, epsilon=1.0, timeout=0.3) as ledger, psycopg.connect(postgres_url) as other:
        other.execute("SELECT * FROM ledger_accounts FOR UPDATE")
        with pytest.raises(LedgerError, match=r"(?s)lock timeout.* raise timeout="):
            ledger.charge("ann", epsilon=0.25)
        assert ledger.spent("ann") == 0.0
        other.rollback()
        assert ledger.charge("ann", epsilon=0.25).principal == "ann"


def test_a_commit_is_on_disk_before_it_is_acknowledged(postgres_url):
    """Also on a server whose default is to acknowledge early."""
    careless = f"{postgres_url}%20-csynchronous_commit%3Doff"
    with Ledger(careless, epsilon=1.0) as ledger, psycopg.connect(postgres_url, autocommit=True) as other:
        for act in (
            lambda: ledger.charge("ann", epsilon=0.25),
            lambda: ledger.answer("ann", "why?", lambda: 1, Pure(0.25)),
        ):
            before = other.execute("SELECT pg_current_wal_insert_lsn()").fetchone()[0]
            act()
            synced = "SELECT pg_current_wal_flush_lsn() > %s::pg_lsn"
            assert other.execute(synced, (before,)).fetchone()[0]


def test_two_ledgers_made_at_once_are_one(postgres_url):
    def make(_):
        with Ledger(postgres_url, epsilon=1.0) as ledger:
            ledger.charge("ann", epsilon=0.125)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(make, range(4)))
    with Ledger(postgres_url) as ledger:
        assert ledger.spent("ann") == 0.5


def test_a_server_that_vanished_is_noticed_by_the_connection(postgres_url):
    with Ledger(postgres_url, epsilon=3.0, timeout=4.0) as ledger:
        ledger.charge("ann", epsilon=1.0)
        set_up = ledger._storage._connection.info.get_parameters()
        waits = {"connect_timeout": "4", "tcp_user_timeout": "4000", "keepalives_idle": "4"}
        assert set_up.items() >= (waits | {"keepalives_interval": "2", "keepalives_count": "3"}).items()
    with Ledger(f"{postgres_url}&tcp_user_timeout=7000") as ledger:
        ledger.charge("ann", epsilon=1.0)
        assert ledger._storage._connection.info.get_parameters()["tcp_user_timeout"] == "7000"
