# %% [markdown]
# # Private training: from a privacy budget to a certificate
#
# If you need a guarantee rather than an audit, train with differential privacy (DP). In this notebook you
#
# 1. fine-tune a publicly trained network on private records, within a budget,
# 2. read the privacy statement, and test the training with canaries,
# 3. audit the model and get a certificate *by guarantee*,
# 4. load the certified explainer.
#
# The digits 5 to 9 of scikit-learn's data set stand in for public data, the digits 0 to 4 for private records. The notebook takes about
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
# DP adds noise to every training step, which costs accuracy. The fewer weights are trained on private records,
# the less it costs. So the convolutions come from the public digits, and only the last layer is trained privately.

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
# `epsilon` bounds how well *any* attacker can distinguish two training sets that differ in one record.
# `adjacency="substitute"` means that the record is replaced by any other one, which protects its content.
# The weaker `add_remove` protects only whether the record was there. safexplain always reports both numbers.

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
# The statement contains the mechanism with all its parameters, from which both epsilons are computed, and the digest of the weights. It also
# lists what is **not** protected:

# %%
trained.statement.save("privacy.json")
card = trained.statement.to_markdown()
print(card[card.index("Not protected") : card.index("Assumed")].rstrip())

# %% [markdown]
# ## Test the training code
#
# The accountant cannot see a bug in the training code. The *white box* watches the steps of the training, on
# the data and on data with one record replaced, and checks how much a record adds, the noise, the
# batches, and that nothing else about a record reaches the model. *Canaries* see only the finished models: the training is repeated many
# times, half of them with one record replaced by a conspicuous one. How well an attacker distinguishes the two kinds
# of models gives a lower bound on epsilon. A bound above the claim refutes it.

# %%
from safexplain.audit.canaries import audit_training

print(audit_training(tuner, "white-box").sentence)
canaries = audit_training(tuner, runs=200)
print(canaries.sentence)

# %% [markdown]
# Only the white box can report "as claimed". A canary bound below the claim of 2 does not prove the claim, and here the canaries are too weak to
# find anything. More runs or a stronger canary detect smaller epsilons ([Canaries](../canaries.md)).
#
# ## The audit
#
# The statement bounds *every* attack. An audit with a statement computes the most that any attacker can find. If the policy allows that much,
# the certificate is by guarantee, and no reference models are needed:

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
# The policy has the default limits: at a false-positive rate of 1 %, an attacker may find at most 3 % of the members. On the command
# line, this is
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
# - The guarantee covers one record of the fine-tuning data, not the public data of the start:
#   [attacks find its members](../pretraining.md) through the fine-tuned model.
# - Several records of one person need [`groups=`](../differential-privacy.md#records-of-one-person).
# - Every further training on the same records spends budget again.
#
# Next: [differential privacy](../differential-privacy.md), or [letters from a private credit model](credit.md).
