# %% [markdown]
# # Credit: reasons, recourse and letters
#
# A bank decides about loans with a scikit-learn pipeline and XGBoost. Applicants who are turned down are owed two things: the
# main reasons, and a way to a better decision. Both are computed from a model that was trained on other people's records. In
# this notebook you
#
# 1. give reasons with LIME and SHAP, hardened,
# 2. audit what the reasons tell about the training records,
# 3. compute recourse for the model that the bank has,
# 4. train a private model, whose answers are covered by a guarantee, and write letters in English and German,
# 5. keep the account in a ledger.
#
# The applicants are simulated, because real credit records cannot be shipped with a package. It takes about three minutes on
# two busy cores. You need `pip install "safexplain[aix360,shap,tabular]" xgboost`.

# %%
import numpy as np
import pandas as pd


def applicants(n):
    """People who never lived, and whether they repaid."""
    rng = np.random.default_rng(7)
    age = rng.integers(18, 76, n)
    people = pd.DataFrame({
        "age": age,
        "years_employed": np.minimum(rng.gamma(2, 4, n).round(), age - 18).astype(int),
        "income": np.exp(rng.normal(10.4, 0.5, n)).clip(8_000, 120_000).round(-2),
        "balance": rng.gamma(1.5, 3_500, n).clip(0, 30_000).round(),
        "inquiries": rng.poisson(1.5, n).clip(0, 10),
        "home": rng.choice(["rents", "mortgage", "owns"], n, p=[0.4, 0.35, 0.25]),
    })  # fmt: skip
    wealth = 2.2 * np.log(people.income / 33_000) - 0.4 * (people.balance - 5_000) / 1_000
    wealth += 0.1 * (people.years_employed - 8) - 0.5 * people.inquiries + 0.6 * (people.home == "owns") + 0.8
    return people, (rng.random(n) < 1 / (1 + np.exp(-wealth))).astype(int)


people, repaid = applicants(9_000)
published, pool, asks = slice(0, 1_000), slice(1_000, 1_800), slice(8_000, 9_000)
print(people.iloc[asks].head(3).to_string(index=False))

# %% [markdown]
# The first thousand rows play the part of published statistics: nothing in them is secret. The pool is the people whose
# membership an attacker would like to know; a coin decides who of them is in the training set.

# %%
from sklearn.compose import make_column_transformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from xgboost import XGBClassifier

member = np.random.default_rng(1).random(800) < 0.5
columns = make_column_transformer((OneHotEncoder(), ["home"]), remainder="passthrough", verbose_feature_names_out=False)
booster = XGBClassifier(n_estimators=100, max_depth=6, n_jobs=1)
pipeline = make_pipeline(columns, booster).fit(people[pool][member], repaid[pool][member])
for name, rows in (("members", member), ("others", ~member)):
    print(f"{name}: {pipeline.score(people[pool][rows], repaid[pool][rows]):.0%} right")

# %% [markdown]
# All members right, of the others three in four: the trees have learnt their records by heart. That is common with boosted trees, and
# it is what an attacker hopes for.
#
# ## Reasons with LIME
#
# Take somebody who is turned down. LIME perturbs her row and fits a linear model to the answers. It takes bins and spreads from
# a data set, natively the training set. Here it gets the published rows instead.

# %%
from safexplain.explain.aix360 import HardenedLimeTabular
from safexplain import Hardening

x = np.asarray(columns.transform(people), dtype=np.float32)
names = [str(name) for name in columns.get_feature_names_out()]
person = int(np.flatnonzero(pipeline.predict(people[asks]) == 0)[0])
row = x[asks][person]

made = {"feature_names": names, "random_state": 0, "feature_selection": "none"}
native = HardenedLimeTabular(x[published], **made, hardening=Hardening.none())
hardened = HardenedLimeTabular(x[published], **made)
for explainer in (native, hardened):
    told = explainer.explain_instance(row, booster.predict_proba, labels=(0,), num_features=len(names))
    print({name: round(float(weight), 2) for name, weight in told.as_list(label=0) if weight})

# %% [markdown]
# The first line is what LIME says, with hardening switched off. The second is what leaves with the recommended hardening: the
# four features that count most *for being turned down*. It is the list that an adverse-action notice needs. Which features are
# on it is exact, and since none of them counts against the decision, no sign can be wrong. What is gone is the numbers, and it
# is the numbers that tell about members. The price: her income decided nearly alone, and the list does not say so.
#
# ## The same with SHAP
#
# Shapley values of trees are exact and fast. Here only the import changes:

# %%
# from shap import TreeExplainer
from safexplain import HardenedTreeExplainer as TreeExplainer

tree = TreeExplainer(booster, data=x[published][:50])
values = tree.shap_values(row[None])
print(values.shape, np.unique(values).tolist())

# %% [markdown]
# ## Does it leak?
#
# The audit trains reference models from the same recipe, which for an estimator is an unfitted copy of it, and attacks what is
# released, natively and hardened. The policy allows the reasons to add 10 points to what the decision tells by itself; with 800
# people no stricter question can be answered.

# %%
from safexplain.audit import Policy, Population, audit

run = audit(
    booster,
    Population.of(x[pool], repaid[pool]),
    XGBClassifier(n_estimators=100, max_depth=6, n_jobs=1),
    member=member,
    explainer=TreeExplainer.catalogued(public=x[published][:50]),
    hardening=Hardening.recommended(),
    references=8,
    policy=Policy(fpr=0.05, max_tpr=0.15, confidence=0.9, patience=(1,), references=8, reason="800 people"),
)
for name, judged in (("native", run.native), ("hardened", run.result)):
    low, high = judged.added(judged.strongest)
    print(f"{name}: {judged.verdict}; adds {100 * low:+.0f} to {100 * high:+.0f} points")

# %% [markdown]
# Read the two lines with care. "Inconclusive" is no acquittal: the interval of the native reasons reaches far above what is
# allowed, and 800 people are too few to say more. The hardened reasons are certified, for one question a person.
#
# ## A way to a better decision
#
# `search_recourse` reads the pipeline, trees and all, and finds the cheapest change that the pipeline accepts. What may change,
# and by which steps, is for the bank to say:

# %%
from safexplain.recourse import L1, Constraints, Preprocessing, search_recourse

form = Preprocessing(  # public knowledge about the application form; nothing is read off the data
    numeric={"age": (18, 100), "years_employed": (0, 60), "income": (0, 120_000), "balance": (0, 30_000),
             "inquiries": (0, 10)},
    categories={"home": ["rents", "mortgage", "owns"]},
    units={"income": "USD a year", "balance": "USD", "years_employed": "years", "age": "years"},
    labels={"balance": "revolving balance", "inquiries": "number of credit inquiries"},
)  # fmt: skip
rules = Constraints(
    form.features,
    immutable=("age", "home", "years_employed"),
    decreasing=("balance", "inquiries"),
    step={"income": 500, "balance": 100, "inquiries": 1},
    most_changes=3,
)
applicant = people[asks].iloc[[person]]
found = search_recourse(pipeline, applicant, preprocessing=form, constraints=rules, cost=L1())
print(
    found.reasons()[0], "proven cheapest:", bool(found.proven[0]), "accepted:", pipeline.predict(found.frame).tolist()
)

# %% [markdown]
# That is the exact optimum for these trees. Nothing about it is private, though: the answer lies right at a split, and the
# splits lie where the training records are.
#
# ## Recourse with a guarantee
#
# `DPModelRecourse` trains a model with differential privacy. Every answer computed from it is covered, however many are asked
# for. Privacy costs accuracy when records are few, so it gets all the records that the bank has:

# %%
from safexplain.ledger import Ledger
from safexplain.recourse import DPModelRecourse, MeteredRecourse

everybody = slice(1_000, 8_000)
recourse = DPModelRecourse(
    epsilon=1.0, delta=1e-5, preprocessing=form, constraints=rules, cost=L1(), random_state=0
)  # random_state: the same page every time; leave it out where the guarantee is to hold
recourse.fit(people[everybody], repaid[everybody])
ledger = Ledger("sqlite:///budget.db", epsilon=2.0, delta=1e-4, adjacency="substitute")
desk = MeteredRecourse(recourse, ledger)  # enters the training into the ledger
answer = desk.explain(people[asks], principal="lending desk", infeasible="mark")
print(f"right: {(answer.favourable == repaid[asks]).mean():.0%}", end="; ")
print(f"XGBoost on 400 records: {pipeline.score(people[asks], repaid[asks]):.0%}")
print(f"{(~answer.favourable).sum()} turned down, {answer.valid[~answer.favourable].mean():.0%} of them have a way")

# %% [markdown]
# ## Letters
#
# `letters` writes to everybody who was turned down, in the form that the US Regulation B suggests. Numbers are rounded so
# that the sentence stays true.

# %%
turned_down = np.flatnonzero(~answer.favourable)
letters = answer.letters(guarantee=recourse.guarantee)
print(letters[0])

# %% [markdown]
# The same in German, with German names and units. It is the same private model, so it costs nothing more:

# %%
words = {"labels": {"balance": "Kreditkartenschuld", "inquiries": "Zahl der Kreditanfragen", "income": "Einkommen"},
         "units": {"income": "USD im Jahr", "balance": "USD"}}  # fmt: skip
formular = Preprocessing(**{**form.get_params(deep=False), **words})
german = DPModelRecourse(recourse.private, preprocessing=formular, constraints=rules, cost=L1())
antwort = german.explain(people[asks], infeasible="mark")
print(antwort.letters(guarantee=german.guarantee, language="de")[0])

# %% [markdown]
# ## The account
#
# The ledger holds what was spent on these records. Training cost epsilon 1, and a thousand answers cost nothing more. A second
# training on the same records would cost again, and what would pass the budget is refused:

# %%
from safexplain.errors import BudgetExhausted

print(f"spent: {ledger.spent('lending desk'):.2f} of 2")
for _ in range(2):
    again = DPModelRecourse(epsilon=0.9, delta=1e-5, preprocessing=form, constraints=rules, cost=L1())
    again.fit(people[everybody], repaid[everybody])
    try:
        ledger.charge_training(again.statement)
        print(f"another training: spent {ledger.spent('lending desk'):.2f}")
    except BudgetExhausted:
        print("another training: refused, the budget is used up")

# %% [markdown]
# **What to remember.**
#
# - Reasons and recourse are two answers, each with a leak of its own. Hardening and an audit serve the first, a private model
#   the second.
# - Hardening is no guarantee. The private model has one, for one record of one person.
# - Whether reasons like these satisfy a given law is for the lender to judge.
#
# Next: [recourse](../recourse.md), [budgets](../ledger.md), [tables and models of scikit-learn](../certificate.md#tables-and-models-of-scikit-learn).
