"""Names of signals and attacks, as the files have them and as people read them."""

WHOLE_MAP = "attributions"
"""Name of the signal that is the whole attribution vector."""

ATTACK_NAMES = {
    "Threshold": "Threshold",
    "LikelihoodRatio": "Likelihood ratio",
    "LabelLikelihoodRatio": "Likelihood ratio",
    "JointLikelihoodRatio": "Joint likelihood ratio",
    "RMIA": "RMIA",
    "Learned": "Learned classifier",
    "LearnedElsewhere": "Classifier learned with non-members of another source",
    "CounterfactualDistance": "CFD",
    "CounterfactualLRT-global": "CFD-LRT",
    "CounterfactualLRT-local": "Local CFD-LRT",
    "DirectionAttack": "Direction attack",
    "DirectionLRT": "Direction likelihood ratio",
    "DirectionDensity": "Direction density ratio",
    "AveragingAttack": "Averaging attack",
}
SIGNAL_NAMES = {
    "l1": "L1 norm",
    "l2": "L2 norm",
    "variance": "variance",
    "mean": "signed mean",
    "positive": "share of positive entries",
    "support": "share of non-zero entries",
    "sparsity": "sparsity",
    "peak": "peak",
    WHOLE_MAP: "whole map",
    f"{WHOLE_MAP}:sign": "signs of the map",
    f"{WHOLE_MAP}:rank": "ranks of the map",
    "label": "predicted label",
    "loss": "loss",
    "margin": "margin",
    "class_l1": "L1 norms of several classes",
    "class_l2": "L2 norms of several classes",
    "class_mean": "signed means of several classes",
    "l1+mean+positive+sparsity+peak": "summary numbers of the map",
    "near_l1+near_mean+near_positive": "summary numbers (near-duplicates averaged)",
    "repeated_l1+repeated_mean+repeated_positive": "summary numbers (repeated queries averaged)",
    "near_map": "whole map, near-duplicates averaged",
    "distance": "recourse distance",
    "signed_distance": "recourse distance, signed by the true label",
    "score": "released score",
    "recovered_margin": "margin read from the answers",
    "regressed_margin": "margin regressed from the scores",
    "averaged_distance": "recourse distance of averaged answers",
}
"""Attacks and signals as people read them."""

AVERAGED = {"near_": "near-duplicates averaged", "repeated_": "repeated queries averaged"}
"""Prefix of signals computed from averages of several answers -> what was averaged."""


def signal_name(signal: str) -> str:
    """Readable name of a signal, or of several joined by +."""
    if signal in SIGNAL_NAMES:
        return SIGNAL_NAMES[signal]
    if "+" in signal:
        return " and ".join(signal_name(part) for part in signal.split("+"))
    for prefix, what in AVERAGED.items():
        if signal.startswith(prefix):
            return f"{signal_name(signal.removeprefix(prefix))} ({what})"
    return signal


def title(attack: str, signal: str) -> str:
    """Readable name of an attack on a signal."""
    name = ATTACK_NAMES.get(attack, attack)
    if name.isupper():
        return f"{name} on the {signal_name(signal)}"
    if attack in ATTACK_NAMES:
        name = name[:1].lower() + name[1:]
    return f"{name} of the {signal_name(signal)}"
