"""The contract that every hardened explainer keeps, to run on your own: `check_explainer`.

No test framework is needed: a broken clause raises an AssertionError with what was expected and what came.
"""

from safexplain.testing.check import check_explainer
from safexplain.testing.markers import find_markers, planted

__all__ = ["check_explainer", "find_markers", "planted"]
