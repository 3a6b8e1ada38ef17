"""The contract that every hardened explainer keeps, to be run on your own: `check_explainer`.

`case` makes the explainer and asks it and the native one; `clauses` looks at what comes, at what leaves beside it (the
`markers` that are planted and found) and at what stays behind (a `snapshot`); `check` runs all clauses and reports.
Needs no test framework: a broken clause raises an AssertionError that says what was expected and what came.
"""

from safexplain.testing.check import check_explainer
from safexplain.testing.markers import find_markers, planted

__all__ = ["check_explainer", "find_markers", "planted"]
