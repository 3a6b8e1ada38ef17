"""A ledger of answers: what each principal received, and how much of its privacy budget is spent.

With noise that leaves an explanation legible, the formal loss of one answer often exceeds any budget; an audit measures
the protection that remains.
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
