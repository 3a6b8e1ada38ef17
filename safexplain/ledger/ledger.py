"""The ledger: who may still ask. Charges are atomic, and what was answered is never charged twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from os import PathLike
from typing import IO, Any, cast

from safexplain._privacy_loss import Adjacency
from safexplain._validate import check_number
from safexplain.ledger import records
from safexplain.ledger.accounts import ACCOUNT_COLUMNS, TOTAL, Balance, Balances, Entry, Settings, told
from safexplain.ledger.answers import Batch
from safexplain.ledger.composition import Budget
from safexplain.ledger.inspection import copy, verify, write_charges
from safexplain.ledger.opening import open_storage, settle
from safexplain.ledger.records import Account, Answer, Charge, Grant, named
from safexplain.ledger.releases import Release, as_release
from safexplain.ledger.storage.schema import Execute, identity_of, keyed
from safexplain.ledger.trainings import charge_everybody, recorded, statements, training_of
from safexplain.verdict.privacy_statement import PrivacyStatement


class Ledger:
    """Records what each principal was told, and refuses what would take one past its privacy budget.

    Every principal has a budget (epsilon, delta) for each period; all principals together may have one for ever. Both
    hold for whatever the principals ask, see `safexplain.ledger.composition`. The guarantee of a principal is about
    what the ledger returned to it; if several may collude, the total is what protects against them. It is usable from
    threads, after fork, and can be pickled: each process opens a connection of its own when it needs one. Its time
    never goes back: a clock that is set back renews no budget, one that is set forward renews it early but once.

    Args:
        url: "sqlite:///relative.db", "sqlite:////absolute.db", or "postgresql://..." (extra `postgres`).
        epsilon: budget of each principal and period. Stored when the ledger is made; None: as stored.
        delta: the same; 0 if never given. Gaussian releases need it above 0.
        period: "lifetime", "day", "week" (from Monday) or "month", by the calendar in UTC; "lifetime" if never given.
        total_epsilon: budget of all principals together, for ever; None: as stored, no limit if never given.
        total_delta: the same; `delta` if never given.
        adjacency: what neighbouring data sets differ in, "substitute", "add_remove" or "zero_out", for all releases.
            Stored when the ledger is made, "substitute" if not given; None: as stored. A release that names other
            neighbours is refused.
        timeout: seconds to wait for others who write.
        clock: microseconds since 1970, for tests; None: this process's clock, or that of the PostgreSQL server.

    Raises:
        ConfigurationError: a value out of range, or other than what is stored.
        LedgerError: the database is locked, read-only, damaged or written by a newer safexplain.
        InputError: the folder does not exist.
        MissingExtraError: PostgreSQL without psycopg.

    Example:
        >>> import tempfile
        >>> ledger = Ledger(f"sqlite:///{tempfile.mkdtemp()}/ledger.db", epsilon=1.0, delta=1e-6)
        >>> _ = ledger.charge("clinic-7", epsilon=0.1)
        >>> ledger.spent("clinic-7")
        0.1
    """

    def __init__(
        self,
        url: str,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        period: str | None = None,
        total_epsilon: float | None = None,
        total_delta: float | None = None,
        adjacency: str | None = None,
        timeout: float = 10.0,
        clock: Callable[[], int] | None = None,
    ) -> None:
        given = Settings(epsilon, delta, period, total_epsilon, total_delta, adjacency)
        self._arguments: dict[str, Any] = {"url": url, "timeout": timeout, "clock": clock}
        self._storage = open_storage(url, timeout, clock)
        self._settings = settle(self._storage, given)
        self._forget()

    def _forget(self) -> None:
        self._trainings: set[str] = set()  # weights whose training is known to be on the disk
        self._secret: bytes | None = None

    def spent(self, principal: str) -> float:
        """Epsilon that a principal has spent in the current period, at the delta of its budget."""
        return self.account(principal).spent

    def account(self, principal: str) -> Account:
        """How a principal stands."""
        balances = self._balances(self._storage.read, named(principal))
        return balances.account(told(self._storage.read, balances.mine.period))

    def total(self) -> Account:
        """How all principals together stand, for ever; epsilon is infinite where there is no limit."""
        return self._balances(self._storage.read, TOTAL).account(told(self._storage.read, 0))

    def accounts(self) -> list[Account]:
        """Every principal that was charged or was granted a budget, by name."""
        rows = self._storage.read(f"SELECT {ACCOUNT_COLUMNS} FROM ledger_accounts ORDER BY principal")
        found, now = {row[0]: Balance.of(row) for row in rows}, self._storage.now()
        if TOTAL not in found or len(found) == 1:
            return []
        begun = records.begins(self._settings.period or "", max(now, found[TOTAL].time))
        trainings = told(self._storage.read, begun)
        return [
            Balances.of(self._settings, found, name, now, lambda _: trainings).account(trainings)
            for name in found
            if name != TOTAL
        ]

    def charges(self, principal: str | None = None, since: datetime | None = None) -> Iterator[Charge]:
        """Recorded releases, oldest first.

        Args:
            principal: only of this one.
            since: only from this time on; without a time zone it is UTC.
        """
        return records.charges(self._storage.read, None if principal is None else named(principal), since)

    def grants(self) -> list[Grant]:
        """Every budget that replaced another, oldest first."""
        return records.grants(self._storage.read)

    def export(self, target: str | PathLike[str] | IO[str], format: str = "jsonl") -> int:
        """Write all charges; how many there were.

        Args:
            target: path, or a text stream. A file that is there is replaced once all is written.
            format: "jsonl" or "csv".

        Raises:
            ConfigurationError: another format, or a file of the ledger itself.
            InputError: the file cannot be written.
        """
        return write_charges(self.charges(), target, format, self._storage.files)

    def backup(self, path: str | PathLike[str]) -> None:
        """Write a copy of an SQLite ledger, also while it is in use; see `safexplain.ledger.inspection.copy`."""
        copy(self._storage, path)

    def verify(self) -> int:
        """Add up every release again, look at every stored answer; how many charges there are.

        Others wait until it is done, a few seconds for a million charges.

        Raises:
            LedgerError: a sum is not that of its records, or charges and answers do not match.
        """
        with self._storage.transaction() as execute:
            self._storage.lock(execute)
            return verify(execute)

    def charge(
        self,
        principal: str,
        release: Release | None = None,
        *,
        epsilon: float | None = None,
        delta: float = 0.0,
        mu: float | None = None,
        mechanism: str = "",
        parameters: Mapping[str, Any] | None = None,
    ) -> Charge:
        """Record a release, if it fits; charge before the answer leaves, or use `answer`.

        Args:
            principal: who is told.
            release: what the answer can reveal; or one of
            epsilon: of a pure answer, or with `delta` of an approximate one,
            delta: see epsilon,
            mu: of a Gaussian answer.
            mechanism: what makes the answer, to be recorded.
            parameters: of the mechanism, to be recorded; JSON types.

        Returns:
            The charge as recorded; it is durable.

        Raises:
            BudgetExhausted: it does not fit; nothing was recorded.
            ConfigurationError: not exactly one of release, epsilon and mu; a value out of range; neighbours other than
                the ledger's.
            LedgerError: the database cannot be written.
        """
        what = as_release(release, epsilon, delta, mu)
        entry = Entry(what, *records.described(mechanism, parameters))
        name = named(principal)
        with self._storage.transaction() as execute:
            balances = self._locked_balances(execute, name).charged([entry])
            return balances.record(execute, [entry])[0]

    def charge_training(self, statement: PrivacyStatement) -> Charge:
        """Record that a model was trained on the records of this ledger, once: the same weights are not charged again.

        A model is told to everybody, so that its training counts in the total and in every account of this period, of
        those who first ask later too; it must fit into all of them (`safexplain.ledger.trainings`). Charge it before
        anything of the model leaves. `MeteredRecourse` does it by itself. Others wait while it goes through the
        accounts, some 8 seconds for 100,000.

        Args:
            statement: of the training, with the digest of its weights: `model.privacy_`.

        Returns:
            Its charge, of the principal "", now or when it was first charged; it is durable.

        Raises:
            BudgetExhausted: it does not fit into the total, into the account of the principal that the error names, or
                into that of whoever asks for the first time; nothing was recorded.
            RefusedError: a statement about no weights, about persons, without a finite epsilon, other than the one by
                which these weights were charged, or under add/remove one that tells the number of records.
            LedgerError: the database cannot be written.
        """
        training = training_of(statement, cast("Adjacency", self.adjacency))
        if charge := recorded(self._storage.read, statement):
            if statement.weights not in self._trainings:
                self._storage.sync()  # another process may have committed it a moment ago
        else:
            with self._storage.transaction() as execute:
                balances = self._locked_balances(execute, TOTAL)
                found = recorded(execute, statement)
                charge = found or charge_everybody(execute, balances, statement, training)
        self._trainings.add(statement.weights)
        return charge

    def trainings(self) -> list[tuple[Charge, PrivacyStatement]]:
        """Every training that was charged, and its statement, oldest first."""
        return statements(self._storage.read)

    def answer(
        self,
        principal: str,
        question: str | bytes,
        compute: Callable[[], Any],
        release: Release,
        *,
        mechanism: str = "",
        parameters: Mapping[str, Any] | None = None,
    ) -> Answer:
        """Answer a question once; the same question again gets the stored answer.

        A principal who was given the answer before is given it again, free. To another principal it is charged, but
        not again to the total: nothing new leaves the model. A new answer is computed outside any transaction, then
        recorded together with its charge, and returned only when both are durable; if somebody was faster, theirs is
        returned and the own one is dropped unseen.

        Args:
            principal: who asks.
            question: all that the answer depends on: mechanism, its parameters, the model, the query. Only its digest
                under the ledger's secret is stored.
            compute: makes the answer, of JSON types. If it raises, nothing is charged.
            release: what the answer can reveal; a stored answer is charged as it was made.
            mechanism: to be recorded.
            parameters: to be recorded; JSON types.

        Raises:
            BudgetExhausted: it does not fit; nothing was recorded, and `compute` was not called unless somebody else
                spent the rest meanwhile.
            InputError: the answer is not JSON.
            LedgerError: the database cannot be written.
        """
        return self.answer_many(
            principal, [question], lambda _: [compute()], release, mechanism=mechanism, parameters=parameters
        )[0]  # fmt: skip

    def answer_many(
        self,
        principal: str,
        questions: Sequence[str | bytes],
        compute: Callable[[list[int]], Sequence[Any]],
        release: Release | Sequence[Release],
        *,
        mechanism: str = "",
        parameters: Mapping[str, Any] | None = None,
    ) -> tuple[Answer, ...]:
        """`answer` for several questions at once, all or nothing.

        `compute` makes the answers to the questions at the positions that it is given, in their order; `release` is
        that of each answer, or one for all.

        Raises:
            BudgetExhausted: not all fit; nothing was recorded.
            InputError: the answers are not JSON, or not as many as asked for.
            LedgerError: the database cannot be written.
        """
        name = named(principal)
        batch = Batch.of(name, questions, release, *records.described(mechanism, parameters), self.keyed)
        found = batch.look_up(self._storage.read)
        if not batch.is_free(found):
            self._balances(self._storage.read, name).charged(batch.entries(found))
            made = batch.made(compute, found)
            with self._storage.transaction() as execute:
                balances = self._locked_balances(execute, name)
                return batch.settle(execute, balances, made)
        self._storage.sync()  # no answer may outlive its charge
        return batch.answers(found)

    def keyed(self, digest: bytes) -> bytes:
        """HMAC-SHA256 of a digest under the secret of this ledger, 32 bytes: what it stores of a question.

        A log that names questions by it cannot be searched by digesting guesses, unless the reader has the ledger too.
        The secret is read once and kept in memory; a pickled ledger does not hold it.

        Raises:
            LedgerError: the database cannot be read.
        """
        if self._secret is None:
            _, self._secret = identity_of(self._storage.read)
        return keyed(self._secret, digest)

    @property
    def adjacency(self) -> str:
        """What neighbouring data sets differ in, for all releases."""
        return self._settings.adjacency or "substitute"

    @property
    def identity(self) -> str:
        """Random name of the database, the same for all who open it."""
        return str(self._storage.ledger)

    def grant(
        self,
        principal: str | None,
        epsilon: float,
        delta: float | None = None,
        note: str = "",
    ) -> Account:
        """Replace the budget of a principal, from now on and for every later period.

        What a principal is granted must not depend on what it was answered. A budget below what is spent refuses
        further releases; what was told stays told.

        Args:
            principal: whose; None for all principals together.
            epsilon: the new budget.
            delta: the same; None: as it is.
            note: why, to be recorded.

        Raises:
            ConfigurationError: a value out of range.
            LedgerError: the database cannot be written.
        """
        name, note = TOTAL if principal is None else named(principal), records.text("note", note)
        epsilon = check_number("epsilon", epsilon, above=0)
        with self._storage.transaction() as execute:
            balances = self._locked_balances(execute, name)
            old = balances.total_budget if principal is None else balances.budget
            new = Budget(epsilon, old.delta if delta is None else check_number("delta", delta, minimum=0, below=1))
            execute(
                "INSERT INTO ledger_grants (principal, time, epsilon, delta, note) VALUES (?, ?, ?, ?, ?)",
                (name, balances.time, new.epsilon, new.delta, note),
            )
            balances.granted(new).save(execute)
        return self.total() if principal is None else self.account(principal)

    def close(self) -> None:
        """Let go of the connection; the next use opens another."""
        self._storage.close()

    def _balances(self, execute: Execute, principal: str) -> Balances:
        return Balances.open(execute, self._settings, principal, self._storage.now())

    def _locked_balances(self, execute: Execute, principal: str) -> Balances:
        now = self._storage.lock(execute)  # before accounts are read, one of which another may just be opening
        return Balances.open(execute, self._settings, principal, now)

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        arguments = {**self._arguments, "url": self._storage.address}
        return {"arguments": arguments, "settings": self._settings, "ledger": self._storage.ledger}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._arguments, self._settings = state["arguments"], state["settings"]
        self._storage = open_storage(**self._arguments)
        self._storage.ledger = state["ledger"]
        self._forget()

    def __repr__(self) -> str:
        each = self._settings.each
        return f"Ledger({self._storage.name!r}, epsilon={each.epsilon:g}, delta={each.delta:g})"
