"""Which ledger it is: a random name in the database, so that another one in its place is not taken for it."""

from __future__ import annotations

import secrets

from safexplain.errors import LedgerError
from safexplain.ledger.storage.schema import Execute

_QUERY = "SELECT id FROM ledger_identity"


def name_ledger(execute: Execute) -> None:
    """Give a ledger without a name one."""
    if not execute(_QUERY, ()):
        execute("INSERT INTO ledger_identity VALUES (?)", (secrets.token_hex(16),))


def identity_of(execute: Execute) -> str:
    """The name of a ledger.

    Raises:
        LedgerError: it has none.
    """
    rows = execute(_QUERY, ())
    if len(rows) != 1:
        raise LedgerError("the ledger is damaged: it has no identity; restore it from a backup")
    return str(rows[0][0])


def check_identity(execute: Execute, wanted: str, name: str) -> None:
    """Raise LedgerError where another ledger stands in the place of the one that was opened.

    Args:
        execute: runs a statement.
        wanted: name of the one that was opened.
        name: of the place, for the message.
    """
    if execute("SELECT 1 FROM ledger_identity WHERE id = ?", (wanted,)):
        return
    raise LedgerError(
        f"ledger {name} is another one than was opened first: it was replaced. Put the first one back, or start again"
    )
