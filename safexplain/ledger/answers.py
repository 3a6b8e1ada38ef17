"""Questions that are answered once: which answers are stored, which must be computed, and what each principal pays."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from safexplain._digest import sha256
from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError
from safexplain.ledger.accounts import Balances, Entry
from safexplain.ledger.records import Answer, Charge
from safexplain.ledger.releases import Release, as_release, from_json, to_json
from safexplain.ledger.storage import Execute, rows_of


@dataclass(frozen=True)
class StoredAnswer:
    """An answer as JSON; `paid` is the number of this principal's charge, or None if it has not paid yet."""

    text: str
    release: Release
    paid: int | None


@dataclass(frozen=True)
class Batch:
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
    ) -> Batch:
        """From checked and digested questions; `keyed` is the ledger's."""
        if isinstance(questions, str | bytes):
            raise ConfigurationTypeError("questions: expected a sequence of questions; for one question use `answer`")
        digests = tuple(keyed(question_digest(question).encode()).hex() for question in questions)
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

    def look_up(self, execute: Execute) -> dict[str, StoredAnswer]:
        """Question -> its stored answer, where there is one."""
        query = (
            "SELECT a.question, a.value, a.release, c.id FROM ledger_answers a LEFT JOIN ledger_charges c"
            " ON c.question = a.question AND c.principal = ? WHERE a.question IN"
        )
        rows = rows_of(execute, query, (self.principal,), self.entries)
        return {q: StoredAnswer(text, from_json(release), number) for q, text, release, number in rows}

    def is_free(self, stored: Mapping[str, StoredAnswer]) -> bool:
        """Whether this principal has already paid for every answer."""
        return all(q in stored and stored[q].paid is not None for q in self.entries)

    def unpaid(self, stored: Mapping[str, StoredAnswer], new: Mapping[str, str] | None = None) -> list[Entry]:
        """What must be charged, in the order of the questions; `new` are computed answers as JSON."""
        entries = []
        for q, entry in self.entries.items():
            if (answer := stored.get(q)) is None:
                entries.append(replace(entry, digest=sha256((new or {}).get(q, ""))))
            elif answer.paid is None:
                entries.append(replace(entry, release=answer.release, digest=sha256(answer.text), repeated=True))
        return entries

    def compute_missing(
        self, compute: Callable[[list[int]], Sequence[Any]], stored: Mapping[str, StoredAnswer]
    ) -> dict[str, str]:
        """Question -> its new answer as JSON, where none is stored; InputError for bad answers."""
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
        """In a transaction that holds the accounts: charge and store the answers that nobody stored meanwhile."""
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
        self, stored: Mapping[str, StoredAnswer], new: Mapping[str, str] | None = None, charges: Sequence[Charge] = ()
    ) -> tuple[Answer, ...]:
        """Answers in the order of the questions; a charge belongs to the first occurrence of its question."""
        texts = {**(new or {}), **{q: answer.text for q, answer in stored.items()}}
        charged = {c.question: c for c in charges}
        paid = {q: answer.paid for q, answer in stored.items() if answer.paid is not None}
        paid |= {q: charge.id for q, charge in charged.items() if q is not None}
        return tuple(Answer(json.loads(texts[q]), charged.pop(q, None), paid[q]) for q in self.questions)


def question_digest(question: str | bytes) -> str:
    """SHA-256 of a question; equal text and bytes are different questions."""
    if isinstance(question, str):
        return sha256(b"text:" + question.encode("utf-8", "surrogatepass"))
    if isinstance(question, bytes | bytearray | memoryview):
        return sha256(b"bytes:" + bytes(question))
    raise ConfigurationTypeError(f"question: expected text or bytes, got {type(question).__name__}")
