"""What the commands in the documentation print, from real runs: writes docs/outputs/*.txt.

    python docs/outputs/make_outputs.py [NAME of COMMANDS, or measured ...]

`measured` fills docs/evidence/index.md, between `<!-- measured -->` and `<!-- end -->`, with one line for each result
in audit/results/*.json. README.md shows the first table of `audit`, between `<!-- audit -->` and `<!-- end -->`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
EXAMPLES, RESULTS = ROOT / "examples", ROOT / "audit" / "results"
Maker = Callable[[dict[str, Any]], list[tuple[str, str, str]]]
"""A result -> what was measured, the figures, the command that reproduces them."""
CLI = "from safexplain.cli import {0}; {0}()"

AUDIT = "safexplain-audit model.pt2 --data data.npz --recipe recipe.toml --explainer InputXGradient"
"""As README.md shows it."""

COMMANDS: dict[str, tuple[list[str], ...]] = {
    "demo": (["-c", CLI.format("main"), "demo", "--run-dir", "safexplain-runs/demo"],),
    "audit": (
        [str(EXAMPLES / "write_audit_files.py")],
        ["-c", CLI.format("audit_main"), *AUDIT.split()[1:], "--run-dir", "safexplain-runs/digits"],
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
    "audit_pretraining": ([str(EXAMPLES / "audit_pretraining.py")],),
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
    """The measurements as Markdown tables, one for each subject of `ROWS`: a row for each result that is there."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}
    parts = []
    for subject, makers in ROWS.items():
        rows = [row for name, make in makers.items() if name in found for row in make(found[name])]
        lines = ["| Measured | Result | Reproduce with |", "|---|---|---|"]
        lines += [f"| {what} | {result} | `{command}` |" for what, result, command in rows]
        parts.append("\n".join([f"## {subject}", "", *lines]))
    return "\n\n".join(parts) + "\n"


def _paper_a(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    ours, published = (found["figures"]["means"]["l1"][name] for name in ("LikelihoodRatio()", "published"))
    joint = found["figures"]["means"]["l1 + loss"]["JointLikelihoodRatio()"]
    loss = found["figures"]["means"]["loss"]["LikelihoodRatio()"]
    return [
        (
            "Members found at 0.1 % and 1 % FPR, and AUC, by the L1 likelihood ratio on the signals that Huang et al."
            " published (CIFAR-10, 33 models)",
            f"{ours[0]:.2%}, {ours[1]:.2%}, {ours[2]:.3f} (as published, with the axes of the ROC swapped and a"
            f" wrong index: {published[0]:.1%}, {published[1]:.1%}, {published[2]:.3f})",
            "python -m audit.suites.paper_a",
        ),
        (
            "The same, by the joint likelihood ratio of L1 and loss",
            f"{joint[0]:.2%}, {joint[1]:.2%}, {joint[2]:.3f} (loss alone: {loss[0]:.2%}, {loss[1]:.2%}, {loss[2]:.3f})",
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
            "Wrong verdicts (a leak found where there is none, or a certificate just above the limit), in the worst"
            f" of {len(cells):,} simulated settings with {audits:,} audits each; 5 % are allowed",
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
            "Percentage points of members, at 1 % FPR, that explanations reveal beyond the labels of the same queries,"
            f" in {len(parts)} settings on digits, HELOC, CIFAR-10 and GTSRB",
            f"native: {min(adds):+.1f} to {max(adds):+.1f}; recommended hardening: upper bounds (95 %) of at most"
            f" {100 * max(r['judged']['tpr']['upper'] for r in now):.1f}; an attack that always uses the explanation:"
            f" {min(always):+.1f} to {max(always):+.1f}",
            "python -m audit.suites.releases",
        ),
        (
            "Faithfulness: how far the probability falls when the named tenth of the features is removed",
            f"the recommended hardening loses at most {lost:.3f} against the native map, and gains at least {above:.2f}"
            " over models of public data",
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
            "Time of `HardenedIG` compared with Captum's integrated gradients (ResNet-18, 32 x 3 x 32 x 32, 25 steps,"
            " one core)",
            f"{ratio['ratio_median'] - 1:+.1%} (quartiles {low - 1:+.1%} to {high - 1:+.1%})",
            "python -m audit.benchmarks.explainer_overhead --all",
        )
    ]


def _speed(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    now = found["results"]["recommended"]
    return [
        (
            "Recommended hardening of one map of 3 x 32 x 32, and of 3 x 224 x 224 (one core)",
            f"{now['32']['ms_a_map_shortest']:.2g} and {now['224']['ms_a_map_shortest']:.2g} ms,"
            f" peak memory {now['memory']['multiple']:.1f} times that of the attributions",
            "python -m audit.benchmarks.hardening_speed",
        )
    ]


def _training(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [
        (
            "Training 32 reference MLPs as one batch instead of in a loop",
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
            "Heads on a frozen MobileNet, trained with DP on 2,000 CIFAR-10 images each: epsilon (add or remove /"
            " substitute a record), AUC of the L1 attack on InputXGradient, accuracy on new images",
            "; ".join(shown),
            "python -m audit.suites.dp_attacks",
        )
    ]


def _dp_epsilons(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    cells = list(found["results"].values())[:-1]
    pair, calibration = ([r[k] for r in cells] for k in ("pair_ms", "calibration_ms"))
    return [
        (
            "Computing epsilon under both adjacencies, and calibrating noise to it (500 to 1,500 steps, one core)",
            f"{min(pair):.0f} to {max(pair):.0f} ms, and {min(calibration):.0f} to {max(calibration):.0f} ms",
            "python -m audit.benchmarks.dp.epsilons",
        )
    ]


def _dp_finetuning(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    ours = found["results"]["safexplain, ghost"]
    return [
        (
            "A DP-SGD step of a whole vision transformer (2.7 M parameters) with ghost clipping, compared with Opacus'"
            " ghost clipping",
            f"{ours['ratio_to_opacus_ghost']:.2f} of its time; {ours['peak_mib']:.0f} MiB instead of"
            f" {found['results']['Opacus, ghost']['peak_mib']:.0f} MiB",
            "python -m audit.benchmarks.dp.finetuning",
        )
    ]


def _dp_head(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    one, many = (
        found["results"][f"train_heads, {k}"]["times_faster_median"] for k in ("1 run", "17 runs, shared batches")
    )
    return [
        (
            "DP training of a head on cached features (500 x 768 x 10), compared with Opacus' PrivacyEngine",
            f"{one:.0f} times as fast alone, {many:.0f} times as one of 17",
            "python -m audit.benchmarks.dp.head",
        )
    ]


def _bound_errors(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    cells = [cell["bounds"] for cell in found["two_worlds"] if cell["mechanism"]["steps"] >= 500]
    worst = {name: max(cell[name]["rate"] for cell in cells) for name in ("pld fixed", "pld split", "gdp max")}
    return [
        (
            f"Lower bounds on epsilon that exceed the true epsilon, in the worst of {len(cells)} simulated settings;"
            " 5 % are allowed",
            f"{worst['pld fixed']:.1%} with a fixed threshold, {worst['pld split']:.1%} with one chosen on a split;"
            f" {worst['gdp max']:.0%} with the best of all thresholds, as published",
            "python -m audit.suites.bound_errors",
        )
    ]


def _broken_trainers(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    broken = [row for row in found["broken"] if row["breaks"]]
    white, canaries = (
        sum(row[how][0]["verdict"] in ("refuted", "refused") for row in broken) for how in ("white_box", "canaries")
    )
    right = [audit["verdict"] for row in found["right"] for how in ("white_box", "canaries") for audit in row[how]]
    return [
        (
            f"{len(broken)} kinds of broken DP training loops: found by the white box, by 1,000 runs of canaries;"
            " correct loops refuted",
            f"{white}, {canaries}; {right.count('refuted')} of {len(right)} audits",
            "python -m audit.suites.broken_trainers",
        )
    ]


def _canary_figure3(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    at = found["results"]["one logit"]["rates"]["0.25"]
    shown = ", ".join(f"{cell['epsilon_lower']['mean']:.1f} ({name})" for name, cell in at["cells"].items())
    return [
        (
            "Lower bound on the epsilon of a substituted record from 2,500 runs of a head on CIFAR-10 features",
            f"{shown}; the accountant says {at['substitute'][-1]:.1f} (and {at['add_remove'][-1]:.1f} for an added or"
            " removed record)",
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
            "Training the runs of a canary audit together (500 x 768, 500 steps), compared with a loop of Opacus"
            " trainings",
            "; ".join(shown) + " as fast a run",
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
            "Best balanced accuracy of attacks on recourse at epsilon 0.5 (5,000 rows and features)",
            f'without privacy {best("without privacy")}; "Laplace recourse" as published {best(published)};'
            f" `DPModelRecourse` {best(private)}; epsilon allows {allowed}",
            "python -m audit.suites.paper_b_recourse.evidence",
        ),
        (
            f"Accuracy on HELOC ({heloc['without privacy']['members_a_model']:,.0f} records)",
            f"{heloc['without privacy']['test_accuracy']:.3f} without privacy,"
            f" {heloc['DPModelRecourse, epsilon 1']['test_accuracy']:.3f} of `DPModelRecourse` at epsilon 1",
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
            "Best AUC of attacks on the recourse of overfitted networks (HELOC)",
            f"{shown[0]} from the distance, {shown[1]} from the signed distance, {shown[2]} with networks trained at"
            " epsilon 1",
            "python -m audit.suites.paper_b_recourse.networks --task heloc",
        )
    ]


def _ledger_speed(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    results = found["results"]
    rates = [results[f"{name}, one principal"]["charges_a_second"] for name in ("SQLite", "PostgreSQL")]
    slowest = max(r["ms"] for name, r in results.items() if name.endswith("from sums"))
    return [
        (
            "Durable charges a second to a ledger by four processes; time to add up a million releases",
            f"SQLite {rates[0]:,.0f}, PostgreSQL {rates[1]:,.0f}; {slowest:.0f} ms",
            "python -m audit.benchmarks.ledger.speed",
        )
    ]


ROWS: dict[str, dict[str, Maker]] = {
    "What explanations leak, and what hardening leaves": {
        "releases": _releases,
        "paper_a": _paper_a,
    },
    "Can a verdict be trusted?": {
        "verdict_errors": _verdict_errors,
        "bound_errors": _bound_errors,
        "broken_trainers": _broken_trainers,
        "canary_figure3": _canary_figure3,
    },
    "Differential privacy and recourse": {
        "dp_attacks": _dp_attacks,
        "recourse_evidence": _recourse_evidence,
        "recourse_networks": _recourse_networks,
    },
    "Speed": {
        "explainer_overhead": _overhead,
        "hardening_speed": _speed,
        "batched_training": _training,
        "dp_epsilons": _dp_epsilons,
        "dp_finetuning": _dp_finetuning,
        "dp_head": _dp_head,
        "canary_training": _canary_training,
        "ledger_speed": _ledger_speed,
    },
}
"""Subject -> result in audit/results -> the rows that it gives."""


def first_table(printed: str) -> str:
    """The table of releases in an output: its title, a blank line, and the lines up to the next blank one."""
    title, table, *_ = printed[printed.index("Members found at") :].split("\n\n")
    return f"{title}\n\n{table}\n"


def fill(page: Path, name: str, content: str) -> None:
    """Put content into a page, between `<!-- name -->` and the next `<!-- end -->`."""
    start, end = f"<!-- {name} -->\n", "<!-- end -->"
    before, _, rest = page.read_text().partition(start)
    page.write_text(f"{before}{start}{content}{end}{rest.partition(end)[2]}")


def main() -> None:
    """Run the named commands, or all."""
    for name in sys.argv[1:] or [*COMMANDS, "measured"]:
        if name == "measured":
            printed = measured()
            fill(ROOT / "docs" / "evidence" / "index.md", name, f"\n{printed}\n")
        else:
            printed = output_of(name)
            (HERE / f"{name}.txt").write_text(printed)
        if name == "audit":
            fill(ROOT / "README.md", name, f"```console\n$ {AUDIT}\n{first_table(printed)}```\n")
        print(f"{name}:\n{printed}", flush=True)


if __name__ == "__main__":
    main()
