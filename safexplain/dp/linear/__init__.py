"""Logistic regression with differential privacy, for scikit-learn: `classifier.DPLogisticRegression`.

`inputs` checks the user's inputs and bounds each record. Weights are then released in one of three ways: by `noisy_gd`,
or by noise on the objective or on its minimiser (`mechanisms`, with the proofs and a certified solver).
"""
