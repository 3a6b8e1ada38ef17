"""Questions that are answered once: what is stored, what must be made, what is charged to whom."""

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
from safexplain.ledger.storage.schema import Execute, rows_of


@dataclass(frozen=True)
class Stored:
    """An answer that exists, as JSON; `paid` is the number of this principal's charge, None where there is none yet."""

    text: str
    release: Release
    paid: int | None


@dataclass(frozen=True)
class Batch:
    """Questions of one principal, all to be answered or none.

    Args:
        principal: who asks.
        questions: their keyed digests; one may be asked several times.
        wanted: of each, in the order in which they are asked first, what is charged where no answer to it exists.
    """

    principal: str
    questions: tuple[str, ...]
    wanted: Mapping[str, Entry]

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
        """Check and digest what was asked; `keyed` is that of the ledger.

        Raises:
            ConfigurationError: not one release, nor as many as questions.
        """
        if isinstance(questions, str | bytes):
            raise ConfigurationTypeError("questions: expected a sequence of them; for one there is `answer`")
        digests = tuple(keyed(question_digest(question).encode()).hex() for question in questions)
        each = (
            tuple(map(as_release, release)) if isinstance(release, Sequence) else (as_release(release),) * len(digests)
        )
        if len(each) != len(digests):
            raise ConfigurationError(
                f"release: expected one, or {len(digests)} as there are questions, got {len(each)}"
            )
        wanted: dict[str, Entry] = {}
        for digest, one in zip(digests, each, strict=True):
            wanted.setdefault(digest, Entry(one, mechanism, parameters, digest))
        return cls(principal, digests, wanted)

    def look_up(self, execute: Execute) -> dict[str, Stored]:
        """Which of them are answered already."""
        query = (
            "SELECT a.question, a.value, a.release, c.id FROM ledger_answers a LEFT JOIN ledger_charges c"
            " ON c.question = a.question AND c.principal = ? WHERE a.question IN"
        )
        rows = rows_of(execute, query, (self.principal,), self.wanted)
        return {q: Stored(text, from_json(release), number) for q, text, release, number in rows}

    def is_free(self, found: Mapping[str, Stored]) -> bool:
        """Whether this principal has been given every answer before."""
        return all(q in found and found[q].paid is not None for q in self.wanted)

    def entries(self, found: Mapping[str, Stored], made: Mapping[str, str] | None = None) -> list[Entry]:
        """What is to be charged, in the order of the questions; `made` are new answers as JSON, None before."""
        entries = []
        for q, entry in self.wanted.items():
            if (stored := found.get(q)) is None:
                entries.append(replace(entry, digest=sha256((made or {}).get(q, ""))))
            elif stored.paid is None:
                entries.append(replace(entry, release=stored.release, digest=sha256(stored.text), repeated=True))
        return entries

    def made(self, compute: Callable[[list[int]], Sequence[Any]], found: Mapping[str, Stored]) -> dict[str, str]:
        """Answers that do not exist yet, as JSON.

        Raises:
            InputError: they are not JSON, or not as many as asked for.
        """
        first = {q: i for i, q in reversed(list(enumerate(self.questions))) if q not in found}
        positions = sorted(first.values())
        if not positions:
            return {}
        given = compute(positions)
        if not isinstance(given, Iterable):
            raise InputError(f"compute: expected {len(positions)} answers, got {given!r}; nothing was charged")
        values = list(given)
        if len(values) != len(positions):
            raise InputError(f"compute gave {len(values)} answers to {len(positions)} questions; nothing was charged")
        try:
            texts = [json.dumps(v, allow_nan=False) for v in values]
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(
                f"an answer must be of JSON types, without NaN or infinity ({error}); use .tolist() on arrays. Nothing"
                " was charged"
            ) from None
        return {self.questions[i]: text for i, text in zip(positions, texts, strict=True)}

    def settle(self, execute: Execute, balances: Balances, made: Mapping[str, str]) -> tuple[Answer, ...]:
        """Inside a transaction that holds the accounts: charge and store what nobody stored meanwhile."""
        found = self.look_up(execute)
        entries = self.entries(found, made)
        charges = balances.charged(entries).record(execute, entries) if entries else []
        for entry in entries:
            if entry.question is not None and not entry.repeated:
                execute(
                    "INSERT INTO ledger_answers VALUES (?, ?, ?)",
                    (entry.question, made[entry.question], to_json(entry.release)),
                )
        return self.answers(found, made, charges)

    def answers(
        self, found: Mapping[str, Stored], made: Mapping[str, str] | None = None, charges: Sequence[Charge] = ()
    ) -> tuple[Answer, ...]:
        """In the order of the questions; a charge stands where its question is asked first."""
        texts = {**(made or {}), **{q: stored.text for q, stored in found.items()}}
        charged = {c.question: c for c in charges}
        paid = {q: stored.paid for q, stored in found.items() if stored.paid is not None}
        paid |= {q: charge.id for q, charge in charged.items() if q is not None}
        return tuple(Answer(json.loads(texts[q]), charged.pop(q, None), paid[q]) for q in self.questions)


def question_digest(question: str | bytes) -> str:
    """SHA-256 of a question; text and bytes of the same spelling are different questions."""
    if isinstance(question, str):
        return sha256(b"text:" + question.encode("utf-8", "surrogatepass"))
    if isinstance(question, bytes | bytearray | memoryview):
        return sha256(b"bytes:" + bytes(question))
    raise ConfigurationTypeError(f"question: expected text or bytes, got {type(question).__name__}")
