"""audit/suites/attack_table: what chose a row does not confirm it."""

from audit.suites.attack_table import suite
from audit.suites.attack_table.tasks import DRAWS


def drawn(*gains, error=0.001):
    """Results of one row in one release at one level: TPR at 1 %, at 5 %, AUC in each draw."""
    each = [{"some, native": {"changes": {"with labels: with it": {"1": [*g, error, error, error]}}}} for g in gains]
    return dict(zip(DRAWS, each, strict=True))


def test_a_row_is_confirmed_by_the_second_draw_of_its_strongest_case_alone():
    rows = (
        ((0.04, 0.0, 0.0), (0.01, 0.0, 0.0), "TPR at 1 %", True),
        ((0.04, 0.0, 0.0), (0.0, 0.04, 0.04), "TPR at 1 %", False),  # another case is not the one that was chosen
        ((0.0, 0.0, 0.003), (0.0, 0.0, 0.003), "AUC", True),
        ((0.004, 0.0, 0.0), (0.04, 0.0, 0.0), None, False),  # too little to matter where it is looked for
    )
    for first, second, case, confirmed in rows:
        found = suite.conclude(drawn(first, second))["with labels: with it"]
        assert (found["confirmed"], found["case"]) == (confirmed, case and f"some, native, 1: {case}")
