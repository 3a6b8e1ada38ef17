"""The contract that every hardened explainer keeps, to be run on your own: `check_explainer`.

Needs no test framework: a broken clause raises an AssertionError that says what was expected and what came.
"""

from safexplain.testing.compare import same
from safexplain.testing.contract import CLAUSES, Clause, check_explainer
from safexplain.testing.markers import MARKER_NUMBER, MARKER_TEXT, find_markers
from safexplain.testing.plants import planted
from safexplain.testing.report import ContractError, ContractReport, Outcome

__all__ = [
    "CLAUSES",
    "MARKER_NUMBER",
    "MARKER_TEXT",
    "Clause",
    "ContractError",
    "ContractReport",
    "Outcome",
    "check_explainer",
    "find_markers",
    "planted",
    "same",
]
