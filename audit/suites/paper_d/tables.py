"""The tables of the page, made from paper_d.json."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...shared.run import markdown

MOVED = {"members only": "members only (released code)", "neither": "neither", "both": "both"}
NETWORKS = {"same": "the same network", "another": "another"}

CLAIM = 0.465
"""The least reduction of a leak that the paper's abstract speaks of."""


def untrained(found: dict[str, Any]) -> str:
    """What the attack finds in networks that were never trained."""
    rows = []
    evaluation = found["results"]["evaluation"]
    for explainer, by_moved in evaluation["untrained_networks"]["mean_and_hull_of_intervals"].items():
        for moved, by_network in by_moved.items():
            for network, figures in by_network.items():
                value, low, high = figures["AUC"]
                rates = ([100 * v for v in figures[at]] for at in ("at 0.1%", "at 1.0%"))
                rows.append((
                    explainer, MOVED[moved], NETWORKS[network], f"{value:.4f} [{low:.4f}, {high:.4f}]",
                    *(f"{at:.2f} % [{least:.2f} %, {most:.2f} %]" for at, least, most in rates),
                ))  # fmt: skip
    header = ("explainer", "cropped and flipped", "evaluated on", "AUC", "TPR at .1 %", "TPR at 1 %")
    return markdown(header, rows, left=3)


def best_of_seeds(found: dict[str, Any]) -> str:
    """What the best of 20 seeds shows where nothing leaks."""
    rows = [
        (f"{int(side):,}", scores, *(f"{100 * figures[k]:.2f} %" for k in ("best", "best, 97.5 %", "fresh")))
        for side, kinds in found["results"]["evaluation"]["no_leak_tpr_at_0.1%"].items()
        for scores, figures in kinds.items()
    ]
    header = ("examples a side", "scores", "best seed, mean", "best seed, 97.5 %", "the chosen seed on fresh examples")
    return markdown(header, rows, left=2)


def searches(found: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Task and result of each search."""
    for name, result in found["results"].items():
        if name.startswith("search "):
            yield name.removeprefix("search "), result


def cells(found: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Task, explainer and what was found."""
    for task, result in searches(found):
        for name, cell in result["cells"].items():
            yield task, name, cell


def claimed(cell: dict[str, Any]) -> tuple[float | None, float]:
    """What the published protocol reports: share of the leak that is gone, and change of sensitivity_max."""
    trials = cell["published"]["trials"]
    default, best = trials[0], trials[cell["published"]["best"]]
    less = None if default["tpr"] == 0 else 1 - best["tpr"] / default["tpr"]
    return less, best["sensitivity"] / default["sensitivity"] - 1 if default["sensitivity"] else 0.0


def points(triple: list[float]) -> str:
    """In points, with the interval."""
    value, low, high = (100 * v for v in triple)
    return f"{value:+.1f} [{low:+.1f}, {high:+.1f}]"


def leaks(cell: dict[str, Any]) -> bool:
    """Whether the default's leak beyond the label is above 0 within its interval."""
    return bool(cell["honest"]["default"]["leak"][1] > 0)


def left_of_the_claim(found: dict[str, Any]) -> str:
    """Both protocols, a row for each task and explainer."""
    rows = []
    for task, name, cell in cells(found):
        trials, honest = cell["published"]["trials"], cell["honest"]
        less, sensitivity = claimed(cell)
        best, theirs = honest["best"], honest["published best"]
        share = "" if not leaks(cell) else f"; {best['share'][0]:.0%} [{best['share'][1]:.0%}, {best['share'][2]:.0%}]"
        rows.append((
            task,
            name,
            f"{trials[0]['tpr']:.2%} ({max(trials[0]['tpr without crops']):.2%})",
            f"{trials[cell['published']['best']]['tpr']:.2%}",
            "none to reduce" if less is None else f"{less:.0%}, {sensitivity:+.0%}",
            points(honest["default"]["leak"]),
            points(best["leak"]),
            "the default" if honest["which"]["best"] == 0 else points(best["reduction"]) + share,
            f"{best['faithfulness lost'][0]:.1%}",
            f"{points(theirs['leak'])}, {theirs['faithfulness lost'][0]:.0%}",
        ))  # fmt: skip
    header = (
        "task", "explainer", "published: default (without crops)", "best", "less leak, sensitivity_max",
        "honest: default", "best", "less leak, 95 % interval", "faithfulness lost", "the published best: leak, lost",
    )  # fmt: skip
    return markdown(header, rows, left=2)


def logits(found: dict[str, Any]) -> str:
    """What our attacks find of explanations of logits."""
    rows = [
        (task, name, points(cell["honest"]["default"]["leak"]), points(cell["honest"]["logits"]["leak"]))
        for task, name, cell in cells(found)
        if "logits" in cell["honest"]
    ]
    return markdown(("task", "explainer", "of the probability", "of the logit"), rows, left=2)


ALONE = ("norm alone", "signs alone", "magnitudes alone", "ranks alone", "sparsity alone", "strongest 10% alone")


def root_causes(found: dict[str, Any]) -> str:
    """What carries the leak of each explainer, by our ablation of the default's maps."""
    rows = []
    for task, name, cell in cells(found):
        cause = cell["honest"]["root_cause"]
        of = cause["auc"]

        def area(version: str, of: dict[str, Any] = of) -> str:
            return f"{of[version][0]:.2f}" if version in of else ""

        whole = max(of["L1 norm"][0], of["whole map"][0])
        half = (of["whole map"][2] - of["whole map"][1]) / 2
        balance = max(cause["balance"].values())
        rows.append((task, name, f"{whole:.2f} ± {half:.2f}", *(area(v) for v in ALONE), f"{balance:.2f}",
                     area("norm removed"), cause["sentence"].partition(":")[0].rstrip(".")))  # fmt: skip
    header = ("task", "explainer", "as it is", *(v.removesuffix(" alone") for v in ALONE), "balance of the signs",
              "norm removed", "what carries it")  # fmt: skip
    return markdown(header, rows, left=2)


SHOWN = ("Saliency", "InputXGradient")
"""Explainers of which the metric's table is shown; the result has more."""


def metric(found: dict[str, Any]) -> str:
    """Their utility metric beside faithfulness."""
    rows = []
    for task, result in searches(found):
        for name, configurations in result["metric"].items():
            if name not in SHOWN:
                continue
            native = configurations[0]
            for c in configurations:
                gain = 1 - c["sensitivity"] / native["sensitivity"]
                said = c["configuration"] + (f", {c['noise']}" if c["noise"] else "")
                rows.append((task, name, said, f"{c['sensitivity']:.3g}", f"{gain:+.0%}", f"{c['deletion']:.3f}",
                             f"{c['insertion']:.3f}", f"{c['overlap']:.2f}"))  # fmt: skip
    header = ("task", "explainer", "configuration", "sensitivity_max", '"utility" gained', "deletion", "insertion",
              "top 10 % overlap")  # fmt: skip
    return markdown(header, rows, left=3)


def sizes(found: dict[str, Any]) -> str:
    """What was run, beside what was published."""
    rows = []
    for task, result in searches(found):
        size, right = result["size"], result["accuracy"]
        published, honest = right["published"], right["honest"]
        rows.append((
            task,
            " / ".join(map(str, size["sides"])),
            str(size["seeds"]),
            " / ".join(map(str, size["trials"])),
            f"{published['members']:.0%}, {published['non_members']:.0%}",
            " / ".join(map(str, size["pools"])),
            f"{size['models']}, {size['targets']}",
            f"{honest['members']:.0%}, {honest['non_members']:.0%}",
            f"{result['processor_seconds_of_cells'] / 60:.0f} min",
        ))  # fmt: skip
    header = ("task", "published: a side (5,000)", "seeds (20)", "trials (20)", "right on members, others",
              "honest: pool", "models, targets", "right on members, others", "processor time")  # fmt: skip
    return markdown(header, rows)


def from_to(shares: list[float]) -> str:
    """Lowest, highest and median, in per cent."""
    return f"{min(shares):.0%} to {max(shares):.0%} (median {np.median(shares):.0%})" if shares else "none"


def said(found: dict[str, Any]) -> str:
    """What is left of the claim, in sentences."""
    every = list(cells(found))
    reductions = [less for _, _, c in every if (less := claimed(c)[0]) is not None]
    leaking = [c for _, _, c in every if leaks(c)]
    chosen = [c["honest"]["best"] for c in leaking if c["honest"]["which"]["best"] != 0]
    proven = [best["share"][0] for best in chosen if best["reduction"][1] > 0]
    gone = sum(best["leak"][1] <= 0 for best in chosen)
    theirs = [c["honest"]["published best"]["faithfulness lost"][0] for _, _, c in every]
    enough = sum(p >= CLAIM for p in proven)
    lines = [
        f"As published: in {len(reductions)} of {len(every)} pairs of task and explainer the attack finds a member by"
        f" the default, and the best trial has less leak by {from_to(reductions)}.",
        f"Honestly: in {len(leaking)} the default tells measurably more than the label. In {len(chosen)} of these some"
        " trial keeps its faithfulness and leaks less on the half that chooses; on the other half that is measurably"
        f" less in {len(proven)}, by {from_to(proven)}, of which {enough} by 46.5 % or more; {gone} then tell nothing"
        " measurable beyond the label.",
        f"What the published search chose loses faithfulness by {from_to(theirs)}; the paper says at most 3.3 % of the"
        " utility.",
    ]
    return "\n".join(f"* {line}" for line in lines)


Table = Callable[[dict[str, Any]], str]


def where_searched(make: Table) -> Table:
    """The table, or, of a result without a search, a word about it."""
    return lambda found: make(found) if any(searches(found)) else "*There is no result yet.*"


OF_SEARCHES = {
    "paper_d: what is left": left_of_the_claim,
    "paper_d: sentences": said,
    "paper_d: sizes": sizes,
    "paper_d: logits": logits,
    "paper_d: root causes": root_causes,
    "paper_d: metric": metric,
}

TABLES: dict[str, Table] = {
    "paper_d: untrained": untrained,
    "paper_d: best of seeds": best_of_seeds,
    **{name: where_searched(make) for name, make in OF_SEARCHES.items()},
}
"""Name of a table -> what makes it."""


def shown(found: dict[str, Any]) -> str:
    """What a run prints: the tables of its searches."""
    return "\n\n".join(make(found) for make in OF_SEARCHES.values()) if any(searches(found)) else ""
