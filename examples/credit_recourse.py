"""Letters to applicants who were turned down, as a bank would write them: a frame in, a private model, letters out.

    python examples/credit_recourse.py [heloc.npz or heloc.csv]

With FICO's HELOC data in their own units: the .csv as it is published, or an .npz with x (columns as in the data
dictionary) and y (1 = repaid). Without a file, simulated applicants stand in. Writes letters.txt, answers.csv and
budget.db.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from safexplain.ledger import Ledger
from safexplain.recourse import L1, Constraints, DPModelRecourse, MeteredRecourse, Plausibility, Preprocessing, Rule

HELOC = {  # name: (largest value by the data dictionary, which way is better and possible: + or -, what to call it)
    "ExternalRiskEstimate": (100, "", "external risk estimate"),
    "MSinceOldestTradeOpen": (900, "", "age of your oldest account"),
    "MSinceMostRecentTradeOpen": (400, "+", "time since you last opened an account"),
    "AverageMInFile": (400, "", "average age of your accounts"),
    "NumSatisfactoryTrades": (110, "+", "number of accounts in good standing"),
    "NumTrades60Ever2DerogPubRec": (20, "", "accounts that were 60 days late"),
    "NumTrades90Ever2DerogPubRec": (20, "", "accounts that were 90 days late"),
    "PercentTradesNeverDelq": (100, "", "share of accounts that were never late"),
    "MSinceMostRecentDelq": (90, "+", "time since your last late payment"),
    "MaxDelq2PublicRecLast12M": (10, "", "worst delay of the last 12 months"),
    "MaxDelqEver": (10, "", "worst delay ever"),
    "NumTotalTrades": (110, "", "number of accounts"),
    "NumTradesOpeninLast12M": (20, "-", "number of accounts opened in the last 12 months"),
    "PercentInstallTrades": (100, "", "share of instalment loans"),
    "MSinceMostRecentInqexcl7days": (30, "+", "time since the last credit inquiry"),
    "NumInqLast6M": (70, "-", "number of credit inquiries in the last 6 months"),
    "NumInqLast6Mexcl7days": (70, "-", "number of earlier credit inquiries in the last 6 months"),
    "NetFractionRevolvingBurden": (250, "-", "revolving balance in percent of the limit"),
    "NetFractionInstallBurden": (500, "-", "instalment balance in percent of the loans"),
    "NumRevolvingTradesWBalance": (50, "-", "number of cards with a balance"),
    "NumInstallTradesWBalance": (25, "-", "number of instalment loans with a balance"),
    "NumBank2NatlTradesWHighUtilization": (20, "-", "number of cards close to their limit"),
    "PercentTradesWBalance": (100, "-", "share of accounts with a balance"),
}


def heloc(path: str) -> tuple[pd.DataFrame, np.ndarray]:
    """FICO's data, from either kind of file."""
    if path.endswith(".csv"):
        rows = pd.read_csv(path)
        rows = rows[(rows.drop(columns="RiskPerformance") != -9).any(axis=1)]  # people without any record
        return rows.drop(columns="RiskPerformance"), (rows.pop("RiskPerformance") == "Good").to_numpy(int)
    file = np.load(path)
    return pd.DataFrame(file["x"].astype(float), columns=list(HELOC)), file["y"]


def applicants(n: int = 12_000) -> tuple[pd.DataFrame, np.ndarray]:
    """People who never lived, and whether they repaid."""
    rng = np.random.default_rng(7)
    age = rng.integers(18, 76, n)
    rows = pd.DataFrame({
        "age": age,
        "years_employed": np.minimum(rng.gamma(2, 4, n).round(), age - 18).astype(int),
        "home": rng.choice(["rents", "mortgage", "owns"], n, p=[0.4, 0.35, 0.25]),
        "education": rng.choice(["school", "college", "degree"], n, p=[0.4, 0.35, 0.25]),
        "income": np.exp(rng.normal(10.4, 0.5, n)).clip(8_000, 120_000).round(-2),
        "balance": rng.gamma(1.5, 3_500, n).clip(0, 30_000).round(),
        "months_since_late": np.where(rng.random(n) < 0.55, -7, rng.integers(0, 84, n)),  # -7: never was
    })  # fmt: skip
    late = np.where(rows.months_since_late == -7, 1.0, -1.0 + 0.02 * rows.months_since_late)
    wealth = 2.2 * np.log(rows.income / 33_000) - 0.4 * (rows.balance - 5_000) / 1_000 + 0.1 * (rows.years_employed - 8)
    repaid = rng.random(n) < 1 / (1 + np.exp(-(wealth + late + 0.6 * (rows.home == "owns"))))
    return rows, repaid.to_numpy(int)


if len(sys.argv) > 1:
    people, repaid = heloc(sys.argv[1])
    public = Preprocessing(
        numeric={name: (0, most) for name, (most, _, _) in HELOC.items()},
        special={name: [-7, -8, -9] for name in HELOC},  # no such account, none that counts, no record
        describe={name: called for name, (_, _, called) in HELOC.items()},
        units={name: "months" for name in HELOC if name.startswith("MSince")}
        | {name: "%" for name in HELOC if name.startswith(("Percent", "NetFraction"))},
    )
    rules = Constraints(
        public.features,
        immutable=[name for name, (_, better, _) in HELOC.items() if not better],
        increasing=[name for name, (_, better, _) in HELOC.items() if better == "+"],
        decreasing=[name for name, (_, better, _) in HELOC.items() if better == "-"],
        step=dict.fromkeys(HELOC, 1),
        largest_change={name: 24 for name in HELOC if name.startswith("MSince")}  # nobody waits longer
        | {name: 5 for name in HELOC if name.startswith("Num")}
        | {name: 50 for name in HELOC if "Fraction" in name},
        most_changes=5,
    )
else:
    people, repaid = applicants()
    public = Preprocessing(
        numeric={"age": (18, 100), "years_employed": (0, 60), "income": (0, 120_000), "balance": (0, 30_000),
                 "months_since_late": (0, 120)},
        categories={"home": ["rents", "mortgage", "owns"]},
        ordinal={"education": ["school", "college", "degree"]},
        special={"months_since_late": [-7]},
        units={"income": "USD a year", "balance": "USD", "years_employed": "years", "age": "years",
               "months_since_late": "months"},
        describe={"age": "age", "years_employed": "time in employment", "home": "kind of home",
                  "education": "education", "income": "yearly income", "balance": "revolving balance",
                  "months_since_late": "time since your last late payment"},
    )  # fmt: skip
    rules = Constraints(
        public.features,
        immutable=("home",),  # what no letter may ask for
        increasing=("age", "years_employed", "education", "months_since_late"),
        decreasing=("balance",),
        step={"age": 1, "years_employed": 1, "income": 500, "balance": 100, "months_since_late": 1},
        largest_change={"age": 2, "months_since_late": 24, "income": 15_000},
        rules=(Rule("years_employed", "age"), Rule("education", "age", per_unit=2)),
        most_changes=4,
    )

rng = np.random.default_rng(0)
published, train, asks = np.array_split(rng.permutation(len(people)), 3)  # the first third stands in for public data
recourse = DPModelRecourse(
    epsilon=1.0,
    delta=1e-5,
    preprocessing=public,
    constraints=rules,
    cost=L1(),  # each change as a share of the feature's public range
)
recourse.fit(people.iloc[train], repaid[train])

Path("budget.db").unlink(missing_ok=True)  # of an earlier run of this script; never in production
ledger = Ledger("sqlite:///budget.db", epsilon=2.0, delta=1e-4, adjacency="substitute")
desk = MeteredRecourse(recourse, ledger)  # the training is an entry; answers from a private model cost nothing more
answer = desk.explain(people.iloc[asks], principal="lending desk", infeasible="mark")
print(f"right: {(answer.favourable == repaid[asks]).mean():.1%}; majority: {max(repaid.mean(), 1 - repaid.mean()):.1%}")
turned_down = ~answer.favourable
odd = Plausibility(people.iloc[published], preprocessing=public).outliers(answer)[turned_down & answer.valid]
told = answer.valid[turned_down].mean()
print(f"{turned_down.sum()} turned down, {told:.1%} with recourse; {odd.mean():.1%} of the answers are outliers")

letters = answer.letters()
Path("letters.txt").write_text("\n\n---\n\n".join(letters))
answer.frame.assign(approved=answer.favourable, has_recourse=answer.valid, proven=answer.proven).to_csv("answers.csv")
print(f"{len(letters)} letters. The first:\n\n{letters[0]}\n")
print(f"spent: {ledger.spent('lending desk'):.2f} of 2 ({ledger.total().spent:.2f} in total)")
