"""Questions that are counted rather than weighed: how many distinct ones a principal asked in a period.

A question is a digest, and its number says the how manieth of its principal it is, over all time and without a gap.
What was asked before a period began is then the number of the last question before it, so that counting reads one row
of an index however many there are, and a principal's account says how many must be there.

A question may be another look at something that an earlier question was about. Who asks brings a sketch of each
question, which is kept, and says which earlier one each belongs to (`Looks`); this module counts the looks and leaves
to others what is alike. All of it happens inside the transaction that records the questions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from safexplain._validate import check_whole
from safexplain.errors import BudgetExhausted, ConfigurationError, ConfigurationTypeError, InputError
from safexplain.ledger.accounts import Balances
from safexplain.ledger.records import PERIODS, begins, renews
from safexplain.ledger.storage.schema import CHUNK, Execute, paged, rows_of

LONGEST = 64
"""Bytes of a digest, at most."""


@dataclass(frozen=True)
class Most:
    """A limit: so many in each period.

    Args:
        number: how many.
        period: "lifetime", "day", "week" or "month".

    Raises:
        ConfigurationError: a number below 1, or another period.
    """

    number: int
    period: str

    def __post_init__(self) -> None:
        check_whole("most", self.number, 1)
        if self.period not in PERIODS:
            raise ConfigurationError(f"period: expected one of {', '.join(PERIODS)}, got {self.period!r}")


@dataclass(frozen=True)
class Seen:
    """A question that was asked.

    Args:
        number: of the question, 1 for the first of its principal.
        first: number of the question that it is another look at; its own where it is the first.
        sketch: what it is compared by.
    """

    number: int
    first: int
    sketch: bytes


Place = Callable[[Sequence[int], int, Sequence[Seen]], Sequence[int]]
"""place(positions, number, later) -> for the new questions at these positions of what is asked, numbered from `number`
on, the number of the first question each is a look at, or its own; `later` are those asked after `Looks.after`."""


@dataclass(frozen=True)
class Looks:
    """Which questions are alike, and how many looks at one thing there may be, the first question included.

    Args:
        space: what sketches can be compared: only questions of the same space are.
        sketches: of each digest.
        after: number of the last question that `place` knows.
        place: see `Place`. It runs inside the transaction: it must be quick and not use the ledger.
        most: all of these hold.
    """

    space: str
    sketches: Sequence[bytes]
    after: int
    place: Place
    most: tuple[Most, ...]


def check_digests(digests: Sequence[bytes]) -> list[bytes]:
    """As a list.

    Raises:
        ConfigurationTypeError: not a sequence of bytes.
        InputError: empty, or longer than any digest.
    """
    if isinstance(digests, bytes | bytearray | memoryview | str) or not isinstance(digests, Iterable):
        raise ConfigurationTypeError(f"digests: expected a sequence of bytes, got {type(digests).__name__}")
    found = list(digests)
    for digest in found:
        if not isinstance(digest, bytes):
            raise ConfigurationTypeError(f"digests: expected bytes, got {type(digest).__name__}")
        if not 0 < len(digest) <= LONGEST:
            raise InputError(f"digests: expected 1 to {LONGEST} bytes each, got {len(digest)}; hash what is longer")
    return found


def known(execute: Execute, principal: str, digests: Sequence[bytes]) -> dict[bytes, int]:
    """Digest -> number, of those that the principal asked before."""
    query = "SELECT digest, number FROM ledger_questions WHERE principal = ? AND digest IN"
    return {bytes(digest): number for digest, number in rows_of(execute, query, (principal,), digests)}


def seen(execute: Execute, principal: str, space: str, after: int) -> list[Seen]:
    """Questions of a space, after a number, in their order."""
    query = (
        "SELECT number, first, sketch FROM ledger_questions WHERE principal = ? AND space = ? AND number > ?"
        " ORDER BY number LIMIT ?"
    )
    rows = paged(execute, query, (principal, space), after)
    return [Seen(number, first, bytes(sketch)) for number, first, sketch in rows]


def count(execute: Execute, balances: Balances, period: str) -> int:
    """Questions of the principal in the period that it is now."""
    begun = begins(period, balances.time)
    if not begun:
        return balances.mine.questions
    rows = execute(
        "SELECT number FROM ledger_questions WHERE principal = ? AND time < ? ORDER BY time DESC, number DESC LIMIT 1",
        (balances.mine.principal, begun),
    )
    return balances.mine.questions - (int(rows[0][0]) if rows else 0)


def counts(execute: Execute, since: int) -> dict[str, int]:
    """Principal -> questions from this time on."""
    sql = "SELECT principal, COUNT(*) FROM ledger_questions WHERE time >= ? GROUP BY principal"
    return {principal: int(number) for principal, number in execute(sql, (since,))}


def ask(
    execute: Execute, balances: Balances, digests: Sequence[bytes], most: Sequence[Most], looks: Looks | None
) -> int:
    """Inside a transaction that holds the accounts: number and record the questions that are new; how many these are.

    Args:
        execute: runs SQL.
        balances: of the principal.
        digests: of the questions, keyed.
        most: limits on new questions, all of which hold.
        looks: which questions are alike; None: none.

    Raises:
        BudgetExhausted: the new ones do not all fit. Of several limits, the one that renews last is told.
    """
    who, before = balances.mine.principal, balances.mine.questions
    old = known(execute, who, digests)
    positions = {digest: i for i, digest in reversed(list(enumerate(digests))) if digest not in old}
    new = sorted(positions.values())
    if not new:
        return 0
    refusals = [_refusal(balances, limit, len(new), count(execute, balances, limit.period)) for limit in most]
    numbers = range(before + 1, before + 1 + len(new))
    first: Sequence[int] = numbers
    if looks is not None:
        first = looks.place(new, before + 1, seen(execute, who, looks.space, looks.after))
        for limit in looks.most:
            for number, times in Counter(first).items():
                looked = _looked(execute, who, number, begins(limit.period, balances.time)) if number <= before else 0
                refusals.append(
                    _refusal(balances, limit, times, looked, " too close to earlier ones", " about one map")
                )
    if told := [refusal for refusal in refusals if refusal is not None]:
        raise max(told, key=lambda r: r.renews or datetime.max.replace(tzinfo=UTC))
    rows = [
        (who, n, digests[i], balances.time, f, looks and looks.space, looks and looks.sketches[i])
        for n, f, i in zip(numbers, first, new, strict=True)
    ]
    for start in range(0, len(rows), CHUNK):
        part = rows[start : start + CHUNK]
        execute(
            "INSERT INTO ledger_questions (principal, number, digest, time, first, space, sketch) VALUES "
            + ", ".join(["(?, ?, ?, ?, ?, ?, ?)"] * len(part)),
            [value for row in part for value in row],
        )
    balances.asked(len(new)).save(execute)
    return len(new)


def _looked(execute: Execute, principal: str, first: int, since: int) -> int:
    """How many looks at what a question was the first about there were from a time on."""
    sql = "SELECT COUNT(*) FROM ledger_questions WHERE principal = ? AND first = ? AND time >= ?"
    return int(execute(sql, (principal, first, since))[0][0])


def _refusal(
    balances: Balances, limit: Most, new: int, asked: int, which: str = "", about: str = ""
) -> BudgetExhausted | None:
    """Of so many new questions where so many were asked; None: they fit."""
    if asked + new <= limit.number:
        return None
    renewal, who = renews(limit.period, balances.time), balances.mine.principal
    period = "over all time" if limit.period == "lifetime" else f"a {limit.period}"
    when = f"; the count renews at {renewal:%Y-%m-%d %H:%M} UTC" if renewal else "; the count never renews"
    return BudgetExhausted(
        f"principal {who!r}: {new} new question{'s' if new > 1 else ''}{which} would exceed {limit.number}"
        f" {period}{about}, {asked} being asked; none was counted{when}",
        principal=who, requested=new, spent=asked, budget=limit.number, renews=renewal,
    )  # fmt: skip


def wrong_questions(execute: Execute, stored: dict[str, int]) -> list[str]:
    """What does not match between the questions and what the accounts (principal -> number, "" for all) say of them."""
    sql = (
        "SELECT principal, COUNT(*), MIN(number), MAX(number), SUM(CASE WHEN first < 1 OR first > number THEN 1 ELSE 0"
        " END) FROM ledger_questions GROUP BY principal"
    )
    found, wrong = dict[str, int](), list[str]()
    for principal, total, least, most, stray in execute(sql, ()):
        found[principal] = int(total)
        if (least, most) != (1, total) or stray:
            wrong.append(f"the questions of {principal!r} are not numbered without a gap")
    for name, number in stored.items():
        there = sum(found.values()) if name == "" else found.get(name, 0)
        if there != number:
            whose = repr(name) if name else "all together"
            wrong.append(f"{whose} asked {number} questions by the account, {there} by the records")
    return wrong + [f"{name!r} has questions but no account" for name in found if name not in stored]
