"""The ledger: who may still ask. Charges are atomic, and what was answered is never charged twice."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import IO, Any, cast

from safexplain._privacy_loss import Adjacency, check_adjacency
from safexplain._validate import check_number, check_whole
from safexplain.errors import ConfigurationError
from safexplain.ledger import records
from safexplain.ledger.accounts import ACCOUNT_COLUMNS, TOTAL, Balance, Balances, Entry, Settings, prepare, told
from safexplain.ledger.answers import Batch
from safexplain.ledger.composition import Budget
from safexplain.ledger.inspection import replacing, verify, write_charges
from safexplain.ledger.questions import Looks, Most, Seen, ask, check_digests, count, counts, known, seen
from safexplain.ledger.records import Account, Answer, Charge, Grant, named
from safexplain.ledger.releases import Release, as_release
from safexplain.ledger.storage import Storage
from safexplain.ledger.storage.schema import Execute, identity_of, keyed
from safexplain.ledger.trainings import charge_everybody, recorded, statements, training_of
from safexplain.verdict.privacy_statement import PrivacyStatement

MOST_REMEMBERED = 100_000
"""Principals of whom a process keeps what is on the disk."""


class Ledger:
    """Records what each principal was told, and refuses what would take one past its privacy budget.

    Every principal has a budget (epsilon, delta) for each period; all principals together may have one for ever. Both
    hold for whatever the principals ask, see `safexplain.ledger.composition`. The guarantee of a principal is about
    what the ledger returned to it; if several may collude, the total is what protects against them. It is usable from
    threads, after fork, and can be pickled: each process opens a connection of its own when it needs one. Its time
    never goes back: a clock that is set back renews no budget, one that is set forward renews it early but once.

    Args:
        url: "sqlite:///relative.db", "sqlite:////absolute.db", or "postgresql://..." (extra `postgres`). "memory:"
            counts questions in this process alone and forgets them with it.
        epsilon: budget of each principal and period. Stored when the ledger is made; None: as stored.
        delta: the same; 0 if never given. Gaussian releases need it above 0.
        period: "lifetime", "day", "week" (from Monday) or "month", by the calendar in UTC; "lifetime" if never given.
        total_epsilon: budget of all principals together, for ever; None: as stored, no limit if never given.
        total_delta: the same; `delta` if never given.
        questions: distinct ones that each principal may `ask` in a period; infinite: they are counted, and whoever asks
            brings the limit. None: as stored, no limit if never given. A ledger may have a budget of epsilon, of
            questions, or both.
        adjacency: what neighbouring data sets differ in, "substitute", "add_remove" or "zero_out", for all releases.
            None: as stored; if never given, the first release that names its neighbours settles it, and others are
            refused. Releases that name none are about the ledger's; those before any was named count as about
            "substitute", unless a later opening says what they were.
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
        questions: float | None = None,
        adjacency: str | None = None,
        timeout: float = 10.0,
        clock: Callable[[], int] | None = None,
    ) -> None:
        given = Settings(epsilon, delta, period, total_epsilon, total_delta, questions, adjacency)
        self._arguments: dict[str, Any] = {"url": url, "timeout": timeout, "clock": clock}
        self._storage = open_storage(url, timeout, clock)
        self._settings = prepare(self._storage, given)
        self._forget()

    def _forget(self) -> None:
        self._durable: dict[str, int] = {}  # principal -> number of a question that is known to be on the disk
        self._trainings: set[str] = set()  # weights whose training is
        self._secret: bytes | None = None

    def _remember(self, principal: str, number: int) -> None:
        if len(self._durable) >= MOST_REMEMBERED:
            self._durable.clear()  # costs each of them a sync
        self._durable[principal] = number

    def spent(self, principal: str) -> float:
        """Epsilon that a principal has spent in the current period, at the delta of its budget."""
        return self.account(principal).spent

    def account(self, principal: str) -> Account:
        """How a principal stands."""
        balances = self._balances(self._storage.read, named(principal))
        questions = count(self._storage.read, balances, self._settings.period or "")
        return balances.account(questions, told(self._storage.read, balances.mine.period))

    def total(self) -> Account:
        """How all principals together stand, for ever; epsilon is infinite where there is no limit."""
        return self._balances(self._storage.read, TOTAL).account(0, told(self._storage.read, 0))

    def accounts(self) -> list[Account]:
        """Every principal that ever asked, was charged or was granted a budget, by name."""
        rows = self._storage.read(f"SELECT {ACCOUNT_COLUMNS} FROM ledger_accounts ORDER BY principal")
        found, now = {row[0]: Balance.of(row) for row in rows}, self._storage.now()
        if TOTAL not in found or len(found) == 1:
            return []
        begun = records.begins(self._settings.period or "", max(now, found[TOTAL].time))
        trainings, asked = told(self._storage.read, begun), counts(self._storage.read, begun)
        return [
            Balances.of(self._settings, found, name, now, lambda _: trainings).account(asked.get(name, 0), trainings)
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
        """Add up every release again, look at every stored answer, count all questions; how many charges there are.

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
        adjacency: Adjacency | None = None,
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
            adjacency: what neighbouring data sets differ in, for this release; None: as for the ledger.

        Returns:
            The charge as recorded; it is durable.

        Raises:
            BudgetExhausted: it does not fit; nothing was recorded.
            ConfigurationError: not exactly one of release, epsilon and mu; a value out of range; neighbours other than
                the ledger's.
            LedgerError: the database cannot be written.
        """
        what = as_release(release, epsilon, delta, mu)
        entry = Entry(what, *records.described(mechanism, parameters), adjacency=adjacency)
        name = named(principal)
        with self._storage.transaction() as execute:
            balances = self._locked_balances(execute, name).charged([entry])
            return balances.record(execute, [entry])[0]

    def charge_training(self, statement: PrivacyStatement, *, adjacency: Adjacency | None = None) -> Charge:
        """Record that a model was trained on the records of this ledger, once: the same weights are not charged again.

        A model is told to everybody, so that its training counts in the total and in every account of this period, of
        those who first ask later too; it must fit into all of them (`safexplain.ledger.trainings`). Charge it before
        anything of the model leaves. `MeteredRecourse` does it by itself. Others wait while it goes through the
        accounts, some 8 seconds for 100,000.

        Args:
            statement: of the training, with the digest of its weights: `model.privacy_`.
            adjacency: under which it counts; None: the ledger's.

        Returns:
            Its charge, of the principal "", now or when it was first charged; it is durable.

        Raises:
            BudgetExhausted: it does not fit into the total, into the account of the principal that the error names, or
                into that of whoever asks for the first time; nothing was recorded.
            RefusedError: a statement about no weights, about persons, without a finite epsilon, other than the one by
                which these weights were charged, or under add/remove one that tells the number of records.
            ConfigurationError: neighbours other than the ledger's, or none were ever named; a ledger that counts
                questions only.
            LedgerError: the database cannot be written.
        """
        about = self.adjacency if adjacency is None else adjacency
        if about is None:
            raise ConfigurationError(
                "adjacency: neither this ledger nor anything in it says what neighbouring data sets differ in, and the"
                ' epsilon of a training depends on it: pass adjacency="substitute", or whatever it is'
            )
        check_adjacency(about)
        training = training_of(statement, cast("Adjacency", about))
        if charge := recorded(self._storage.read, statement):
            self._agreed(charge, about)
            if statement.weights not in self._trainings:
                self._storage.sync()  # another process may have committed it a moment ago
        else:
            with self._storage.transaction() as execute:
                balances = self._locked_balances(execute, TOTAL)
                found = recorded(execute, statement)
                charge = found or charge_everybody(execute, balances, statement, training)
            self._agreed(charge, about)
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
        adjacency: Adjacency | None = None,
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
            adjacency: as in `charge`.

        Raises:
            BudgetExhausted: it does not fit; nothing was recorded, and `compute` was not called unless somebody else
                spent the rest meanwhile.
            InputError: the answer is not JSON.
            LedgerError: the database cannot be written.
        """
        return self.answer_many(
            principal, [question], lambda _: [compute()], release, mechanism=mechanism, parameters=parameters,
            adjacency=adjacency,
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
        adjacency: Adjacency | None = None,
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
        batch = Batch.of(name, questions, release, *records.described(mechanism, parameters), adjacency, self.keyed)
        found = batch.look_up(self._storage.read)
        if not batch.is_free(found):
            self._balances(self._storage.read, name).charged(batch.entries(found))
            made = batch.made(compute, found)
            with self._storage.transaction() as execute:
                balances = self._locked_balances(execute, name)
                return batch.settle(execute, balances, made)
        self._storage.sync()  # no answer may outlive its charge
        return batch.answers(found)

    def ask(
        self,
        principal: str,
        digests: Sequence[bytes],
        *,
        most: Sequence[Most] = (),
        looks: Callable[[], Looks] | None = None,
    ) -> int:
        """Count questions, all or none. What this principal asked before, whenever, is free.

        Limits are the ledger's own and those of the call, all of which hold; where a limit was granted, to this
        principal or to everybody, it is the only one on questions.

        Args:
            principal: who asks.
            digests: of the questions, 1 to 64 bytes each; two of one digest are one question. They are stored under
                the ledger's secret, see `keyed`.
            most: further limits on new questions.
            looks: makes what says which questions are alike, and how many such there may be; called before the
                transaction, if there is anything new.

        Returns:
            How many of them were new. They are durable.

        Raises:
            BudgetExhausted: the new ones do not all fit; none was counted.
            ConfigurationError: there is no limit at all.
            InputError: a digest that is none.
            LedgerError: the database cannot be written; if it failed during the commit, they may have been counted, and
                asking again is then free.
        """
        name, asked = named(principal), list(map(self.keyed, check_digests(digests)))
        found = known(self._storage.read, name, asked)
        if len(found) == len(set(asked)):
            number = max(found.values(), default=0)
            if number > self._durable.get(name, 0):  # another process may have committed it a moment ago
                self._storage.sync()
                self._remember(name, number)
            return 0
        alike = None if looks is None else looks()
        with self._storage.transaction() as execute:
            balances = self._locked_balances(execute, name)
            new = ask(execute, balances, asked, self._limits(balances, most), alike)
        self._remember(name, balances.mine.questions + new)
        return new

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

    def served(self, name: str, limits: Mapping[str, Any]) -> None:
        """Store what a service that uses this ledger enforces for each client, in place of what it stored before.

        `safexplain ledger show` prints it; the ledger itself does not enforce it.

        Args:
            name: of the service.
            limits: JSON types, as {"questions": 200, "period": "week"}.

        Raises:
            InputError: a name that no database keeps, or other types.
            LedgerError: the database cannot be written.
        """
        row = (records.text("name", name), records.as_json("limits", limits))
        with self._storage.transaction() as execute:
            execute(
                "INSERT INTO ledger_services VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET limits = excluded.limits",
                row,
            )

    def services(self) -> dict[str, dict[str, Any]]:
        """What each service `served`, by its name."""
        rows = self._storage.read("SELECT name, limits FROM ledger_services ORDER BY name")
        return {name: json.loads(limits) for name, limits in rows}

    def seen(self, principal: str, space: str, after: int = 0) -> list[Seen]:
        """Questions of a principal whose sketches are of one space, in their order, from the next after a number on."""
        return seen(self._storage.read, named(principal), records.text("space", space), after)

    @property
    def adjacency(self) -> str | None:
        """What neighbouring data sets differ in, for all releases; None: nothing has said so yet."""
        return Settings.load(self._storage.read("SELECT name, value FROM ledger_settings")).adjacency

    @property
    def lasting(self) -> bool:
        """Whether it outlives the process: all but those in memory do."""
        return self._storage.lasting

    @property
    def identity(self) -> str:
        """Random name of the database, the same for all who open it."""
        return str(self._storage.ledger)

    def _limits(self, balances: Balances, most: Sequence[Most]) -> list[Most]:
        own, granted = balances.most_questions, balances.were_questions_granted
        limits = [*([] if own is None else [Most(own, self._settings.period or "")]), *([] if granted else most)]
        if not limits:
            raise ConfigurationError(
                "this ledger has no limit on questions; make it with questions=, or grant one: safexplain ledger grant"
                " LEDGER --everybody --questions 1000"
            )
        return limits

    def grant(
        self,
        principal: str | None,
        epsilon: float | None = None,
        delta: float | None = None,
        note: str = "",
        *,
        questions: int | None = None,
    ) -> Account:
        """Replace the budget of a principal, from now on and for every later period.

        What a principal is granted must not depend on what it was answered. A budget below what is spent refuses
        further releases; what was told stays told.

        Args:
            principal: whose; None for all principals together. Of questions None is for each principal to whom no
                number was granted.
            epsilon: the new budget; None: as it is.
            delta: the same.
            note: why, to be recorded.
            questions: of a period; None: as it is.

        Raises:
            ConfigurationError: a value out of range, or neither epsilon nor questions.
            LedgerError: the database cannot be written.
        """
        name, note = TOTAL if principal is None else named(principal), records.text("note", note)
        if epsilon is None and (questions is None or delta is not None):
            raise ConfigurationError("grant: expected epsilon=, with or without delta=, or questions=, or both")
        if epsilon is not None:
            epsilon = check_number("epsilon", epsilon, above=0)
        if questions is not None:
            check_whole("questions", questions, 1)
        with self._storage.transaction() as execute:
            balances = self._locked_balances(execute, name)
            old = balances.total_budget if principal is None else balances.budget
            new = None
            if epsilon is not None:
                new = Budget(epsilon, old.delta if delta is None else check_number("delta", delta, minimum=0, below=1))
            recorded = new or old
            execute(
                "INSERT INTO ledger_grants (principal, time, epsilon, delta, note, questions)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (name, balances.time, recorded.epsilon, recorded.delta, note, questions),
            )
            balances.granted(new, questions).save(execute)
        return self.total() if principal is None else self.account(principal)

    def close(self) -> None:
        """Let go of the connection; the next use opens another."""
        self._storage.close()

    def _agreed(self, charge: Charge, about: str) -> None:
        if self.adjacency != about:
            raise ConfigurationError(
                f"adjacency: this training was charged under {self.adjacency}, which is what the ledger is about, not"
                f" {about}"
            )

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
        if not self._storage.lasting:
            raise ConfigurationError("a ledger in memory cannot go to another process; keep it in a file or a server")
        arguments = {**self._arguments, "url": self._storage.address}
        return {"arguments": arguments, "settings": self._settings, "ledger": self._storage.ledger}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._arguments, self._settings = state["arguments"], state["settings"]
        self._storage = open_storage(**self._arguments)
        self._storage.ledger = state["ledger"]
        self._forget()

    def __repr__(self) -> str:
        each, questions = self._settings.each, self._settings.questions
        budget = "" if self._settings.epsilon is None else f", epsilon={each.epsilon:g}, delta={each.delta:g}"
        return f"Ledger({self._storage.name!r}{budget}{'' if questions is None else f', questions={questions:g}'})"


def open_storage(url: str, timeout: float, clock: Callable[[], int] | None = None) -> Storage:
    """The storage that a URL names, with arguments as `Ledger`; nothing is connected yet.

    Raises:
        ConfigurationError: the URL is of another kind, or the timeout is not a number of seconds.
        MissingExtraError: PostgreSQL without the extra.
    """
    timeout = check_number("timeout", timeout, above=0.0)
    if url == "memory:":
        from safexplain.ledger.storage.sqlite import MemoryStorage

        return MemoryStorage(timeout, clock)
    scheme, separator, rest = str(url).partition("://")
    if separator and scheme in ("postgresql", "postgres"):
        from safexplain.ledger.storage.postgres import PostgresStorage

        return PostgresStorage(str(url), timeout, clock)
    if separator and scheme == "sqlite" and rest.startswith("/") and rest[1:] not in ("", ":memory:"):
        from safexplain.ledger.storage.sqlite import SqliteStorage

        if "?" in rest:
            raise ConfigurationError(f"url: options after ? are not known, got {url!r}; name the file alone")
        return SqliteStorage(Path(rest[1:]).absolute(), timeout, clock)
    raise ConfigurationError(
        f'url: expected "sqlite:///file.db" or "postgresql://user@host/database", got {url!r}; a ledger in memory would'
        " forget what was spent"
    )
