# %% [markdown]
# # Images: from a saliency map to a certificate
#
# If you serve an image classifier whose answers include a saliency map, this notebook shows how to
#
# 1. check by eye whether the maps reveal who was in the training set,
# 2. harden them by changing one import,
# 3. audit the result,
# 4. load exactly what was audited in production.
#
# It uses the 1,797 handwritten digits of scikit-learn and takes about three minutes on two cores.

# %%
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

digits = load_digits()
order = np.random.default_rng(0).permutation(len(digits.target))
x = torch.tensor(digits.images[order][:, None] / 16, dtype=torch.float32)
y = torch.tensor(digits.target[order])
print(tuple(x.shape))

# %% [markdown]
# ## An overfitted network
#
# The network trains on a random half of the images, its *members*. The other half are non-members from the same source. If the two
# halves differed in anything else, an attack could read that difference instead of the leak.

# %%
member = np.random.default_rng(1).random(len(x)) < 0.5


def build(seed=0):
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def train(net, x, y):
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(30):
        for batch in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[batch]), y[batch]).backward()
            optimizer.step()
    return net.eval()


torch.manual_seed(0)
net = train(build(), x[member], y[member])
right = (net(x).argmax(1) == y).numpy()
print(f"accuracy: {right[member].mean():.0%} on members, {right[~member].mean():.0%} on others")

# %% [markdown]
# ## The import
#
# We explain the probability of the predicted class. `Probability` adds the softmax, because this network returns logits.

# %%
import captum.attr

from safexplain import HardenedIG, Probability

model, predicted = Probability(net), net(x).argmax(1)
native = captum.attr.IntegratedGradients(model).attribute(x, target=predicted, n_steps=20).detach()
hardened = HardenedIG(model).attribute(x, target=predicted, n_steps=20)
print(HardenedIG(model).hardening)

# %% [markdown]
# `HardenedIG` replaces `captum.attr.IntegratedGradients`, with the same arguments and the same shape. The recommended hardening
# releases *which* pixels count most for the class, and nothing about how much. Users of the API see the second row before and the
# third row after hardening:

# %%
# Figure: Five digits, their native integrated gradients and the pixels that the hardened explainer names
from matplotlib import pyplot as plt

from safexplain.explain import show_set

fig, axes = plt.subplots(3, 5, figsize=(7, 4.4), layout="constrained")
for column, i in enumerate(np.flatnonzero(~member)[:5]):
    span = native[i].abs().max()
    axes[0, column].imshow(x[i, 0], cmap="gray")
    axes[1, column].imshow(native[i, 0], cmap="RdBu_r", vmin=-span, vmax=span)
    show_set(x[i], hardened[i], axes[2, column])
for row, name in zip(axes, ("image", "native", "hardened"), strict=True):
    row[0].set_ylabel(name)
    for ax in row:
        ax.set(xticks=[], yticks=[])

# %% [markdown]
# ## Do the native maps leak?
#
# A network is more confident on images that it has trained on. Its gradients there are small, and so are the maps. Here is the size of
# each map:

# %%
# Figure: Histogram of the L1 norm of the maps of members and of others, on a logarithmic axis
from sklearn.metrics import roc_auc_score

maps = captum.attr.InputXGradient(model).attribute(x.clone().requires_grad_(), target=predicted).detach()
size = maps.abs().sum((1, 2, 3)).numpy()
print(f"smaller map = member: AUC {roc_auc_score(member, -size):.2f} (0.5 is guessing)")

fig, ax = plt.subplots(figsize=(6, 2.6), layout="constrained")
bins = np.geomspace(1e-7, 10, 40)
ax.hist(np.clip(size[~member], 1e-7, None), bins, alpha=0.6, label="others", color="#3f8fd2")
ax.hist(np.clip(size[member], 1e-7, None), bins, alpha=0.6, label="members", color="#e8743b")
ax.set(xscale="log", xlabel="sum of the map's absolute values", ylabel="images")
_ = ax.legend()

# %% [markdown]
# The two distributions nearly coincide, and this attack is hardly better than guessing. But it is crude. A determined attacker trains
# *reference models* like yours, with and without each image, and queries each image many times with tiny changes. The audit does the
# same.
#
# ## The audit
#
# First, define what counts as a leak. Here, at a false-positive rate of 5 %, explanations may reveal at most 2 points more of the
# members than the predicted labels alone, even with 20 queries per image. These terms are mild to keep the notebook short. The default
# is 200 queries at 1 % false positives, which needs more images and reference models.

# %%
from safexplain import HardenedInputXGradient, Hardening
from safexplain.audit import Policy, Population, Recipe, audit

policy = Policy(fpr=0.05, max_tpr=0.07, confidence=0.9, patience=(1, 20), references=8, reason="a short notebook")
run = audit(
    net,
    Population.of(x, y),
    Recipe(optimizer="adam", lr=3e-3, epochs=30, batch_size=32),  # how the network was trained
    build=build,
    member=member,
    explainer=HardenedInputXGradient,
    hardening=Hardening.recommended(),
    references=8,
    policy=policy,
)
print("native maps:  ", run.native.verdict)
print("hardened maps:", run.verdict)

# %% [markdown]
# The audit runs the same attacks on the native and on the hardened maps. For each, this prints the strongest attack and how many
# points it adds to the labels:

# %%
for name, judged in (("native", run.native), ("hardened", run.result)):
    best = judged.strongest
    low, high = judged.added(best)
    print(f"{name:9} {best.title}: {100 * low:+.1f} to {100 * high:+.1f} points")

# %% [markdown]
# The native maps looked harmless, but may let a better attacker find 5 more members in a hundred. The policy allows 2. Since the
# leak is not proven either, the verdict is *inconclusive*, and nothing is certified. The hardened maps add nothing. The report also
# measures how useful they still are:

# %%
utility = run.utility
print(f"{utility.top_overlap:.0%} of the top tenth of the pixels are still named")

# %% [markdown]
# ## The certificate
#
# `save` writes a report for people (`report.html`) and a certificate for machines. The certificate contains the digests of the weights,
# the explainer, the hardening, the policy, and all counts from which the verdict follows.

# %%
folder = run.save("run")
print(sorted(path.name for path in folder.iterdir()))

# %% [markdown]
# ## In production
#
# Production loads the hardening that was audited:

# %%
explainer = HardenedInputXGradient.from_certificate(net, "run/certificate.json")
released = explainer.attribute(x[:3], target=net(x[:3]).argmax(1))
print(tuple(released.shape), released.unique().tolist())

# %% [markdown]
# Any other network is refused, including the same one after more training:

# %%
from safexplain.errors import CertificateError

try:
    HardenedInputXGradient.from_certificate(train(build(1), x[:100], y[:100]), "run/certificate.json")
except CertificateError as error:
    print(str(error).split(":")[0])

# %% [markdown]
# **What this certifies.** With eight reference models and 20 queries per image, these attacks gained no more than the policy allows.
# This is no proof against future attacks. If you need one, train with differential privacy:
# [Private training](private_training.md).
#
# Next: [serve the certified explainer](serving.md), or [choose another hardening](../hardening.md).
