"""The contract that every hardened explainer keeps, to be run on your own: `check_explainer`.

`case` makes the explainer and asks it and the native one; the clauses look at the numbers (`values`, `noises`), at what
leaves beside them (`leaks`, with the `markers` that are planted and found), and at what stays behind and other threads
(`states`); `check` is the table of all clauses and reports. Needs no test framework: a broken clause raises an
AssertionError that says what was expected and what came.
"""

from safexplain.testing.check import check_explainer
from safexplain.testing.markers import find_markers, planted

__all__ = ["check_explainer", "find_markers", "planted"]
