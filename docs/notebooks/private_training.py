# %% [markdown]
# # Private training: from a privacy budget to a certificate
#
# Hardening makes explanations tell less, and an audit shows how much less. Neither is a proof. Differential privacy (DP) is
# one. In this notebook you
#
# 1. take a network that was trained on public data and fine-tune it on private records, within a budget,
# 2. read the statement that comes with it, and test it with canaries,
# 3. audit the model and get a certificate *by guarantee*,
# 4. load the certified explainer.
#
# The digits 5 to 9 of scikit-learn's data set play the public data, the digits 0 to 4 the private records. It takes about
# two minutes on two busy cores.

# %%
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

digits = load_digits()
x = torch.tensor(digits.images[:, None] / 16, dtype=torch.float32)
y = torch.tensor(digits.target)
public = y >= 5
member = np.random.default_rng(0).random(int((~public).sum())) < 0.5  # a coin flip for each private record
private_x, private_y = x[~public], y[~public]
print(len(private_x), "private records, of which the model may see", int(member.sum()))

# %% [markdown]
# ## A start from public data
#
# DP training adds noise to every step, and noise costs accuracy. The fewer weights have to be learnt from private records,
# the less it costs. So the convolutions come from the public digits, and only the last layer will be trained privately.

# %%
torch.manual_seed(0)
body = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU(),
    nn.Flatten(), nn.Linear(1024, 64), nn.Tanh(),
)  # fmt: skip
pretraining = nn.Sequential(body, nn.Linear(64, 5))
optimizer = torch.optim.Adam(pretraining.parameters(), lr=2e-3)
for _ in range(15):
    for batch in torch.randperm(int(public.sum())).split(64):
        optimizer.zero_grad()
        nn.functional.cross_entropy(pretraining(x[public][batch]), y[public][batch] - 5).backward()
        optimizer.step()

# %% [markdown]
# ## Fine-tune within a budget
#
# `epsilon` bounds how well *anybody* can tell two training sets apart that differ in one record, whatever he knows or tries.
# What "differ" means is up to you. `adjacency="substitute"` replaces a record by any other one, so it protects what a record
# says. The weaker `add_remove` protects only whether the record was there. The same training has both numbers, and safexplain
# always reports them together.

# %%
from safexplain.dp import DPFineTuner

head = nn.Linear(64, 5)
nn.init.zeros_(head.weight)
nn.init.zeros_(head.bias)
tuner = DPFineTuner(
    nn.Sequential(body, head),
    (private_x[member], private_y[member]),
    epsilon=2.0,
    delta=1e-5,
    adjacency="substitute",
    trainable="head",
    epochs=30,
    batch_size=150,
    optimizer="sgd",
    lr=1.0,
)
trained = tuner.fit()
model = trained.model.eval()
right = (model(private_x).argmax(1) == private_y).numpy()
print(f"accuracy on digits that it has not seen: {right[~member].mean():.0%} (guessing: 20%)")
print(trained.statement.epsilons)

# %% [markdown]
# ## The statement
#
# A model without its guarantee in writing has none. The statement holds the mechanism and all of its parameters, both epsilons
# follow from them, and it names the weights that it is about. It also says what is **not** protected:

# %%
trained.statement.save("privacy.json")
card = trained.statement.to_markdown()
print(card[card.index("Not protected") : card.index("Assumed")].rstrip())

# %% [markdown]
# ## Does the code keep its promise?
#
# Accounting is arithmetic: it knows nothing about a bug in the training. The *white box* watches the steps of the training, on
# the data and on data with one record replaced, and checks what the mechanism promises of each: how much a record adds, the noise, the
# batches, and that nothing else of a record reaches the model. *Canaries* look from outside: the training is run many
# times, in half of the runs with one record replaced by one that is made to stand out. How well an observer tells the two kinds
# of runs apart is a lower bound on epsilon, and a bound above the claim refutes it.

# %%
from safexplain.audit.canaries import audit_training

print(audit_training(tuner, "white-box").sentence)
canaries = audit_training(tuner, runs=200)
print(canaries.sentence)

# %% [markdown]
# Only the white box says "as claimed". The canaries' bound stays below the claim of 2 for a substituted record, which does not prove
# that the claim is kept: they say themselves what they would have found. More runs, or a stronger canary, find smaller
# epsilons. [Canaries](../canaries.md) shows more of them.
#
# ## The audit
#
# The statement promises something about *every* attack, so the verdict does not have to wait for one. An audit that is given
# the statement works out what any attacker can find at most. If the policy allows that much, the certificate is by guarantee,
# and no reference models are needed:

# %%
from safexplain import HardenedIG, Hardening
from safexplain.audit import AuditOptions, Policy, Population, audit

run = audit(
    model,
    Population.of(private_x, private_y),
    member=member,
    references=0,
    explainer=HardenedIG,
    arguments={"n_steps": 10},
    hardening=Hardening.recommended(),
    policy=Policy(patience=(1, 5)),
    options=AuditOptions(privacy=trained.statement),
)
print(run.verdict)
print(run.result.sentence)

# %% [markdown]
# The policy is nearly the default one: at a false-positive rate of 1 %, an attacker may find at most 3 % of the members. On the command
# line the same is
#
#     safexplain audit model.pt2 --data data.npz --privacy privacy.json
#
# ## Load it

# %%
run.save("run")
explainer = HardenedIG.from_certificate(model, "run/certificate.json")
released = explainer.attribute(private_x[:2], target=model(private_x[:2]).argmax(1))
print(tuple(released.shape), "of", explainer.hardening.clip)

# %% [markdown]
# **What to remember.**
#
# - The guarantee is about one record of the fine-tuning data. It says nothing about the public data of the start:
#   [attacks find its members](../pretraining.md) through the fine-tuned model.
# - Several records of one person need [`groups=`](../differential-privacy.md#records-of-one-person).
# - Every further training on the same records spends budget again.
#
# Next: [differential privacy in full](../differential-privacy.md), or [letters from a private credit model](credit.md).
