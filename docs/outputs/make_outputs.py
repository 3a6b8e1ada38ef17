"""What the commands in README.md and docs/ print, from real runs: writes docs/outputs/*.txt, and README.md from them.

    python docs/outputs/make_outputs.py [NAME of COMMANDS, or measured ...]

`measured` is the table of measurements in README.md, from audit/results/*.json. In README.md, each output stands
between `<!-- NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
EXAMPLES, RESULTS = ROOT / "examples", ROOT / "audit" / "results"
CLI = "from safexplain.cli import {0}; {0}()"

COMMANDS: dict[str, tuple[list[str], ...]] = {
    "demo": (["-c", CLI.format("main"), "demo", "--run-dir", "safexplain-runs/demo"],),
    "audit": (
        [str(EXAMPLES / "write_audit_files.py")],
        ["-c", CLI.format("audit_main"), "model.pt2", "--data", "data.npz", "--recipe", "recipe.toml",
         "--explainer", "InputXGradient", "--run-dir", "safexplain-runs/digits"],
    ),
    "tune": (
        [str(EXAMPLES / "write_audit_files.py")],
        ["-c", CLI.format("main"), "tune", "model.pt2", "--data", "data.npz", "--recipe", "recipe.toml",
         "--explainer", "InputXGradient", "--trials", "60", "--run-dir", "safexplain-runs/tuned"],
    ),
    "attack": (
        [str(EXAMPLES / "attack_own_signals.py")],
        ["-c", CLI.format("main"), "attack", "leaking.npz"],
    ),
    "canaries": (
        ["-c", CLI.format("main"), "canaries", "--preset", "logit-768", "--scenario", "all", "--runs", "1000",
         "--run-dir", "safexplain-runs/canaries"],
    ),
    "audit_sklearn": ([str(EXAMPLES / "audit_sklearn.py")],),
    "audit_pretraining": ([str(EXAMPLES / "audit_pretraining.py")],),
    "audit_endpoint": ([str(EXAMPLES / "audit_endpoint.py")],),
    "harden_captum": ([str(EXAMPLES / "harden_captum.py")],),
    "credit_recourse": ([str(EXAMPLES / "credit_recourse.py")],),
    "ledger": (
        [str(EXAMPLES / "credit_recourse.py")],
        ["-c", CLI.format("main"), "ledger", "show", "budget.db", "--verify"],
    ),
}  # fmt: skip
"""What is run, one after the other in one folder; the output of the last is kept."""


def output_of(name: str) -> str:
    """Standard output of the last command, 80 columns wide, without trailing blanks."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80", "PYTHONIOENCODING": "utf-8"}
    printed = ""
    with tempfile.TemporaryDirectory() as folder:
        environment["SAFEXPLAIN_USES"] = str(Path(folder) / "uses.sqlite")  # as on a new machine
        for command in COMMANDS[name]:
            done = subprocess.run(
                [sys.executable, *command], cwd=folder, env=environment, text=True, stdout=subprocess.PIPE
            )
            if done.returncode not in (0, 1, 3):
                raise SystemExit(f"{name}: exit code {done.returncode}")
            printed = done.stdout
    return "\n".join(line.rstrip() for line in printed.strip("\n").splitlines()) + "\n"


def measured() -> str:
    """The measurements as a Markdown table: a row for each result that is there."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}
    rows = [row for name, make in ROWS.items() if name in found for row in make(found[name])]
    lines = ["| What | Result | Reproduce |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {what} | {result} | `{command}` |" for what, result, command in rows)]) + "\n"


def _paper_a(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    ours, published = (found["figures"]["means"]["l1"][name] for name in ("LikelihoodRatio()", "published"))
    joint = found["figures"]["means"]["l1 + loss"]["JointLikelihoodRatio()"]
    loss = found["figures"]["means"]["loss"]["LikelihoodRatio()"]
    return [
        (
            "L1 likelihood ratio on the signals released with a paper (CIFAR-10, 33 models): members found at 0.1 % and"
            " 1 % FPR, AUC",
            f"{ours[0]:.2%}, {ours[1]:.2%}, {ours[2]:.3f} (published, with the ROC's axes swapped and a wrong index:"
            f" {published[0]:.1%}, {published[1]:.1%}, {published[2]:.3f})",
            "python -m audit.suites.paper_a",
        ),
        (
            "joint likelihood ratio of L1 and loss on the same signals, beside the loss alone",
            f"{joint[0]:.2%}, {joint[1]:.2%}, {joint[2]:.3f} ({loss[0]:.2%}, {loss[1]:.2%}, {loss[2]:.3f})",
            "python -m audit.suites.paper_a",
        ),
    ]


RECOMMENDED = "TopKSet(k=4, fraction=.1)"


def _verdict_errors(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    columns, cells = found["whole"]["columns"], [list(cell) for cell in found["whole"]["cells"]]
    audits = found["audits_per_cell"]
    wrong, low, high = (columns.index(name) for name in ("wrong", "wrong_low", "wrong_high"))
    worst = max((cell for cell in cells if cell[wrong] is not None), key=lambda cell: cell[wrong])
    return [
        (
            f"wrong verdicts (a leak proven where there is none, a certificate just above the limit): worst of"
            f" {len(cells):,} simulated cells of {audits:,} audits, at most 5 % allowed",
            f"{worst[wrong] / audits:.1%} ({worst[low]:.1%} to {worst[high]:.1%})",
            "python -m audit.suites.verdict_errors",
        )
    ]


def _releases(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    parts = [cell["releases"] for part in found["results"].values() for cell in part["cells"].values()]
    native, now, public = ([cell[name] for cell in parts] for name in ("native", RECOMMENDED, "public models"))
    adds = [100 * r["judged"]["tpr"]["value"] for r in native]
    always = [100 * e["tpr"]["value"] for r in now for e in _always(r)]
    lost = max(n["deletion"] - r["deletion"] for n, r in zip(native, now, strict=True))
    above = min(r["deletion"] - p["deletion"] for p, r in zip(public, now, strict=True))
    return [
        (
            f"members found at 1 % FPR beyond those that the labels of the same queries tell, {len(parts)} cells of"
            " digits, HELOC, CIFAR-10 and GTSRB: natively; recommended, largest upper bound of 95 %; by a stack that"
            " never keeps to the labels",
            f"{min(adds):+.1f} to {max(adds):+.1f} points; {100 * max(r['judged']['tpr']['upper'] for r in now):.1f};"
            f" {min(always):+.1f} to {max(always):+.1f}",
            "python -m audit.suites.releases",
        ),
        (
            "what the prediction loses without the tenth of the features that is named: most that recommended is below"
            " native, least that it is above models of public data",
            f"{lost:.3f}; {above:.2f}",
            "python -m audit.suites.releases",
        ),
    ]


def _always(release: dict[str, Any]) -> list[dict[str, Any]]:
    """The complete stack at every level."""
    return [level["attacks"]["Stacked, always"] for level in release["levels"].values()]


def _overhead(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    ratio = found["results"]["IG"]
    low, high = ratio["ratio_quartiles"]
    return [
        (
            "`HardenedIG` over Captum's integrated gradients (ResNet-18, 32 x 3 x 32 x 32, 25 steps, one core)",
            f"{ratio['ratio_median'] - 1:+.1%} time (quartiles {low - 1:+.1%} to {high - 1:+.1%})",
            "python -m audit.benchmarks.explainer_overhead --all",
        )
    ]


def _speed(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    now = found["results"]["recommended"]
    return [
        (
            "recommended hardening of a map of 3 x 32 x 32 and of 3 x 224 x 224, one core",
            f"{now['32']['ms_a_map_shortest']:.2g} and {now['224']['ms_a_map_shortest']:.2g} ms,"
            f" {now['memory']['multiple']:.1f} times the attributions' memory",
            "python -m audit.benchmarks.hardening_speed",
        )
    ]


def _training(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [
        (
            "32 reference MLPs as one batched computation, against a loop",
            f"{found['ratio_median']:.1f} times as fast",
            "python -m audit.benchmarks.batched_training",
        )
    ]


def _dp_attacks(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    heads = found["results"]["heads cifar10"]
    shown = []
    for name in ("inf", "8", "2"):
        budget, cell = heads["budgets"][name], heads["cells"][f"InputXGradient {name}"]
        swap = "none" if budget["substitute"] is None else f"{budget['add_remove']:.1f} / {budget['substitute']:.1f}"
        area = cell["means"]["LikelihoodRatio on l1"]["auc"]["value"]
        shown.append(f"{swap}: {area:.3f}, {heads['accuracy'][name]['non_members']['mean']:.0%}")
    return [
        (
            "heads on a frozen MobileNet trained with DP on 2,000 CIFAR-10 images each: epsilon (one record added or"
            " removed / substituted), AUC of the L1 attack on InputXGradient, accuracy on new images",
            "; ".join(shown),
            "python -m audit.suites.dp_attacks",
        )
    ]


def _dp_epsilons(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    cells = list(found["results"].values())[:-1]
    pair, calibration = ([r[k] for r in cells] for k in ("pair_ms", "calibration_ms"))
    return [
        (
            "epsilon under both adjacencies; calibration (500 to 1,500 steps, one core)",
            f"{min(pair):.0f} to {max(pair):.0f} ms; {min(calibration):.0f} to {max(calibration):.0f} ms",
            "python -m audit.benchmarks.dp_epsilons",
        )
    ]


def _dp_finetuning(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    ours = found["results"]["safexplain, ghost"]
    return [
        (
            "a DP-SGD step of a whole vision transformer (2.7 M parameters), mode ghost, over Opacus' ghost clipping",
            f"{ours['ratio_to_opacus_ghost']:.2f} of its time, {ours['peak_mib']:.0f} MiB against"
            f" {found['results']['Opacus, ghost']['peak_mib']:.0f} MiB",
            "python -m audit.benchmarks.dp_finetuning",
        )
    ]


def _dp_head(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    one, many = (
        found["results"][f"train_heads, {k}"]["times_faster_median"] for k in ("1 run", "17 runs, shared batches")
    )
    return [
        (
            "a head on cached features (500 x 768 x 10) in closed form, over Opacus' PrivacyEngine: alone, and as one"
            " of 17",
            f"{one:.0f} and {many:.0f} times as fast",
            "python -m audit.benchmarks.dp_head",
        )
    ]


def _bound_errors(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    cells = [cell["bounds"] for cell in found["two_worlds"] if cell["mechanism"]["steps"] >= 500]
    worst = {name: max(cell[name]["rate"] for cell in cells) for name in ("pld fixed", "pld split", "gdp max")}
    return [
        (
            f"lower bounds on epsilon above the truth, worst of {len(cells)} simulated cells, at most 5 % allowed:"
            " default method, threshold fixed or split; best of all thresholds, as published",
            f"{worst['pld fixed']:.1%}, {worst['pld split']:.1%}; {worst['gdp max']:.0%}",
            "python -m audit.suites.bound_errors",
        )
    ]


def _broken_trainers(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    first = [row["audits"][0] for row in found["broken"]]
    surely, right = sum(a["found"] >= 0.8 for a in first), [row["audits"][0] for row in found["right"]]
    mistaken = sum(a["verdicts"].get("violates the claim: a bug", 0) for a in right)
    return [
        (
            f"broken DP trainers, {len(first)} kinds of real loops: found by canaries in 80 % of audits or more; right"
            " trainers taken for broken ones",
            f"{surely}; {mistaken} of {sum(a['audits'] for a in right)} audits",
            "python -m audit.suites.broken_trainers",
        )
    ]


def _canary_figure3(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    at = found["results"]["one logit"]["rates"]["0.25"]
    shown = ", ".join(f"{cell['epsilon_lower']['mean']:.1f} ({name})" for name, cell in at["cells"].items())
    return [
        (
            "epsilon of a substituted record shown by 2,500 runs of a head on CIFAR-10 features; accounting:"
            " add/remove, substituted",
            f"{shown}; {at['add_remove'][-1]:.1f}, {at['substitute'][-1]:.1f}",
            "python -m audit.suites.paper_c_canaries.figure3",
        )
    ]


def _canary_training(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    shown = []
    for case, results in found["results"].items():
        name, alone = next((n, r) for n, r in results.items() if n.startswith("R =") and n.endswith("shared batches"))
        shown.append(f"{case}, {name.partition(',')[0]}: {alone['times_faster_median']:.0f} times")
    return [
        (
            "runs of an audit side by side (500 x 768, 500 steps), over a loop of Opacus trainings, a run",
            "; ".join(shown),
            "python -m audit.benchmarks.canary_training",
        )
    ]


def _recourse_evidence(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    many, heloc = (found["results"][task]["cells"] for task in ("synthetic 5000", "heloc"))

    def best(title: str) -> str:
        cell = many[title]
        return f"{max(a['balanced_accuracy']['value'] for a in cell['attacks']):.2f}"

    published, private = "Laplace recourse, as published, epsilon 0.5", "DPModelRecourse, epsilon 0.5"
    allowed = f"{many[published]['ceiling']:.2f}"
    return [
        (
            "attacks on recourse at epsilon .5 (5,000 rows and features): best balanced accuracy without privacy; as"
            " published; `DPModelRecourse`; what epsilon allows",
            f"{best('without privacy')}; {best(published)}; {best(private)}; {allowed}",
            "python -m audit.suites.paper_b_recourse.evidence",
        ),
        (
            f"accuracy on HELOC (n = {heloc['without privacy']['members_a_model']:,.0f}) without privacy and of"
            " `DPModelRecourse` at epsilon 1 (substituted)",
            ", ".join(f"{heloc[c]['test_accuracy']:.3f}" for c in ("without privacy", "DPModelRecourse, epsilon 1")),
            "python -m audit.suites.paper_b_recourse.evidence --task heloc",
        ),
    ]


def _recourse_networks(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    heloc = found["results"]["heloc"]["cells"]

    def auc(title: str, signal: str) -> str:
        return f"{max(a['auc'] for a in heloc[title]['attacks'] if a['signal'] == signal):.2f}"

    by_heart, private = "without privacy, to the end", "DPModelRecourse, epsilon 1"
    shown = (auc(by_heart, "distance"), auc(by_heart, "signed_distance"), auc(private, "signed_distance"))
    return [
        (
            "recourse of overfitted networks on HELOC, best AUC: from the distance; with its sign; of private networks"
            " (epsilon 1)",
            "; ".join(shown),
            "python -m audit.suites.paper_b_recourse.networks --task heloc",
        )
    ]


def _recourse_search(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    results = found["results"]
    ours = [results[f"search_recourse, {cost}"]["seconds"] for cost in ("L2", "L1")]
    others = [results[name]["times_faster"] for name in ("loop of Adam, L2", "alibi Counterfactual, L1")]
    return [
        (
            "recourse of 1,000 queries on an MLP of 23 features, one core: L2, L1; over a loop of Adam, over Alibi",
            f"{ours[0]:.1f} s, {ours[1]:.1f} s; {others[0]:,.0f} times, {others[1]:,.0f} times as fast",
            "python -m audit.benchmarks.recourse_search",
        )
    ]


def _ledger_speed(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    results = found["results"]
    rates = [results[f"{name}, one principal"]["charges_a_second"] for name in ("SQLite", "PostgreSQL")]
    slowest = max(r["ms"] for name, r in results.items() if name.endswith("from sums"))
    return [
        (
            "charges a second by four processes, durable: SQLite, PostgreSQL; what a million releases add up to",
            f"{rates[0]:,.0f}, {rates[1]:,.0f}; {slowest:.0f} ms",
            "python -m audit.benchmarks.ledger_speed",
        )
    ]


ROWS = {
    "verdict_errors": _verdict_errors,
    "releases": _releases,
    "paper_a": _paper_a,
    "dp_attacks": _dp_attacks,
    "explainer_overhead": _overhead,
    "hardening_speed": _speed,
    "batched_training": _training,
    "dp_epsilons": _dp_epsilons,
    "dp_finetuning": _dp_finetuning,
    "dp_head": _dp_head,
    "bound_errors": _bound_errors,
    "broken_trainers": _broken_trainers,
    "canary_figure3": _canary_figure3,
    "canary_training": _canary_training,
    "recourse_evidence": _recourse_evidence,
    "recourse_networks": _recourse_networks,
    "recourse_search": _recourse_search,
    "ledger_speed": _ledger_speed,
}


def into_readme(name: str, printed: str) -> None:
    """Put the output into README.md, where it has a place."""
    readme = ROOT / "README.md"
    text = readme.read_text()
    if name == "measured":
        pattern = r"(<!-- measured -->\n).*?(<!-- end -->)"
    else:
        pattern = rf"(<!-- {name} -->\n```console\n\$ [^\n]*\n).*?(```\n<!-- end -->)"
    readme.write_text(re.sub(pattern, lambda m: m[1] + printed + m[2], text, flags=re.DOTALL))


def main() -> None:
    """Run the named commands, or all."""
    for name in sys.argv[1:] or [*COMMANDS, "measured"]:
        printed = measured() if name == "measured" else output_of(name)
        if name != "measured":
            (HERE / f"{name}.txt").write_text(printed)
        into_readme(name, printed)
        print(f"{name}:\n{printed}", flush=True)


if __name__ == "__main__":
    main()
