"""What suites that audit many releases write of each, and how it is printed: the cells of their tables."""

from __future__ import annotations

from typing import Any

from safexplain.verdict.result import AuditResult

HARDENINGS = ("native", "ranks with noise")
FPRS = (0.001, 0.01, 0.05)


def written(result: AuditResult) -> dict[str, Any]:
    """Figures of every attack, the verdict and the controls, as plain JSON."""
    judged = {a.code for a in result.judged}
    attacks = []
    for a in result.attacks:
        plain = a.shown()
        rates = [r for r in plain["tpr"] if r["fpr"] in FPRS]
        attacks.append({
            **{k: plain[k] for k in ("attack", "signal", "role", "auc", "auc_low", "auc_high")},
            "tpr": [{k: r[k] for k in ("fpr", "realised_fpr", "tpr", "low", "high")} for r in rates],
            "judged": a.code in judged,
            "bounds": list(result.bounds(a)),
        })  # fmt: skip
    return {
        "members": result.members,
        "non_members": result.non_members,
        "references": result.references,
        "verdict": result.verdict,
        "sentence": result.sentence,
        "controls": [c.to_dict() for c in result.controls],
        "attacks": attacks,
    }


def found_by(cell: dict[str, Any], name: str) -> dict[str, Any] | None:
    """The attack "NAME on SIGNAL" of a cell; None when it was not run."""
    return next((a for a in cell["attacks"] if f"{a['attack']} on {a['signal']}" == name), None)


def auc(attack: dict[str, Any] | None) -> str:
    """AUC with its interval."""
    return "not run" if attack is None else f"{attack['auc']:.3f} [{attack['auc_low']:.3f}, {attack['auc_high']:.3f}]"


def rates(attack: dict[str, Any]) -> list[str]:
    """TPR at each of `FPRS`, with its interval."""
    return [f"{r['tpr']:.1%} [{r['low']:.1%}, {r['high']:.1%}]" for r in attack["tpr"]]


def failed(control: dict[str, Any]) -> bool | None:
    """Whether a control found what must not be there; None: it could not be run. Older results call it "fired"."""
    found: bool | None = control["failed"] if "failed" in control else control["fired"]
    return found
