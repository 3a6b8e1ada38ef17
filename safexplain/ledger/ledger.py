"""The ledger: charges are atomic, and no answer is charged to a principal twice."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from os import PathLike
from typing import IO, Any, cast

from safexplain._digest import sha256
from safexplain._privacy_loss import Adjacency
from safexplain._validate import check_number
from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError
from safexplain.ledger import records
from safexplain.ledger.accounts import (
    ACCOUNT_COLUMNS,
    TOTAL,
    Balance,
    Balances,
    Entry,
    Settings,
    charge_everybody,
    recorded,
    statements,
    training_of,
    trainings_since,
)
from safexplain.ledger.composition import Budget
from safexplain.ledger.maintenance import copy, load_or_create, verify, write_charges
from safexplain.ledger.records import Account, Answer, Charge, Grant, principal_name
from safexplain.ledger.releases import Release, as_release, from_json, to_json
from safexplain.ledger.storage import Execute, identity_of, keyed_digest, open_storage, rows_of
from safexplain.verdict.privacy_statement import PrivacyStatement


class Ledger:
    """Records the answers of each principal, and refuses any that would exceed a privacy budget.

    Every principal has a budget (epsilon, delta) for each period; all together may have one without renewal. Both hold
    for adaptively chosen questions. A principal's guarantee covers what the ledger returned to it; against principals
    who collude, the total protects. Threads may share a ledger; it works after fork and can be pickled. Its time never
    goes back: setting a clock back renews no budget, setting it forward renews each early, but only once. Every method
    raises LedgerError if the database cannot be read or written.

    Args:
        url: "sqlite:///relative.db", "sqlite:////absolute.db", or "postgresql://..." (extra `postgres`).
        epsilon: budget of each principal and period. A new ledger stores this and the other settings; None: as stored.
        delta: the same; 0 by default. Gaussian releases need it above 0.
        period: "lifetime" (default), "day", "week" (from Monday) or "month", by the calendar in UTC.
        total_epsilon: budget of all principals together, without renewal; no limit by default.
        total_delta: the same; by default as `delta`.
        adjacency: of all releases: "substitute" (default), "add_remove" or "zero_out".
        timeout: seconds to wait for other writers.
        clock: microseconds since 1970, for tests; None: this process's clock, or that of the PostgreSQL server.

    Raises:
        ConfigurationError: a value out of range, or different from the stored one.
        LedgerError: the database is locked, read-only, damaged or written by a newer safexplain.
        InputError: the folder does not exist.
        MissingExtraError: PostgreSQL without psycopg.
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
        self._settings = load_or_create(self._storage, given)
        self._clear_caches()

    def _clear_caches(self) -> None:
        self._durable_trainings: set[str] = set()  # digests of weights
        self._secret: bytes | None = None

    def spent(self, principal: str) -> float:
        """Epsilon that a principal has spent in this period, at the delta of its budget."""
        return self.account(principal).spent

    def account(self, principal: str) -> Account:
        """The account of a principal."""
        balances = self._balances(self._storage.read, principal_name(principal))
        return balances.account(trainings_since(self._storage.read, balances.mine.period))

    def total(self) -> Account:
        """The account of all principals together."""
        return self._balances(self._storage.read, TOTAL).account(trainings_since(self._storage.read, 0))

    def accounts(self) -> list[Account]:
        """Every principal with a charge or a grant, by name."""
        rows = self._storage.read(f"SELECT {ACCOUNT_COLUMNS} FROM ledger_accounts ORDER BY principal")
        found, now = {row[0]: Balance.of(row) for row in rows}, self._storage.now()
        if TOTAL not in found or len(found) == 1:
            return []
        start = records.period_start(self._settings.period or "", max(now, found[TOTAL].time))
        trainings = trainings_since(self._storage.read, start)
        return [
            Balances.of(self._settings, found, name, now, lambda _: trainings).account(trainings)
            for name in found
            if name != TOTAL
        ]

    def charges(self, principal: str | None = None, since: datetime | None = None) -> Iterator[Charge]:
        """Recorded releases, oldest first: of a principal, or since a time (UTC without a time zone)."""
        return records.charges(self._storage.read, None if principal is None else principal_name(principal), since)

    def grants(self) -> list[Grant]:
        """Every budget that replaced another, oldest first."""
        return records.grants(self._storage.read)

    def export(self, target: str | PathLike[str] | IO[str], format: str = "jsonl") -> int:
        """Write all charges, and return their number.

        Args:
            target: path, whose file is replaced once the new one is complete, or a text stream.
            format: "jsonl" or "csv".

        Raises:
            ConfigurationError: another format, or a file of the ledger itself.
            InputError: the file cannot be written.
        """
        return write_charges(self.charges(), target, format, self._storage.files)

    def backup(self, path: str | PathLike[str]) -> None:
        """Copy an SQLite ledger, also while it is in use; an existing file is replaced once the copy is complete.

        Raises:
            ConfigurationError: a ledger in PostgreSQL, or a file of the ledger itself.
            InputError: the copy cannot be written.
        """
        copy(self._storage, path)

    def verify(self) -> int:
        """Recompute every sum, check every stored answer, and return the number of charges; other writers wait.

        Raises:
            LedgerError: sums, charges and answers do not match.
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
        """Record a release if it fits. Charge before the answer leaves, or use `answer`.

        Args:
            principal: who gets the answer.
            release: bound on what the answer reveals; or give epsilon or mu.
            epsilon: of a pure answer, or with `delta` of an approximate one.
            delta: of an approximate answer.
            mu: of a Gaussian answer.
            mechanism: for the record.
            parameters: of the mechanism, for the record; JSON types.

        Returns:
            The recorded charge, which is durable.

        Raises:
            BudgetExhausted: it does not fit; nothing was recorded.
            ConfigurationError: not exactly one of release, epsilon and mu; a value out of range; another adjacency.
        """
        entry = Entry(as_release(release, epsilon, delta, mu), *records.mechanism_columns(mechanism, parameters))
        name = principal_name(principal)
        with self._storage.transaction() as execute:
            balances = self._locked_balances(execute, name).after_charging([entry])
            return balances.record(execute, [entry])[0]

    def charge_training(self, statement: PrivacyStatement) -> Charge:
        """Charge a training on the records of this ledger, once for the same weights.

        A training counts in the total and in every account of this period, including those that are opened later, and
        must fit into all of them. Charge it before anything of the model leaves.

        Args:
            statement: of the training, with the digest of its weights: `model.privacy_`.

        Returns:
            Its charge, of the principal "", recorded now or before.

        Raises:
            BudgetExhausted: it does not fit into the account that the error names; nothing was recorded.
            RefusedError: a statement without weights, about persons, without a finite epsilon, different from the one
                recorded for these weights, or under add/remove one that reveals the number of records.
        """
        training = training_of(statement, cast("Adjacency", self.adjacency))
        if charge := recorded(self._storage.read, statement):
            if statement.weights not in self._durable_trainings:
                self._storage.sync()  # another process may have committed it a moment ago
        else:
            with self._storage.transaction() as execute:
                balances = self._locked_balances(execute, TOTAL)
                found = recorded(execute, statement)
                charge = found or charge_everybody(execute, balances, statement, training)
        self._durable_trainings.add(statement.weights)
        return charge

    def trainings(self) -> list[tuple[Charge, PrivacyStatement]]:
        """Charged trainings with their statements, oldest first."""
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

        A principal gets the same answer again for free. Another principal is charged for it, but the total is not. A
        new answer is returned only when it and its charge are durable. If another process was faster, its answer is
        returned and the new one discarded.

        Args:
            principal: as for `charge`.
            question: everything that the answer depends on: mechanism, parameters, model, query. Only its digest under
                the ledger's secret is stored.
            compute: makes the answer, of JSON types. If it raises, nothing is charged.
            release: bound on what the answer reveals; a stored answer is charged by its own.
            mechanism: as for `charge`.
            parameters: as for `charge`.

        Raises:
            BudgetExhausted: it does not fit; nothing was recorded, nor computed unless others spent the rest meanwhile.
            InputError: the answer is not JSON.
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
        """`answer` for several questions, all or none.

        `compute` gets positions of questions and returns their answers; `release` is one for each, or one for all.
        """
        name = principal_name(principal)
        batch = _Batch.of(name, questions, release, *records.mechanism_columns(mechanism, parameters), self.keyed)
        stored = batch.look_up(self._storage.read)
        if batch.is_free(stored):
            self._storage.sync()  # no answer may outlive its charge
            return batch.answers(stored)
        self._balances(self._storage.read, name).after_charging(batch.unpaid(stored))  # before anything is computed
        new = batch.compute_missing(compute, stored)
        with self._storage.transaction() as execute:
            return batch.charge_and_store(execute, self._locked_balances(execute, name), new)

    def keyed(self, digest: bytes) -> bytes:
        """HMAC-SHA256 of a digest under this ledger's secret, 32 bytes; a pickled ledger does not contain it."""
        if self._secret is None:
            _, self._secret = identity_of(self._storage.read)
        return keyed_digest(self._secret, digest)

    @property
    def adjacency(self) -> str:
        """Adjacency of all releases."""
        return self._settings.adjacency or "substitute"

    @property
    def identity(self) -> str:
        """Random name of the database, the same for all who open it."""
        return str(self._storage.ledger)

    def grant(self, principal: str | None, epsilon: float, delta: float | None = None, note: str = "") -> Account:
        """Replace the budget of a principal, from now on and for every later period.

        It must not depend on the principal's answers.

        Args:
            principal: name; None for all together.
            epsilon: the new budget.
            delta: the same; None: unchanged.
            note: reason, for the record.

        Raises:
            ConfigurationError: a value out of range.
        """
        name, note = TOTAL if principal is None else principal_name(principal), records.text("note", note)
        epsilon = check_number("epsilon", epsilon, above=0)
        with self._storage.transaction() as execute:
            balances = self._locked_balances(execute, name)
            old = balances.total_budget if principal is None else balances.budget
            new = Budget(epsilon, old.delta if delta is None else check_number("delta", delta, minimum=0, below=1))
            execute(
                "INSERT INTO ledger_grants (principal, time, epsilon, delta, note) VALUES (?, ?, ?, ?, ?)",
                (name, balances.time, new.epsilon, new.delta, note),
            )
            balances.after_grant(new).save(execute)
        return self.total() if principal is None else self.account(principal)

    def close(self) -> None:
        """Close the connection; the next use opens another."""
        self._storage.close()

    def _balances(self, execute: Execute, principal: str) -> Balances:
        return Balances.open(execute, self._settings, principal, self._storage.now())

    def _locked_balances(self, execute: Execute, principal: str) -> Balances:
        now = self._storage.lock(execute)  # before accounts are read, because another process may just open one
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
        self._clear_caches()

    def __repr__(self) -> str:
        budget = self._settings.principal_budget
        return f"Ledger({self._storage.name!r}, epsilon={budget.epsilon:g}, delta={budget.delta:g})"


@dataclass(frozen=True)
class _StoredAnswer:
    text: str  # JSON
    release: Release
    paid: int | None  # number of this principal's charge


@dataclass(frozen=True)
class _Batch:
    """Questions of one principal, which are all answered or none."""

    principal: str
    questions: tuple[str, ...]  # keyed digests; one may occur several times
    entries: Mapping[str, Entry]  # question -> what a new answer costs, in the order of the questions

    @classmethod
    def of(
        cls,
        principal: str,
        questions: Sequence[str | bytes],
        release: Release | Sequence[Release],
        mechanism: str,
        parameters: str,
        keyed: Callable[[bytes], bytes],
    ) -> _Batch:
        if isinstance(questions, str | bytes):
            raise ConfigurationTypeError("questions: expected a sequence of questions; for one question use `answer`")
        digests = tuple(keyed(_question_digest(question).encode()).hex() for question in questions)
        each = (
            tuple(map(as_release, release)) if isinstance(release, Sequence) else (as_release(release),) * len(digests)
        )
        if len(each) != len(digests):
            expected = f"expected one, or one for each of {len(digests)} questions"
            raise ConfigurationError(f"release: {expected}, got {len(each)}")
        entries: dict[str, Entry] = {}
        for digest, one in zip(digests, each, strict=True):
            entries.setdefault(digest, Entry(one, mechanism, parameters, digest))
        return cls(principal, digests, entries)

    def look_up(self, execute: Execute) -> dict[str, _StoredAnswer]:
        query = (
            "SELECT a.question, a.value, a.release, c.id FROM ledger_answers a LEFT JOIN ledger_charges c"
            " ON c.question = a.question AND c.principal = ? WHERE a.question IN"
        )
        rows = rows_of(execute, query, (self.principal,), self.entries)
        return {q: _StoredAnswer(text, from_json(release), number) for q, text, release, number in rows}

    def is_free(self, stored: Mapping[str, _StoredAnswer]) -> bool:
        """Whether this principal has already paid for every answer."""
        return all(q in stored and stored[q].paid is not None for q in self.entries)

    def unpaid(self, stored: Mapping[str, _StoredAnswer], new: Mapping[str, str] | None = None) -> list[Entry]:
        """What must be charged, in the order of the questions; `new` are computed answers as JSON."""
        entries = []
        for q, entry in self.entries.items():
            if (answer := stored.get(q)) is None:
                entries.append(replace(entry, digest=sha256((new or {}).get(q, ""))))
            elif answer.paid is None:
                entries.append(replace(entry, release=answer.release, digest=sha256(answer.text), repeated=True))
        return entries

    def compute_missing(
        self, compute: Callable[[list[int]], Sequence[Any]], stored: Mapping[str, _StoredAnswer]
    ) -> dict[str, str]:
        """Question -> its new answer as JSON."""
        first = {q: i for i, q in reversed(list(enumerate(self.questions))) if q not in stored}
        positions = sorted(first.values())
        if not positions:
            return {}
        given = compute(positions)
        values = list(given) if isinstance(given, Iterable) else []
        if len(values) != len(positions):
            raise InputError(f"compute: expected {len(positions)} answers, got {given!r:.80}; nothing was charged")
        try:
            texts = [json.dumps(v, allow_nan=False) for v in values]
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(
                f"compute: expected answers of JSON types, without NaN or infinity ({error}); use .tolist() on arrays;"
                " nothing was charged"
            ) from None
        return {self.questions[i]: text for i, text in zip(positions, texts, strict=True)}

    def charge_and_store(self, execute: Execute, balances: Balances, new: Mapping[str, str]) -> tuple[Answer, ...]:
        """Charge and store the answers that nobody stored meanwhile."""
        stored = self.look_up(execute)
        entries = self.unpaid(stored, new)
        charges = balances.after_charging(entries).record(execute, entries) if entries else []
        for entry in entries:
            if entry.question is not None and not entry.repeated:
                execute(
                    "INSERT INTO ledger_answers VALUES (?, ?, ?)",
                    (entry.question, new[entry.question], to_json(entry.release)),
                )
        return self.answers(stored, new, charges)

    def answers(
        self, stored: Mapping[str, _StoredAnswer], new: Mapping[str, str] | None = None, charges: Sequence[Charge] = ()
    ) -> tuple[Answer, ...]:
        """Answers in order; a charge belongs to the first occurrence of its question."""
        texts = {**(new or {}), **{q: answer.text for q, answer in stored.items()}}
        charged = {c.question: c for c in charges}
        paid = {q: answer.paid for q, answer in stored.items() if answer.paid is not None}
        paid |= {q: charge.id for q, charge in charged.items() if q is not None}
        return tuple(Answer(json.loads(texts[q]), charged.pop(q, None), paid[q]) for q in self.questions)


def _question_digest(question: str | bytes) -> str:
    """SHA-256 of a question; equal text and bytes are different questions."""
    if isinstance(question, str):
        return sha256(b"text:" + question.encode("utf-8", "surrogatepass"))
    if isinstance(question, bytes | bytearray | memoryview):
        return sha256(b"bytes:" + bytes(question))
    raise ConfigurationTypeError(f"question: expected text or bytes, got {type(question).__name__}")
