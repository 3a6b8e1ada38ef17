"""Exact recourse for tree ensembles of scikit-learn, XGBoost and LightGBM.

`tree` writes every split as one comparison of float64 numbers, whatever the library rounds to; `scikit`, `boosters`
read fitted models; `forest` is the sum of trees with the decision of the library's own `predict`; `cells` cuts columns
at the splits, `search` finds a good answer quickly, and `program` proves the best by a mixed-integer program.
"""
