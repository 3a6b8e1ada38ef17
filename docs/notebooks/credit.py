# %% [markdown]
# # Credit: reasons for declined applicants
#
# If you owe declined applicants the principal reasons, this notebook shows how to give them without revealing who was in the training data.
# A bank decides about loans with gradient-boosted trees. In this notebook you
#
# 1. name up to four reasons in order, in the words of the application form,
# 2. handle a feature that must not be a reason,
# 3. audit what the reasons reveal about the training records,
# 4. write the letter, and
# 5. offer a way to a better decision, from a private model.
#
# The applicants are simulated. The notebook takes about two minutes on two cores and needs `pip install ".[shap,tabular]" xgboost`.
#
# **What US law requires**, in short; this is not legal advice:
#
# - [Regulation B, 12 CFR 1002.9](https://www.consumerfinance.gov/rules-policy/regulations/1002/9/): the statement must give the specific
#   principal reasons. According to its official commentary on paragraph 9(b)(2), more than four reasons are not likely to help
#   the applicant, the reasons must be factors that were actually scored, and no principal reason may be left out. It names two
#   methods: compare the applicant's score on each factor with the average of those who scored at or slightly above the
#   minimum, or with the average of all applicants. Other methods that produce similar results are acceptable.
# - [Fair Credit Reporting Act, 15 USC 1681g(f)](https://www.law.cornell.edu/uscode/text/15/1681g): for a credit score, up to four key factors that
#   affected it adversely, "listed in the order of their importance", and a fifth if the number of inquiries is one.

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
# The first thousand rows stand in for published statistics. The pool contains the people whose membership an attacker wants to find out; half of
# them, drawn at random, are the training set.

# %%
from sklearn.compose import make_column_transformer
from sklearn.preprocessing import OneHotEncoder
from xgboost import XGBClassifier

member = np.random.default_rng(1).random(800) < 0.5
columns = make_column_transformer((OneHotEncoder(), ["home"]), remainder="passthrough", verbose_feature_names_out=False)
x = np.asarray(columns.fit_transform(people), dtype=np.float32)
names = [str(name) for name in columns.get_feature_names_out()]
booster = XGBClassifier(n_estimators=100, max_depth=6, n_jobs=1).fit(x[pool][member], repaid[pool][member])
for name, rows in (("members", member), ("others", ~member)):
    print(f"{name}: {booster.score(x[pool][rows], repaid[pool][rows]):.0%} right")

# %% [markdown]
# The model is right about all members and three in four others, so it has memorised its training records. This is common with boosted trees, and
# membership attacks exploit it.
#
# ## Up to four reasons, in order
#
# The model sees three columns for the home, but the applicant filled in one, so their values are added up (`groups`). Shapley values compare
# the applicant with a background: here, published applicants at or just above the cutoff, one of the commentary's two methods. Only the import
# differs from shap's own:

# %%
# from shap import TreeExplainer
from safexplain import Features, HardenedTreeExplainer as TreeExplainer, Hardening, TopKSet
from safexplain.explain import near_cutoff

home = [name for name in names if name.startswith("home_")]
form = Features(names, groups={"home": home})
passed = near_cutoff(x[published], booster.predict_proba(x[published])[:, 1], cutoff=0.5, n=50)
hardening = Hardening(clip=TopKSet(k=4, ordered=True), features=form)
tree = TreeExplainer(booster, background=passed, hardening=hardening)

person = int(np.flatnonzero(booster.predict(x[asks]) == 0)[0])
row = x[asks][person]
values = tree.shap_values(row, target=0)  # left out, it is the predicted class, with a warning once
words = {"income": "income", "balance": "revolving balance", "inquiries": "number of credit inquiries",
         "years_employed": "length of employment", "home": "type of residence", "age": "age"}  # fmt: skip
print(dict(zip(names, values.tolist(), strict=True)))
for reason in form.reasons(values, row, describe=words):
    print(reason.rank, reason, reason.value)

# %% [markdown]
# The explanation contains only the order of up to four features that count for the decline: 4 for the strongest, 0 for all others. shap itself
# returns one column for the two classes, in favour of *approval*; the hardened explainer turns the values towards the decision.
# The sizes are removed because they reveal members, so the list does not say how much each feature counted.
#
# ## A feature that must not be a reason
#
# A lender may have decided that age must not be a reason. If it was scored, leaving it off the list would hide this, and the
# commentary forbids that. So it is an error if a prohibited column is among the reasons:

# %%
from safexplain.errors import ProhibitedReasonError

strict = Hardening(clip=TopKSet(k=4, ordered=True), features=Features(names, {"home": home}, prohibited=["age"]))
watched = TreeExplainer(booster, background=passed, hardening=strict)
refused = 0
for declined in x[asks][booster.predict(x[asks]) == 0][:100]:
    try:
        watched.shap_values(declined, target=0)
    except ProhibitedReasonError as error:
        refused += 1
        said = str(error)
print(f"{refused} of 100:", said)

# %% [markdown]
# A column that must not be named has to be left out of the training:

# %%
kept = [i for i, name in enumerate(names) if name != "age"]
x, names = x[:, kept], [names[i] for i in kept]
form = Features(names, groups={"home": home})
hardening = Hardening(clip=TopKSet(k=4, ordered=True), features=form)
booster = XGBClassifier(n_estimators=100, max_depth=6, n_jobs=1).fit(x[pool][member], repaid[pool][member])
passed = near_cutoff(x[published], booster.predict_proba(x[published])[:, 1], cutoff=0.5, n=50)
person = int(np.flatnonzero(booster.predict(x[asks]) == 0)[0])
row = x[asks][person]
tree = TreeExplainer(booster, background=passed, hardening=hardening)
reasons = form.reasons(tree.shap_values(row, target=0), row, describe=words)
print([str(reason) for reason in reasons])

# %% [markdown]
# ## Does it leak?
#
# The audit trains reference models as copies of the estimator, and attacks the native and the hardened release. With
# 800 people, no strict limit can be tested, so the policy allows the reasons to add 10 points to what the decision reveals.

# %%
from safexplain.audit import Policy, Population, audit

run = audit(
    booster,
    Population.of(x[pool], repaid[pool]),
    XGBClassifier(n_estimators=100, max_depth=6, n_jobs=1),
    member=member,
    explainer=TreeExplainer.catalogued(background=passed),
    hardening=hardening,
    references=8,
    policy=Policy(fpr=0.05, max_tpr=0.15, confidence=0.9, patience=(1,), references=8, reason="800 people"),
)
for name, judged in (("native", run.native), ("hardened", run.result)):
    low, high = judged.added(judged.strongest)
    print(f"{name}: {judged.verdict}; adds {100 * low:+.0f} to {100 * high:+.0f} points")

# %% [markdown]
# "Inconclusive" does not mean safe. The certificate covers what was tested: one query per person, these
# attacks, a limit of 10 points. The order adds nothing measurable to the set of reasons ([releases](../evidence/releases.md)).
#
# ## The letter

# %%
listed = "\n".join(f"  {reason.rank}. {reason}" for reason in reasons)
print(
    "Dear applicant,\n\nwe cannot offer you the credit that you asked for. The principal reasons, the most important"
    f" first:\n\n{listed}\n\nYou have the right to ... (the notices that your law requires)"
)

# %% [markdown]
# ## A way to a better decision
#
# Recourse tells an applicant what would change the decision. It is also computed from a model, so it can reveal training records too.
# `DPModelRecourse` trains a model with differential privacy, and its guarantee covers any number of answers. Privacy costs more accuracy
# the fewer records there are, so this model is trained on all records of the bank:

# %%
from safexplain.recourse import L1, Constraints, DPModelRecourse, Preprocessing

numeric = {"years_employed": (0, 60), "income": (0, 120_000), "balance": (0, 30_000), "inquiries": (0, 10)}
application = Preprocessing(  # public knowledge about the form; nothing is read off the data
    numeric=numeric,
    categories={"home": ["rents", "mortgage", "owns"]},
    units={"income": "USD a year", "balance": "USD", "years_employed": "years"},
    describe={
        "years_employed": "years of employment",
        "income": "yearly income",
        "balance": "revolving balance",
        "inquiries": "number of credit inquiries",
        "home": "type of residence",
    },
)
rules = Constraints(
    application.features,
    immutable=("home", "years_employed"),
    decreasing=("balance", "inquiries"),
    step={"income": 500, "balance": 100, "inquiries": 1},
    most_changes=3,
)

# %%
everybody, asked = slice(1_000, 8_000), [*numeric, "home"]
recourse = DPModelRecourse(
    epsilon=1.0, delta=1e-5, preprocessing=application, constraints=rules, cost=L1(), random_state=0
)  # random_state: the same page every time; leave it out where the guarantee is to hold
recourse.fit(people[asked][everybody], repaid[everybody])
answer = recourse.explain(people[asked][asks], infeasible="mark")
print(f"right: {(answer.favourable == repaid[asks]).mean():.0%}")
print(f"{(~answer.favourable).sum()} turned down, {answer.valid[~answer.favourable].mean():.0%} of them have a way")
print(answer.letters()[0])

# %% [markdown]
# **What to remember.**
#
# - Reasons are for the decision that was made, in order, and in the applicant's own columns. If fewer than four features count for
#   it, fewer are named.
# - Hardening has no guarantee; an audit measures what attacks find. The private model has a guarantee for one record.
# - The lender and its lawyers must judge whether such reasons satisfy the law.
#
# Next: [recourse](../recourse.md), [letters](../letters.md), [budgets](../ledger.md), [tables and models of scikit-learn](../certificate.md#tables-and-models-of-scikit-learn).
