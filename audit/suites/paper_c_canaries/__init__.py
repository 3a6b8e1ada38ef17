""" "Beyond Membership": its `figure3`, and `scratch` (its Figure 4).

`tasks` trains and scores, `runs` bounds and judges.
"""
