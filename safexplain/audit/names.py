"""Names of signals and attacks, as the files have them and as people read them."""

WHOLE_MAP = "attributions"
"""Name of the signal that is the whole attribution vector."""

ATTACK_NAMES = {
    "Threshold": "Threshold",
    "LikelihoodRatio": "Likelihood ratio",
    "LabelLikelihoodRatio": "Likelihood ratio",
}
SIGNAL_NAMES = {
    "l1": "L1 norm",
    "l2": "L2 norm",
    "variance": "variance",
    WHOLE_MAP: "whole map",
    "label": "predicted label",
    "loss": "loss",
}
"""Attacks and signals as people read them."""
