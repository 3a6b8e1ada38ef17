"""The red team's attacks on safexplain itself: on its verdicts, on patience, on keyed noise and on files."""
