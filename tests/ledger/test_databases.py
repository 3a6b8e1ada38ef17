"""What can be wrong with a database, and schemas of other versions."""

import hashlib
import re
import sqlite3
import sys
from pathlib import Path

import pytest

from safexplain.errors import ConfigurationError, InputError, LedgerError, MissingExtraError
from safexplain.ledger import Ledger, Pure, maintenance
from safexplain.ledger.storage import VERSION
from safexplain.serve.questions import Limit, Questions
from safexplain.verdict.privacy_statement import PrivacyStatement


@pytest.mark.parametrize(
    "url", ["ledger.db", "sqlite:///", "sqlite:///:memory:", "sqlite://x.db", "mysql://x/y", "sqlite:///x.db?mode=ro"]
)
def test_other_urls_are_refused(url):
    with pytest.raises(ConfigurationError, match="url: expected"):
        Ledger(url, epsilon=1.0)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(InputError, match=f"there is no folder {tmp_path}/no/such"):
        Ledger(f"sqlite:///{tmp_path}/no/such/ledger.db", epsilon=1.0)


def test_a_folder_is_no_ledger(tmp_path):
    with pytest.raises(LedgerError, match=r"expected a file at .*, found a folder"):
        Ledger(f"sqlite:///{tmp_path}", epsilon=1.0)


def test_a_file_of_something_else_is_left_alone(path, sqlite_url):
    path.write_bytes(b"no database " * 100)
    with pytest.raises(LedgerError, match="is not a database"):
        Ledger(sqlite_url, epsilon=1.0)
    assert path.read_bytes() == b"no database " * 100


def test_a_database_of_something_else_is_left_alone(path, sqlite_url):
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE customers (name TEXT)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="found another SQLite database"):
        Ledger(sqlite_url, epsilon=1.0)
    assert path.read_bytes() == before


def test_a_damaged_file_is_an_error(path, sqlite_url):
    with Ledger(sqlite_url, epsilon=1e4) as ledger:
        for _ in range(200):
            ledger.charge("ann", epsilon=0.1, mechanism="x" * 100)
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(LedgerError, match=r"malformed.* restore it from a backup"):
        Ledger(sqlite_url).charge("ann", epsilon=0.1)


def test_a_locked_ledger_says_so(path, sqlite_url):
    with Ledger(sqlite_url, epsilon=1.0, timeout=0.2) as ledger:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")  # another program, which knows nothing of the queue
        with pytest.raises(LedgerError, match=r"database is locked.* raise timeout="):
            ledger.charge("ann", epsilon=0.25)
        assert ledger.spent("ann") == 0.0
        other.execute("ROLLBACK")
        other.close()
        assert ledger.charge("ann", epsilon=0.25).id == 1


def test_a_full_disk_charges_nothing(sqlite_url):
    with Ledger(sqlite_url, epsilon=1e6) as ledger:
        ledger.charge("ann", epsilon=0.5)
        pages = ledger._storage.read("PRAGMA page_count")[0][0]
        ledger._storage.read(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(LedgerError, match="disk is full"):
            ledger.charge("ann", epsilon=0.5, mechanism="x" * 30_000)
        assert ledger.verify() == ledger.account("ann").charges


def test_a_sync_that_fails_is_not_acknowledged(sqlite_url, monkeypatch):
    with Ledger(sqlite_url, epsilon=1.0) as ledger:

        def broken(_):
            raise OSError(5, "Input/output error")

        monkeypatch.setattr("safexplain.ledger.storage.os.fdatasync", broken)
        with pytest.raises(LedgerError, match="Input/output error"):
            ledger.charge("ann", epsilon=0.5)
        monkeypatch.undo()
        assert ledger.verify() == 1, "it may be recorded nevertheless: never the other way round"


def test_every_commit_is_synced_before_it_is_acknowledged(sqlite_url, monkeypatch):
    import os

    synced, real = [], os.fdatasync
    with Ledger(sqlite_url, epsilon=1.0) as ledger:
        monkeypatch.setattr("safexplain.ledger.storage.os.fdatasync", lambda file: synced.append(real(file)))
        ledger.charge("ann", epsilon=0.125)
        assert len(synced) == 1
        ledger.answer("ann", "why?", lambda: 1, Pure(0.125))
        assert len(synced) == 2
        ledger.answer("ann", "why?", lambda: 1, Pure(0.125))
        assert len(synced) == 3, "also an answer that another process may have committed a moment ago"


def test_postgres_without_psycopg_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtraError, match=r"safexplain\[postgres\]"):
        Ledger("postgresql://localhost/x", epsilon=1.0)


TRAINED = PrivacyStatement("output perturbation", 500, 0.0, pure_epsilon=0.125, weights="a" * 64)


DIGESTS = [hashlib.sha256(b"%d" % i).digest() for i in range(5)]


@pytest.fixture
def of_0_2(path):
    """Made by safexplain 0.2.0: Gaussian, pure and approximate answers, a training, questions and grants.

    ann has 3 Gaussian answers of mu .25 and a pure one of .125, bob 30 of Laplace noise and two pure ones, cid a pure
    one, an approximate one and an answer, dan 5 questions; all were told of a training of epsilon .125.
    """
    with sqlite3.connect(path) as database:
        database.executescript((Path(__file__).parent / "of_0_2.sql").read_text())
    database.close()
    path.chmod(0o600)
    return path


@pytest.fixture
def of_0_2_in_postgres(postgres_url):
    """The same ledger as 0.2.0 kept it in PostgreSQL."""
    script = (Path(__file__).parent / "of_0_2.sql").read_text()
    script = script.replace("id INTEGER PRIMARY", "id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY")
    script = re.sub(r"X'([0-9A-F]+)'", r"'\\x\1'", script)
    for table, last in (("ledger_charges", 40), ("ledger_grants", 2)):
        script = script.replace(f'"{table}" VALUES', f"{table} OVERRIDING SYSTEM VALUE VALUES")
        script += f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), {last});"
    with pytest.importorskip("psycopg").connect(postgres_url, autocommit=True) as connection:
        connection.execute(script)


in_each_database_of_0_2 = pytest.mark.parametrize(
    ("made", "url"), [("of_0_2", "sqlite"), ("of_0_2_in_postgres", "postgres")], indirect=["url"]
)


def march(_=None):
    return 1_773_230_500_000_000  # the month in which it was made


@in_each_database_of_0_2
def test_a_ledger_of_0_2_is_read_and_charged_on(made, url, request):
    request.getfixturevalue(made)
    with Ledger(url, clock=march) as ledger:
        assert ledger._storage.version() == VERSION
        spent = {a.principal: (a.rule, round(a.spent, 3), a.epsilon, a.charges) for a in ledger.accounts()}
        assert spent == {
            "ann": ("renyi", 2.438, 4.0, 5),  # 1.966 under the gaussian rule of 0.2
            "bob": ("renyi", 1.316, 5.0, 33),
            "cid": ("basic", 1.375, 4.0, 4),
            "dan": ("basic", 0.125, 4.0, 1),
        }
        assert (ledger.total().charges, ledger.verify(), ledger.adjacency) == (39, 40, "substitute")
        again = ledger.answer("cid", "why?", lambda: pytest.fail("it was answered"), Pure(0.5))
        assert (again.value, again.charge) == ({"x": 1}, None)
        assert ledger.charge_training(TRAINED).id == 40, "the same training is not charged again"
        ledger.charge("ann", mu=0.25)
        assert ledger.verify() == 41
    with Ledger(url, clock=march) as ledger:
        assert ledger.account("ann").charges == 6, "it is read once"


@in_each_database_of_0_2
def test_questions_of_0_2_stay_free_and_grants_hold(made, url, request):
    request.getfixturevalue(made)
    with Questions(url, clock=march) as asked:
        assert asked.ask("dan", DIGESTS, Limit(1, "day")) == 0
        assert asked.counts() == {"dan": 5}
        assert asked.grants() == {"dan": 9, "": 7}, "what the ledger itself allowed is granted to everybody"
        assert asked.verify() == 5
        assert [
            bytes(row[0]) for row in asked._storage.read("SELECT digest FROM ledger_questions ORDER BY number")
        ] == [asked.keyed(digest) for digest in DIGESTS]


def test_a_ledger_of_0_2_that_counted_questions_alone_takes_a_budget_later(of_0_2, sqlite_url):
    with sqlite3.connect(of_0_2) as database:
        database.execute("UPDATE ledger_settings SET value = 'null' WHERE name = 'epsilon'")
    database.close()
    Questions(sqlite_url).close()
    with pytest.raises(ConfigurationError, match="needs a budget"):
        Ledger(sqlite_url)
    assert Ledger(sqlite_url, epsilon=1.0, delta=1e-5, adjacency="add_remove").adjacency == "add_remove"


@pytest.mark.parametrize("stated", [None, "add_remove"])
def test_a_ledger_that_0_2_left_without_an_adjacency_is_told_it_once(of_0_2, sqlite_url, stated):
    with sqlite3.connect(of_0_2) as database:
        database.execute("UPDATE ledger_settings SET value = 'null' WHERE name = 'adjacency'")
    database.close()
    assert Ledger(sqlite_url, adjacency=stated).adjacency == Ledger(sqlite_url).adjacency == (stated or "substitute")
    with pytest.raises(ConfigurationError, match="this ledger was created with"):
        Ledger(sqlite_url, adjacency="zero_out")


def test_a_reading_that_fails_changes_nothing(of_0_2, sqlite_url, monkeypatch):
    with sqlite3.connect(of_0_2) as database:
        before = list(database.iterdump())
    monkeypatch.setattr(maintenance, "keyed_digest", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        Ledger(sqlite_url)
    assert list(database.iterdump()) == before
    database.close()


@pytest.mark.parametrize("version", [5, 7, VERSION + 1])
def test_a_ledger_of_another_version_is_left_alone(sqlite_url, version):
    with Ledger(sqlite_url, epsilon=1.0) as ledger:
        with ledger._storage.transaction() as execute:
            execute("UPDATE ledger_schema_version SET version = ?", (version,))
        said = "a newer safexplain: expected tables" if version > VERSION else "before 0.2: expected tables"
        with pytest.raises(LedgerError, match=said):
            Ledger(sqlite_url)
