"""Whether the sums of a ledger are those of its records, and every charged question has its answer."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace

from safexplain.errors import LedgerError
from safexplain.ledger.accounts import ACCOUNT_COLUMNS, NOTHING, TOTAL, Standing
from safexplain.ledger.composition import Composition
from safexplain.ledger.releases import from_json
from safexplain.ledger.storage.schema import Execute

PAGE = 10_000


def verify(execute: Execute) -> int:
    """Replay every charge; how many there are.

    Args:
        execute: runs a statement, in a transaction that holds the ledger.

    Raises:
        LedgerError: something does not match; the message names the first few.
    """
    rows = execute(f"SELECT {ACCOUNT_COLUMNS} FROM ledger_accounts ORDER BY principal", ())
    stored = {row[0]: Standing.of(row) for row in rows}
    tallies, count, wrong = _tally(execute, stored)
    for name, standing in stored.items():
        if tallies[name].replayed() != standing.sums:
            wrong.append(f"the sums of {repr(name) if name else 'the total'} are not those of its charges")
    wrong += _unmatched(execute)
    if wrong:
        shown = "; ".join(wrong[:5])
        raise LedgerError(f"the ledger is damaged: {shown}. Restore it from a backup, and look who can write it")
    return count


def _tally(execute: Execute, stored: dict[str, Standing]) -> tuple[dict[str, _Tally], int, list[str]]:
    """How often each release was charged to each account in its period, the number of charges, and strays."""
    tallies = {name: _Tally(standing.sums) for name, standing in stored.items()}
    strays: dict[str, None] = {}
    count = last = 0
    query = "SELECT id, principal, period, release, repeated FROM ledger_charges WHERE id > ? ORDER BY id LIMIT ?"
    while page := execute(query, (last, PAGE)):
        count, last = count + len(page), page[-1][0]
        for _, principal, period, release, repeated in page:
            if principal not in stored:
                strays[principal] = None
            elif stored[principal].period == period:
                tallies[principal].count(release)
            if not repeated:
                tallies[TOTAL].count(release)
    return tallies, count, [f"{name!r} has charges but no account" for name in strays]


class _Tally:
    """Counts of the releases of an account, before and after its change of rule; the sums tell where that was."""

    def __init__(self, sums: Composition) -> None:
        self.sums = sums
        self.before: Counter[str] = Counter()
        self.after: Counter[str] = Counter()
        self.epsilon = self.delta = 0

    def count(self, text: str) -> None:
        if self.sums.rule == "basic" or (self.epsilon, self.delta) == (
            self.sums.prefix_epsilon,
            self.sums.prefix_delta,
        ):
            self.after[text] += 1
            return
        self.before[text] += 1
        one = NOTHING.add_under_rule(from_json(text))
        self.epsilon, self.delta = self.epsilon + one.epsilon, self.delta + one.delta

    def replayed(self) -> Composition:
        """The sums that the counted releases make under the rule of the account."""
        found = replace(
            NOTHING, rule=self.sums.rule, order=self.sums.order, prefix_epsilon=self.epsilon,
            prefix_delta=self.delta, charges=self.before.total(),
        )  # fmt: skip
        for text, times in self.after.items():
            found = found.add_under_rule(from_json(text), times)
        return found


def _unmatched(execute: Execute) -> list[str]:
    """Charges without their answer, answers without a charge, answers that were altered."""
    orphans = execute(
        "SELECT question FROM ledger_answers WHERE question NOT IN"
        " (SELECT question FROM ledger_charges WHERE question IS NOT NULL) LIMIT 5",
        (),
    )
    wrong, last = [f"the answer to {question[:12]}... was charged to nobody" for (question,) in orphans], 0
    query = (
        "SELECT c.id, c.digest, a.value FROM ledger_charges c LEFT JOIN ledger_answers a ON a.question = c.question"
        " WHERE c.question IS NOT NULL AND c.id > ? ORDER BY c.id LIMIT ?"
    )
    while page := execute(query, (last, PAGE)):
        last = page[-1][0]
        for number, digest, value in page:
            if value is None or hashlib.sha256(value.encode()).hexdigest() != digest:
                wrong.append(f"the answer of charge {number} is {'missing' if value is None else 'altered'}")
    return wrong
