"""Recourse on HELOC, Adult, German credit and COMPAS beside DiCE, Alibi, CARLA and an exact solver.

`tasks` prepares data, models and constraints and judges answers, `ours` and `theirs` answer (`in_carla` for Python
3.7), `suite` runs them, `tables` is what the page shows.
"""
