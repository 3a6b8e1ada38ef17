"""A ledger of answers: what each principal received, and how much of its privacy budget is spent.

The ledger counts formal privacy loss. With noise that leaves an explanation legible, the loss of one answer often
exceeds any budget; the protection is then empirical, and the audit measures it, not the ledger.
"""

from safexplain.errors import BudgetExhausted
from safexplain.errors import LedgerError as LedgerError
from safexplain.ledger.ledger import Ledger
from safexplain.ledger.records import Account, Charge
from safexplain.ledger.records import Answer as Answer
from safexplain.ledger.releases import Approximate, Concentrated, Pure, Renyi

__all__ = [
    "Account",
    "Approximate",
    "BudgetExhausted",
    "Charge",
    "Concentrated",
    "Ledger",
    "Pure",
    "Renyi",
]
