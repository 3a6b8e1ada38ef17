"""What a ledger tells: accounts, records, copies of them, and whether they add up."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from os import PathLike
from typing import IO

from safexplain.ledger import export, verify
from safexplain.ledger.accounts import Book
from safexplain.ledger.arguments import named
from safexplain.ledger.history import charges, grants
from safexplain.ledger.output_files import replacing
from safexplain.ledger.records import Account, Charge, Grant
from safexplain.ledger.settings import Settings
from safexplain.ledger.standing import ACCOUNT_COLUMNS, TOTAL, Standing
from safexplain.ledger.storage.schema import Execute
from safexplain.ledger.storage.storage import Storage


class LedgerReader:
    """The half of `Ledger` that changes nothing."""

    _storage: Storage
    _settings: Settings

    def spent(self, principal: str) -> float:
        """Epsilon that a principal has spent in the current period, at the delta of its budget."""
        return self.account(principal).spent

    def account(self, principal: str) -> Account:
        """How a principal stands."""
        return self._book(self._storage.read, named(principal)).account()

    def total(self) -> Account:
        """How all principals together stand, for ever; epsilon is infinite where there is no limit."""
        return self._book(self._storage.read, TOTAL).account()

    def accounts(self) -> list[Account]:
        """Every principal that was ever charged or granted a budget, by name."""
        rows = self._storage.read(f"SELECT {ACCOUNT_COLUMNS} FROM ledger_accounts ORDER BY principal")
        found, now = {row[0]: Standing.of(row) for row in rows}, self._storage.now()
        return [Book.of(self._settings, found, name, now).account() for name in found if name != TOTAL]

    def charges(self, principal: str | None = None, since: datetime | None = None) -> Iterator[Charge]:
        """Recorded releases, oldest first.

        Args:
            principal: only of this one.
            since: only from this time on; without a time zone it is UTC.
        """
        return charges(self._storage.read, None if principal is None else named(principal), since)

    def grants(self) -> list[Grant]:
        """Every budget that replaced another, oldest first."""
        return grants(self._storage.read)

    def export(self, target: str | PathLike[str] | IO[str], format: str = "jsonl") -> int:
        """Write all charges; how many there were.

        Args:
            target: path, or a text stream. A file that is there is replaced once all is written.
            format: "jsonl" or "csv".

        Raises:
            ConfigurationError: another format, or a file of the ledger itself.
            InputError: the file cannot be written.
        """
        return export.write(self.charges(), target, format, self._storage.files)

    def backup(self, path: str | PathLike[str]) -> None:
        """Write a copy of an SQLite ledger, also while it is in use; copying its file alone would miss its log.

        Args:
            path: of the copy. A file that is there is replaced once all is written.

        Raises:
            ConfigurationError: a ledger in PostgreSQL, or a file of the ledger itself.
            LedgerError: it cannot be read, or the copy not be written.
        """
        with replacing(path, self._storage.files) as partial:
            self._storage.backup(partial)

    def verify(self) -> int:
        """Add up every recorded release again, and look at every stored answer; how many charges there are.

        Others wait until it is done, a few seconds for a million charges.

        Raises:
            LedgerError: a sum is not that of its records, or charges and answers do not match.
        """
        with self._storage.transaction() as execute:
            self._storage.lock(execute)
            return verify.verify(execute)

    def _book(self, execute: Execute, principal: str) -> Book:
        return Book.open(execute, self._settings, principal, self._storage.now())
