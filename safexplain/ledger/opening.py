"""A ledger's first connection: tables are made or brought up to date, and settings compared."""

from __future__ import annotations

from safexplain.ledger.settings import Settings
from safexplain.ledger.standing import TOTAL, Standing, store
from safexplain.ledger.storage.ledger_identity import identity_of, name_ledger
from safexplain.ledger.storage.schema import VERSION, check_version, migrate
from safexplain.ledger.storage.storage import Storage


def prepare(storage: Storage, given: Settings) -> Settings:
    """The settings that hold for the ledger in a storage, which is made if it is not there.

    Args:
        storage: where the ledger is, or will be.
        given: settings that the caller named.

    Raises:
        ConfigurationError: there is no ledger and no budget for one, or other settings are stored.
        LedgerError: the database cannot be used, or is of a newer version.
    """
    at = storage.version() if storage.exists() else None
    check_version(at)
    if at is None:
        given.completed()  # before a file is made
        storage.make()
    if at != VERSION:
        with storage.transaction() as execute:
            at = storage.version(execute)  # somebody may have been faster
            if at != VERSION:
                migrate(execute, storage.identity, at)
                name_ledger(execute)
            if at is None:
                given.completed().save(execute)
                store(execute, Standing(TOTAL))
    storage.ledger = identity_of(storage.read)
    stored = Settings.load(storage.read("SELECT name, value FROM ledger_settings"))
    given.agree(stored)
    return stored
