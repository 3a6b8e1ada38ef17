"""Does a DP-SGD loop of one's own keep its epsilon? A right one, and one whose noise is not scaled.

Breast cancer diagnoses (scikit-learn), logistic regression in 20 full-batch steps. The white box watches the steps of
each loop, and canaries compare 200 trainings.
"""

import torch
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler

from safexplain.audit.canaries import CanaryProbe, Claim, WhiteBox, add_noise
from safexplain.dp import Steps

CLIP, NOISE, STEPS = 0.5, 6.0, 20


def loop(dataset, generator, step, std):
    x, y = (torch.stack(part) for part in zip(*dataset, strict=True))
    model = torch.nn.Linear(x.shape[1], 2)
    weight = torch.zeros(2, x.shape[1] + 1)
    rows = torch.cat([x, torch.ones(len(x), 1)], 1)
    for _ in range(STEPS):
        residual = (rows @ weight.T).softmax(1) - torch.nn.functional.one_hot(y, 2)
        norms = residual.norm(dim=1) * rows.norm(dim=1)
        clipped = (residual * (CLIP / norms).clamp(max=1)[:, None]).T @ rows
        noise = std * torch.randn(weight.shape, generator=generator)
        weight -= 2.0 * step(clipped, noise, range(len(x))) / len(x)
    with torch.no_grad():
        model.weight.copy_(weight[:, :-1])
        model.bias.copy_(weight[:, -1])
    return model


def right(dataset, generator, step=add_noise):
    return loop(dataset, generator, step, std=NOISE * CLIP)


def wrong(dataset, generator, step=add_noise):
    return loop(dataset, generator, step, std=CLIP)  # the multiplier is forgotten


bunch = load_breast_cancer()
x = torch.tensor(StandardScaler().fit_transform(bunch.data), dtype=torch.float32)[:100]
y = torch.tensor(bunch.target)[:100]
claim = Claim(Steps(NOISE, sample_rate=1.0, steps=STEPS, sampling="full-batch"), delta=1e-5)
for train in (right, wrong):
    print(f"{train.__name__}: {WhiteBox(train, (x, y), claim, clip=CLIP).run().sentence}")
    found = CanaryProbe(train, (x, y), claim=claim, scenario="mislabelled", runs=200).run()
    print(f"{train.__name__}: {found.sentence}")
