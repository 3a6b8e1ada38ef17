"""The contract that every hardened explainer keeps, to run on your own: `check_explainer`.

`case` makes the explainer and queries it and the native one; `clauses` checks the answers, whatever leaves with them
(planted `markers`) and what stays behind; `check` runs all clauses and reports. No test framework is needed: a broken
clause raises an AssertionError with what was expected and what came.
"""

from safexplain.testing.check import check_explainer
from safexplain.testing.markers import find_markers, planted

__all__ = ["check_explainer", "find_markers", "planted"]
