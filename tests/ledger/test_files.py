"""The files of a ledger: taken away, replaced, damaged, copied; and what is written for others never harms them."""

import multiprocessing
import os
import pickle
import shutil
import sqlite3
from pathlib import Path

import pytest

from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError, LedgerError
from safexplain.ledger import Ledger, Pure

USES = {
    "charge": lambda ledger: ledger.charge("ann", epsilon=0.1),
    "spent": lambda ledger: ledger.spent("ann"),
    "stored answer": lambda ledger: ledger.answer("ann", "known", lambda: 1, Pure(0.1)),
    "new answer": lambda ledger: ledger.answer("ann", "new", lambda: 1, Pure(0.1)),
    "grant": lambda ledger: ledger.grant("ann", 5.0),
}


def another_ledger(path):
    """Another ledger, closed, at the path."""
    with Ledger(f"sqlite:///{path.with_name('other.db')}", epsilon=1.0):
        pass
    path.with_name("other.db").rename(path)


@pytest.mark.parametrize(("use", "instead"), list(zip(USES, ["nothing", "another ledger"] * 3, strict=False)))
def test_a_file_that_is_taken_away_under_a_service_is_not_used_any_more(path, sqlite_url, use, instead):
    with Ledger(sqlite_url, epsilon=1.0) as ledger:
        ledger.answer("ann", "known", lambda: 1, Pure(0.3))
        away = path.rename(path.with_name("away.db"))
        if instead == "another ledger":
            another_ledger(path)
        for _ in range(2):
            with pytest.raises(LedgerError, match="deleted or replaced while it was in use"):
                USES[use](ledger)
        away.rename(path)
        assert ledger.spent("ann") == pytest.approx(0.3)
        USES[use](ledger)


def test_a_ledger_that_is_gone_is_not_begun_anew(path, sqlite_url):
    ledger = Ledger(sqlite_url, epsilon=1.0)
    ledger.charge("ann", epsilon=0.5)
    copy = pickle.loads(pickle.dumps(ledger))
    ledger.close()
    path.unlink()
    for opened in (ledger, copy):
        with pytest.raises(LedgerError, match="no longer exists"):
            opened.charge("ann", epsilon=0.5)
    assert not path.exists()


@pytest.mark.parametrize("after", ["closing", "a fork", "pickling"])
def test_another_ledger_is_not_taken_for_the_one_that_was_opened(path, sqlite_url, after):
    ledger = Ledger(sqlite_url, epsilon=10.0)
    ledger.charge("ann", epsilon=0.9)
    given = pickle.loads(pickle.dumps(ledger)) if after == "pickling" else ledger
    if after != "a fork":
        ledger.close()
    for file in path.parent.glob("ledger.db*"):
        file.unlink()
    another_ledger(path)
    if after == "a fork":
        child = multiprocessing.get_context("fork").Process(target=int)
        child.start()
        child.join()
    for use in USES.values():
        with pytest.raises(LedgerError, match="was replaced while it was in use"):
            use(given)


def test_a_server_whose_tables_were_made_anew_is_another_ledger(postgres_url):
    with Ledger(postgres_url, epsilon=1.0) as ledger:
        with ledger._storage.transaction() as execute:
            execute("UPDATE ledger_identity SET id = 'another'", ())
        ledger.close()
        with pytest.raises(LedgerError, match="was replaced while it was in use"):
            ledger.charge("ann", epsilon=0.1)


@pytest.mark.parametrize("use", ["charge", "stored answer"])
def test_nothing_is_acknowledged_whose_log_was_deleted_and_closing_saves_what_was(path, sqlite_url, use):
    ledger = Ledger(sqlite_url, epsilon=10.0)
    ledger.answer("ann", "known", lambda: 1, Pure(0.5))
    Path(f"{path}-wal").unlink()
    with pytest.raises(LedgerError, match=r"log \(ledger.db-wal\) was deleted"):
        USES[use](ledger)
    ledger.close()
    with Ledger(sqlite_url) as again:
        assert again.spent("ann") >= 0.5
        again.verify()


def test_a_log_that_closing_deleted_is_no_loss(path, sqlite_url, monkeypatch):
    """Another thread may close the ledger, or fork, between a commit and the look at its log."""
    ledger, sync = Ledger(sqlite_url, epsilon=1.0), os.fdatasync

    def closing_sync(file):
        sync(file)
        ledger.close()

    monkeypatch.setattr(os, "fdatasync", closing_sync)
    ledger.charge("ann", epsilon=0.5)
    assert not Path(f"{path}-wal").exists()
    monkeypatch.undo()
    assert ledger.spent("ann") == 0.5


@pytest.mark.parametrize(
    ("write", "ending"), [(Ledger.export, ""), (Ledger.export, "-wal"), (Ledger.backup, ""), (Ledger.backup, "-queue")]
)
def test_nothing_is_written_over_the_ledger_itself(path, sqlite_url, write, ending, monkeypatch):
    with Ledger(sqlite_url, epsilon=1.0) as ledger:
        ledger.charge("ann", epsilon=0.9)
        monkeypatch.chdir(path.parent)
        with pytest.raises(ConfigurationError, match="a file of the ledger itself"):
            write(ledger, f"./{path.name}{ending}")
        assert ledger.verify() == 1
        assert ledger.spent("ann") == 0.9


def test_an_export_that_fails_leaves_the_last_one(path, sqlite_url, tmp_path):
    out = tmp_path / "charges.jsonl"
    with Ledger(sqlite_url, epsilon=1.0) as ledger:
        ledger.charge("ann", epsilon=0.1)
        ledger.export(out)
        before = out.read_text()
        ledger.charge("ann", epsilon=0.1)
        with ledger._storage.transaction() as execute:
            execute("UPDATE ledger_charges SET parameters = 'x' WHERE id = 2", ())
        with pytest.raises(LedgerError, match="charge 2 cannot be read"):
            ledger.export(out)
        with pytest.raises(InputError, match="cannot write"):
            ledger.export(tmp_path / "no folder" / "charges.jsonl")
    assert out.read_text() == before
    assert not list(tmp_path.glob(".*"))


def test_a_backup_has_all_that_was_acknowledged_and_a_copied_file_may_not(path, sqlite_url, tmp_path):
    with Ledger(sqlite_url, epsilon=1.0) as ledger:
        ledger.charge("ann", epsilon=0.9)
        ledger.backup(tmp_path / "backup.db")
        shutil.copy(path, tmp_path / "copied.db")
        ledger.charge("ann", epsilon=0.05)
    with Ledger(f"sqlite:///{tmp_path}/backup.db") as backup:
        assert (backup.spent("ann"), backup.verify()) == (0.9, 1)
    with Ledger(f"sqlite:///{tmp_path}/copied.db", epsilon=1.0) as copied:
        assert copied.spent("ann") == 0.0


def test_a_ledger_on_a_server_is_backed_up_with_its_tools(postgres_url, tmp_path):
    with Ledger(postgres_url, epsilon=1.0) as ledger, pytest.raises(ConfigurationError, match="pg_dump"):
        ledger.backup(tmp_path / "backup.db")
    assert not list(tmp_path.iterdir())


READS = {
    "open": lambda ledger: Ledger(ledger._storage.address),
    "verify": lambda ledger: ledger.verify(),
    "charges": lambda ledger: list(ledger.charges()),
    "spent": lambda ledger: ledger.spent("ann"),
    "answer": lambda ledger: ledger.answer("bob", "known", lambda: 1, Pure(0.1)),
}


@pytest.mark.parametrize(
    ("damage", "read", "says"),
    [
        ('UPDATE ledger_charges SET release = \'{"kind": "foo"}\'', "verify", '"foo".* is not a release'),
        ("UPDATE ledger_charges SET parameters = '{'", "charges", "charge 1 cannot be read"),
        ("DELETE FROM ledger_schema_version", "open", "it has no version"),
        ("DELETE FROM ledger_identity", "open", "it has no identity"),
        ("UPDATE ledger_accounts SET granted_epsilon = 'x', granted_delta = 0", "spent", "account of .* is damaged"),
        ("UPDATE ledger_accounts SET epsilon = 'x'", "answer", "account of .* is damaged"),
        ("DELETE FROM ledger_accounts WHERE principal = ''", "spent", "no account of the total"),
        ("UPDATE ledger_settings SET value = '-1' WHERE name = 'epsilon'", "open", "settings are damaged"),
        ("DELETE FROM ledger_settings", "open", "needs a budget"),
    ],
)
def test_damage_is_said_to_be_damage(path, sqlite_url, damage, read, says):
    with Ledger(sqlite_url, epsilon=1.0) as ledger:
        ledger.answer("ann", "known", lambda: 1, Pure(0.3))
        with sqlite3.connect(path) as connection:
            connection.execute(damage)
        connection.close()
        with pytest.raises((LedgerError, ConfigurationError), match=says):
            READS[read](ledger)


@pytest.mark.parametrize(
    ("use", "error", "message"),
    [
        (lambda ledger: ledger.charge("ann", epsilon=0.1, mechanism="a\0"), InputError, "mechanism: expected text"),
        (lambda ledger: ledger.grant("ann", 2.0, note="\ud800"), InputError, "note: expected text"),
        (lambda ledger: list(ledger.charges(since="2020")), ConfigurationTypeError, "since: expected a datetime"),
        (lambda ledger: ledger.answer_many("ann", ["q"], lambda _: None, Pure(0.1)), InputError, "compute: expected 1"),
        (lambda ledger: ledger.answer("ann", "q", lambda: nested(100_000), Pure(0.1)), InputError, "JSON types"),
    ],
)
def test_what_no_database_keeps_is_refused_with_its_name(sqlite_url, use, error, message):
    with Ledger(sqlite_url, epsilon=1.0) as ledger:
        with pytest.raises(error, match=message):
            use(ledger)
        assert ledger.total().charges == 0


def nested(depth):
    found = []
    for _ in range(depth):
        found = [found]
    return found


def test_options_of_a_url_are_refused_not_made_part_of_a_name(sqlite_url, path):
    with pytest.raises(ConfigurationError, match="expected no options"):
        Ledger(f"{sqlite_url}?mode=ro", epsilon=1.0)
    assert not list(path.parent.iterdir())
