"""The red team's attacks on safexplain itself: on its verdicts, on patience, on keyed noise and on files.

`suite` makes each attack again and writes what it gains now beside what it gained in version 0.1; `page.md` is the
page.
"""
