""" "Beyond Membership": `figure2`, `figure3` and `scratch` (its Figure 4).

`tasks` trains and scores, `runs` bounds and judges, `tables` is what the pages show.
"""
