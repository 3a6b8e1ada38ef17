"""Who may still ask: a ledger of what was released to whom, and of the privacy budget that it used.

A release (`releases`) is charged to an account (`accounts`) if what it adds up to with the earlier ones (`composition`)
is within the budget; charge and answer (`answers`) are recorded (`records`) in one transaction of a database
(`storage`), which `opening` makes or reads. `ledger` is the class that does it, `inspection` writes the records to
files and verifies the sums. A service counts questions in the same database (`safexplain.serve.questions`).

The ledger counts formal privacy loss. At noise that leaves an explanation legible the loss of one answer is often so
large that no budget holds it; what is then protected is protected empirically, which the audit measures, not by the
ledger.
"""

from safexplain.errors import BudgetExhausted
from safexplain.errors import LedgerError as LedgerError
from safexplain.ledger.curves import Concentrated, Renyi
from safexplain.ledger.ledger import Ledger
from safexplain.ledger.records import Account, Charge
from safexplain.ledger.records import Answer as Answer
from safexplain.ledger.releases import Approximate, Pure

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
