"""Who may still ask: a ledger of what was released to whom, and of the privacy budget that it used.

The ledger counts formal privacy loss. At noise that leaves an explanation legible the loss of one answer is often so
large that no budget holds it; what is then protected is protected empirically, which the audit measures, not by the
ledger.
"""

from safexplain.errors import BudgetExhausted, LedgerError
from safexplain.ledger.composition import Budget
from safexplain.ledger.ledger import Ledger
from safexplain.ledger.records import Account, Answer, Charge, Grant
from safexplain.ledger.releases import Approximate, Gaussian, Laplace, Pure, Release

__all__ = [
    "Account",
    "Answer",
    "Approximate",
    "Budget",
    "BudgetExhausted",
    "Charge",
    "Gaussian",
    "Grant",
    "Laplace",
    "Ledger",
    "LedgerError",
    "Pure",
    "Release",
]
