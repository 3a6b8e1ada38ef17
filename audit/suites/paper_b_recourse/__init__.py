""" "Accurate, Explainable, and Private Models": recourse of linear models (`evidence`) and of `networks`, attacked.

`tasks` prepares data, `conditions` releases answers, `cells` attacks them, `published` is what the paper reports.
"""
