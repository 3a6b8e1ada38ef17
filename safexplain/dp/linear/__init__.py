"""Logistic regression with differential privacy, for scikit-learn: `classifier.DPLogisticRegression`.

`inputs` checks what the user gives and bounds each record. Then weights are released in one of three ways: by
`noisy_gd`, or by noise on the objective or on its minimiser (`mechanisms`, with the proofs; `one_vs_rest` for more than
two classes), which need the certified minimiser of `solver`.
"""
