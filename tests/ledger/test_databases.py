"""What can be wrong with a database, and schemas of other versions."""

from __future__ import annotations

import hashlib
import itertools
import sqlite3
import sys

import pytest

from safexplain.errors import ConfigurationError, InputError, LedgerError, MissingExtraError
from safexplain.ledger import Ledger, Pure
from safexplain.ledger.ledger import open_storage
from safexplain.ledger.questions import Most
from safexplain.ledger.records import Answer
from safexplain.ledger.storage import schema
from safexplain.ledger.storage.schema import MIGRATIONS, VERSION, migrate
from safexplain.verdict.privacy_statement import PrivacyStatement


@pytest.fixture
def path(sqlite_url):
    from pathlib import Path

    return Path(sqlite_url.removeprefix("sqlite:///"))


@pytest.mark.parametrize(
    "url", ["", "ledger.db", "sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite://x.db", "mysql://x/y", "://"]
)
def test_other_urls_are_refused(url):
    with pytest.raises(ConfigurationError, match="url: expected"):
        Ledger(url, epsilon=1.0)


def test_a_relative_path_is_meant_from_where_the_ledger_was_opened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Ledger("sqlite:///here.db", epsilon=1.0) as ledger:
        monkeypatch.chdir("/")
        ledger.charge("ann", epsilon=0.5)
    assert (tmp_path / "here.db").exists()
    with Ledger(f"sqlite:///{tmp_path}/here.db") as ledger:
        assert ledger.spent("ann") == 0.5


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(InputError, match=f"there is no folder {tmp_path}/no/such"):
        Ledger(f"sqlite:///{tmp_path}/no/such/ledger.db", epsilon=1.0)


def test_a_ledger_that_does_not_exist_is_not_made_without_a_budget(path, sqlite_url):
    with pytest.raises(ConfigurationError, match="needs a budget"):
        Ledger(sqlite_url)
    assert not path.exists()


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
    with pytest.raises(LedgerError, match="of something else"):
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


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ("UPDATE ledger_accounts SET epsilon = 'many'", "account of .* is damaged"),
        ("DELETE FROM ledger_accounts WHERE principal = ''", "no account of the total"),
    ],
)
def test_damaged_accounts_are_an_error(sqlite_url, damage, says):
    with Ledger(sqlite_url, epsilon=1.0) as ledger:
        with ledger._storage.transaction() as execute:
            execute(damage, ())
        with pytest.raises(LedgerError, match=says):
            ledger.charge("ann", epsilon=0.1)


def test_damaged_settings_are_an_error(sqlite_url):
    with Ledger(sqlite_url, epsilon=1.0) as ledger:
        with ledger._storage.transaction() as execute:
            execute("UPDATE ledger_settings SET value = '-1' WHERE name = 'epsilon'", ())
        with pytest.raises(LedgerError, match="settings are damaged"):
            Ledger(sqlite_url)


def test_a_read_only_ledger_can_be_read_and_says_so(sqlite_url):
    with Ledger(sqlite_url, epsilon=1.0) as ledger:
        ledger.charge("ann", epsilon=0.5)
        ledger._storage._connection.execute("PRAGMA query_only = ON")
        with pytest.raises(LedgerError, match="readonly"):
            ledger.charge("ann", epsilon=0.25)
        assert ledger.spent("ann") == 0.5


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

        monkeypatch.setattr("safexplain.ledger.storage.sqlite.os.fdatasync", broken)
        with pytest.raises(LedgerError, match="Input/output error"):
            ledger.charge("ann", epsilon=0.5)
        monkeypatch.undo()
        assert ledger.verify() == 1, "it may be recorded nevertheless: never the other way round"


def test_every_commit_is_synced_before_it_is_acknowledged(sqlite_url, monkeypatch):
    import os

    synced, real = [], os.fdatasync
    with Ledger(sqlite_url, epsilon=1.0) as ledger:
        monkeypatch.setattr("safexplain.ledger.storage.sqlite.os.fdatasync", lambda file: synced.append(real(file)))
        ledger.charge("ann", epsilon=0.125)
        assert len(synced) == 1
        ledger.answer("ann", "why?", lambda: 1, Pure(0.125))
        assert len(synced) == 2
        ledger.answer("ann", "why?", lambda: 1, Pure(0.125))
        assert len(synced) == 3, "also an answer that another process may have committed a moment ago"


def test_postgres_without_psycopg_names_the_extra(monkeypatch):
    pytest.importorskip("psycopg", reason="psycopg is not installed: its absence is what all other tests see")
    monkeypatch.setattr("safexplain.ledger.storage.postgres.psycopg", None)
    with pytest.raises(MissingExtraError, match=r"safexplain\[postgres\]"):
        Ledger("postgresql://localhost/x", epsilon=1.0)


TRAINED = PrivacyStatement("output perturbation", 500, 0.0, pure_epsilon=0.125, weights="a" * 64)


def of_version(url, version, epsilon="1.0", delta="0.0"):
    """A ledger as an older safexplain left it."""
    storage = open_storage(url, 5.0)
    storage.make()
    with storage.transaction() as execute:
        migrate(execute, storage.identity, None, to=version)
        if version > 2:
            execute("INSERT INTO ledger_identity (id) VALUES (?)", ("0" * 32,))
        for name, value in (("epsilon", epsilon), ("delta", delta), ("period", '"lifetime"')):
            execute("INSERT INTO ledger_settings VALUES (?, ?)", (name, value))
        for who in ("", "ann"):
            execute(
                "INSERT INTO ledger_accounts (principal, period, time, rule, alpha, prefix_epsilon, prefix_delta,"
                " epsilon, delta, loss, unbounded, charges) VALUES (?, 0, 5, 'basic', 0, '0', '0', ?, '0', '', 0, 1)",
                (who, str(10**30 // 4)),
            )
        execute(
            "INSERT INTO ledger_charges (principal, period, time, mechanism, parameters, release)"
            """ VALUES ('ann', 0, 5, 'old', '{}', '{"kind": "pure", "epsilon": 0.25}')""",
            (),
        )
    storage.close()


@pytest.mark.parametrize("version", range(1, VERSION))
def test_a_ledger_of_an_older_version_is_brought_up_to_date(sqlite_url, version):
    of_version(sqlite_url, version)
    with Ledger(sqlite_url) as ledger:
        assert ledger._storage.version() == VERSION == 7
        assert ledger.spent("ann") == 0.25
        assert next(ledger.charges()).mechanism == "old"
        ledger.answer("ann", "why?", lambda: 1, Pure(0.5))
        ledger.charge_training(TRAINED, adjacency="substitute")
        assert (ledger.spent("ann"), ledger.spent("bob")) == (0.875, 0.125)
        assert ledger.verify() == 3


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_a_training_of_version_0_2_is_not_charged_again(database, request):
    """Unlike questions, it stays under the digest of its weights."""
    url = request.getfixturevalue(f"{database}_url")
    with Ledger(url, epsilon=1.0) as ledger:
        charge = ledger.charge_training(TRAINED, adjacency="substitute")
        with ledger._storage.transaction() as execute:
            for statement in (
                "ALTER TABLE ledger_identity DROP COLUMN secret",
                "ALTER TABLE ledger_accounts RENAME COLUMN losses TO loss",
                "DROP TABLE ledger_services",
                "UPDATE ledger_schema_version SET version = 6",
            ):
                execute(statement, ())
    with Ledger(url) as ledger:
        assert ledger.charge_training(TRAINED, adjacency="substitute") == charge
        assert (ledger.spent("ann"), len(ledger.trainings()), ledger.verify()) == (0.125, 1, 1)


def test_a_migration_that_fails_changes_nothing(sqlite_url, monkeypatch):
    of_version(sqlite_url, 1)
    broken = (*MIGRATIONS[:1], (*MIGRATIONS[1], "CREATE TABLE oops ("))
    monkeypatch.setattr("safexplain.ledger.storage.schema.MIGRATIONS", broken)
    with pytest.raises(LedgerError):
        Ledger(sqlite_url)
    monkeypatch.undo()
    with Ledger(sqlite_url) as ledger:
        assert ledger.verify() == 1


def asked_before_digests_were_keyed(url, digests):
    """A ledger of 0.2, with the digests that ann asked, and the answer that she was given to "why?"."""
    of_version(url, 6)
    storage, question = open_storage(url, 5.0), hashlib.sha256(b"text:why?").hexdigest()
    release = '{"kind": "pure", "epsilon": 0.25}'
    with storage.transaction() as execute:
        for start in range(0, len(digests), 1000):
            part = list(enumerate(digests))[start : start + 1000]
            execute(
                "INSERT INTO ledger_questions (principal, number, digest, time, first) VALUES "
                + ", ".join(["('ann', ?, ?, 5, 1)"] * len(part)),
                [value for i, digest in part for value in (i + 1, digest)],
            )
        execute("UPDATE ledger_accounts SET questions = ?", (len(digests),))
        execute("INSERT INTO ledger_answers VALUES (?, '1', ?)", (question, release))
        execute("UPDATE ledger_charges SET question = ?, digest = ?", (question, hashlib.sha256(b"1").hexdigest()))
    storage.close()
    return question


def stored_digests(url):
    """Of questions, as any version of the schema keeps them."""
    storage = open_storage(url, 5.0)
    questions = [bytes(row[0]) for row in storage.read("SELECT digest FROM ledger_questions ORDER BY number")]
    answers = [storage.read(f"SELECT question FROM ledger_{table}")[0][0] for table in ("answers", "charges")]
    storage.close()
    return questions, answers


def test_what_was_asked_before_digests_were_keyed_stays_free(url):
    digests = [hashlib.sha256(b"%d" % i).digest()[: 8 + i % 25] for i in range(1234)]
    question = asked_before_digests_were_keyed(url, digests)
    assert stored_digests(url) == (digests, [question, question])
    with Ledger(url) as ledger:
        assert stored_digests(url)[0] == list(map(ledger.keyed, digests))
        assert stored_digests(url)[1] == [ledger.keyed(question.encode()).hex()] * 2
        assert ledger.ask("ann", digests, most=[Most(1, "lifetime")]) == 0
        assert ledger.answer("ann", "why?", lambda: 2, Pure(0.25)) == Answer(1, None)
        assert ledger.verify() == 1
    with Ledger(url) as again:
        assert again.ask("ann", digests, most=[Most(1, "lifetime")]) == 0, "they are keyed once"


def test_digests_are_all_keyed_or_none(url, monkeypatch):
    digests = [hashlib.sha256(b"%d" % i).digest() for i in range(1234)]
    question = asked_before_digests_were_keyed(url, digests)
    keyed, calls = schema.keyed, itertools.count()
    monkeypatch.setattr(schema, "keyed", lambda *a: keyed(*a) if next(calls) < 1000 else 1 / 0)
    with pytest.raises(ZeroDivisionError):
        Ledger(url)
    assert stored_digests(url) == (digests, [question, question])


def test_digests_of_a_large_ledger_are_keyed(sqlite_url):
    digests = [hashlib.sha256(b"%d" % i).digest() for i in range(20_000)]
    asked_before_digests_were_keyed(sqlite_url, digests)
    with Ledger(sqlite_url) as ledger:
        assert ledger.ask("ann", digests[::1000], most=[Most(1, "lifetime")]) == 0


def test_a_newer_ledger_is_left_alone(make):
    ledger = make(epsilon=1.0)
    with ledger._storage.transaction() as execute:
        execute("UPDATE ledger_schema_version SET version = ?", (VERSION + 1,))
    with pytest.raises(LedgerError, match=f"written by a newer safexplain: its schema is version {VERSION + 1}"):
        make()


def test_no_torch_is_needed(sqlite_url):
    """The modules of the ledger import none; `safexplain` itself does."""
    used = {name for name, module in sys.modules.items() if name.startswith("safexplain.ledger")}
    assert used
    assert not any(hasattr(sys.modules[name], "torch") for name in used)
