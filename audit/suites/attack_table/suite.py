"""Which attacks earn a row in an audit's table.

Twelve releases of six tasks. Eight models are attacked, each with the same eight references in complementary pairs;
attackers ask once, and 32 times. Each kind of row is left out of the stack, and each candidate put in, on the same
targets. All is done twice, with other examples, coin flips and models: in the first draw each row's strongest case is
looked for (half a point at 1 % or 5 %, or .002 of AUC, and more than two standard errors over targets), and only that
case is read in the second, where it must gain more than two errors too.

    python -m audit.suites.attack_table [--data DIR] [--out FILE] [--quick]
"""

from __future__ import annotations

import warnings
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from safexplain.audit import Policy, Signals
from safexplain.audit.attacks import JointLikelihoodRatio, LikelihoodRatio, Threshold
from safexplain.audit.attacks.suite import Scorer, SuiteRow, fitting
from safexplain.verdict.judgement import at_level
from safexplain.verdict.stats import roc

from ...shared.run import Progress, Run, Unusable
from .tasks import DRAWS, LEVELS, QUICK, TASKS, Size, accuracy, collected, trained

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

FPRS = (0.01, 0.05)
MEASURES = ("TPR at 1 %", "TPR at 5 %", "AUC")
MATTERS = np.array([0.005, 0.005, 0.002])
"""Gains below these earn no row, however sure they are."""

OTHERS = ("variance", "l2", "support", "sparsity", "peak")
"""Signals that are no rows. The library reads those of them that a file has, as it reads any signal: a file of somebody
else's may leak there alone."""


def figures_of(scores: Array, member: Bools) -> list[float]:
    """TPR at 1 % and at 5 %, and AUC; the curve is interpolated, so that ties do not pass for a loss."""
    curve = roc(scores, member)
    return [*np.interp(FPRS, curve.fpr, curve.tpr), curve.auc]


def written(values: Array) -> list[float]:
    """Means over targets (the first axis), then their standard errors."""
    return [*values.mean(0).tolist(), *(values.std(0, ddof=1) / np.sqrt(len(values))).tolist()]


def candidates(signals: Signals, level: int) -> dict[str, SuiteRow]:
    """Attacks that are no rows of the library, by the names that the tables have."""
    summaries = ("l1", "mean", "positive", "sparsity", "peak")
    five = "+".join(at_level(s, level) for s in summaries if np.ptp(signals.values[at_level(s, level)]) > 0)
    listed: dict[str, tuple[Any, str]] = {
        f"LikelihoodRatio on {s}": (LikelihoodRatio(), at_level(s, level)) for s in ("variance", "sparsity", "peak")
    }
    listed["JointLikelihoodRatio on summaries"] = (JointLikelihoodRatio(), five)
    listed["JointLikelihoodRatio on loss"] = (JointLikelihoodRatio(), at_level("loss", level))
    if level == 1:
        listed |= {f"Threshold on {s}": (Threshold(), s) for s in ("l1", "loss")}
    return {
        name: SuiteRow(name, attack, signal, "loss" if name.endswith("loss") else "explanation", level)
        for name, (attack, signal) in listed.items()
        if signal and all(np.ptp(signals.values[part]) > 0 for part in signal.split("+"))
    }


def kind_of(row: SuiteRow) -> str:
    """What a row is called in the tables, at any level."""
    return row.name if row.name == "Boosted" else f"{row.name} on {row.signal.replace('@32', '')}"


def stacks(stack: SuiteRow, others: dict[str, SuiteRow]) -> dict[str, SuiteRow]:
    """The stack, without each kind of its rows, and with each candidate."""
    out = {"all": stack}
    for kind in dict.fromkeys(kind_of(c) for c in stack.columns[1:]):
        left = tuple(c for c in stack.columns if kind_of(c) != kind)
        out[f"without {kind}"] = replace(stack, name=f"without {kind}", columns=left)
    for name, row in others.items():
        if row.role == stack.columns[1].role and not isinstance(row.attack, Threshold):
            out[f"with {name}"] = replace(stack, name=f"with {name}", columns=(*stack.columns, row))
    return out


def rows_of(signals: Signals, level: int, predictions: bool) -> dict[str, dict[str, SuiteRow]]:
    """What is scored at a level: "alone", and the stacks "with labels" and (once a task) "predictions"."""
    by_labels, by_predictions = (
        [r for r in fitting(signals, Policy(patience=LEVELS, release=given)) if r.level == level and _is_row(r)]
        for given in ("explanation", "explanation+prediction")
    )
    others = candidates(signals, level)
    wide = next(r for r in by_labels if r.name == "Stacked")
    wide = replace(wide, columns=tuple(filter(_is_row, wide.columns)))
    known = next(r for r in by_predictions if r.name == "PredictionPatience")
    return {
        "alone": {kind_of(r): r for r in by_labels if not r.columns} | others,
        "with labels": {"labels": wide.columns[0], **stacks(wide, others)},
        "predictions": stacks(known, others) if predictions else {},
    }


def measure(size: Size, signals: Signals, seed: int, predictions: bool) -> dict[str, dict[str, dict[str, Array]]]:
    """Level -> "alone", "with labels", "predictions" -> attack or changed stack -> (targets, 3) of `MEASURES`.

    A fit scores several targets: but for the first they stand as null models, which are nobody's references. Errors
    over targets thus have the chance in them that each fit has.
    """
    found: dict[str, dict[str, dict[str, Array]]] = {}
    for level in LEVELS:
        names: list[tuple[str, str]] = []
        figures = []
        for fit, targets in enumerate(np.array_split(np.arange(size.targets), size.fits)):
            first, *also = targets.tolist()
            others = [t for t in range(size.targets) if t != first]
            member = signals.membership.copy()
            member[others] = False
            meta = {"targets": [first], "null": others, "shape": signals.meta["shape"]}
            one = Signals(member, signals.values, signals.attributions, meta)
            groups = rows_of(one, level, predictions)
            names = [(group, name) for group, rows in groups.items() for name in rows]
            every = [row for rows in groups.values() for row in rows.values()]
            nothing = np.zeros(len(one), dtype=bool)
            scorer = Scorer(one, every, target=first, training=nothing, seed=100 * seed + fit, also=also)
            for read in targets.tolist():
                figures.append([figures_of(scores, signals.membership[read]) for scores in scorer.scores(read)])
        of_level: dict[str, dict[str, Array]] = {"alone": {}, "with labels": {}, "predictions": {}}
        for (group, name), each in zip(names, np.array(figures).swapaxes(0, 1), strict=True):
            of_level[group][name] = each
        found[str(level)] = of_level
    return found


def changes_of(figures: dict[str, dict[str, dict[str, Array]]]) -> dict[str, dict[str, list[float]]]:
    """Row of a stack -> level -> what is gained by it: three means, three errors."""
    out: dict[str, dict[str, list[float]]] = {}
    for level, groups in figures.items():
        for group in ("with labels", "predictions"):
            for name, each in groups[group].items():
                if name not in ("all", "labels"):
                    sign = -1 if name.startswith("without") else 1
                    gain = sign * (each - groups[group]["all"])
                    out.setdefault(f"{group}: {name}", {})[level] = written(gain)
    return out


def conclude(results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Row -> its strongest case in the first draw, what that gains in the second, and the means over all cases."""
    gains: dict[str, dict[tuple[str, str], list[Array]]] = {}
    for draw in DRAWS:
        for cell, found in results[draw].items():
            for name, levels in found["changes"].items():
                for level, values in levels.items():
                    gains.setdefault(name, {}).setdefault((cell, level), []).append(np.array(values).reshape(2, 3))
    out = {}
    for name, cases in gains.items():
        kept = {case: np.stack(both) for case, both in cases.items() if len(both) == len(DRAWS)}
        places, values = list(kept), np.stack(list(kept.values()))  # (cases, draws, 2, 3)
        gain, error = values[:, :, 0], np.maximum(values[:, :, 1], 1e-9)
        sure, worse = gain > 2 * error, gain < -2 * error
        ratio = np.where(sure[:, 0] & (gain[:, 0] >= MATTERS), gain[:, 0] / error[:, 0], 0.0)
        at, of = np.unravel_index(int(ratio.argmax()), ratio.shape)
        chosen = ratio[at, of] > 0
        out[name] = {
            "mean": gain.mean(0).tolist(),
            "gains": sure.any(2).sum(0).tolist(),
            "loses": worse.any(2).sum(0).tolist(),
            "both": int((sure & (gain >= MATTERS)).all(1).any(1).sum()),
            "of": len(places),
            "case": f"{places[at][0]}, {places[at][1]}: {MEASURES[of]}" if chosen else None,
            "drawn": [[float(gain[at, d, of]), float(error[at, d, of])] for d in range(2)] if chosen else None,
            "confirmed": bool(chosen and sure[at, 1, of]),
        }
    return out


def main(argv: list[str] | None = None) -> int:
    """Run the suite; 0 when it is done."""
    run = Run("attack_table", __doc__, argv)
    warnings.filterwarnings("ignore", module="captum")
    torch.set_num_threads(1)
    size, progress = QUICK if run.quick else Size(), Progress()
    results: dict[str, dict[str, Any]] = {draw: {} for draw in DRAWS}
    left_out: list[str] = []
    for name, (make, releases) in list(TASKS.items())[: size.tasks]:
        for number, draw in enumerate(DRAWS):
            try:
                task = make(size, run.options.data, number)
            except Unusable as missing:
                print(f"{name} is left out: {missing}", flush=True)
                left_out.append(f"{name}, {draw}")
                continue
            models = trained(size, task, number)
            right = accuracy(models, task.pool)
            for kind in releases:
                signals = collected(size, task, models, kind, progress)
                figures = measure(size, signals, number, kind == "native")
                results[draw][f"{name}, {kind}"] = {
                    "examples": len(signals), "accuracy": right, "changes": changes_of(figures),
                    "figures": {level: {group: {row: written(each) for row, each in rows.items()}
                                        for group, rows in groups.items()} for level, groups in figures.items()},
                }  # fmt: skip
                print(f"{name}, {kind}, {draw}: done", flush=True)
    run.write(
        size=asdict(size), measures=list(MEASURES), left_out=left_out, summary=conclude(results), results=results,
        run=run.provenance(),
    )  # fmt: skip
    return run.end()


def _is_row(row: SuiteRow) -> bool:
    """Whether it reads none of `OTHERS`."""
    return row.signal.partition("@")[0] not in OTHERS
