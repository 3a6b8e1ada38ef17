"""Paper C's Figure 3: heads fine-tuned with DP on features of CIFAR-10, epsilon against steps for four canaries.

"Beyond Membership" (Pradhan et al., 2511.21804): the last layer of a pretrained network, 500 images (50 of each class),
DP-SGD, T = 500, C = 2, learning rate .001, delta 1e-5, the noise for epsilon 10 under substitution, q = 1, 1/4 and
1/16, audited every 25 steps, 2,500 runs of each of three repeats. The paper's network is a ViT-B/16 of ImageNet-21k,
here it is a MobileNet v2 of ImageNet whose 1,280 features are standardised by the images that are not trained on.

Two tasks: "10 classes", and "one logit" (cats and dogs, 250 images of each), whose runs are ten times cheaper. The
natural canary is chosen from images that are not trained on. By default there are 600 runs of the first and 2,500 of
the second, once, for a CPU; `--full` takes the paper's sizes.

    python -m audit.suites.paper_c_canaries.figure3 [--runs N] [--repeats N] [--device cuda] [--full] [--quick]
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from safexplain.dp.heads.features import features

from ...shared.run import Progress, finish, load, parser
from ..dp_attacks.heads import Classifier
from ..third_party.suite import third_party
from .runs import add_arguments, report, weak
from .tasks import Task, Training

NETS = {"full": "mobilenet_v2_1.0_224_imagenet", "quick": "mobilenet_v1_0.25_128_imagenet"}
RATES = (1.0, 0.25, 0.0625)
SCENARIOS = ("gradient", "crafted", "mislabelled", "natural")
PAIR = (3, 5)
"""Cats and dogs."""
PUBLISHED = (
    "Gradient canaries give the tightest epsilon, above the add/remove epsilon by accounting, close to that under"
    " substitution (6.2.1).",
    "All canaries exceed the add/remove epsilon at large sample rates (6.2).",
    "Canaries in input space are weaker at later steps and at small sample rates (6.2.2).",
    "R = 2,500, three repeats, means with two standard errors; the figure prints no numbers.",
)


@dataclass(frozen=True)
class Size:
    """How large a run is.

    Args:
        net: weight file of the backbone.
        side: pixels that images are enlarged to.
        shots: images of each of ten classes; five times as many of each of two.
        auxiliary: images that are not trained on.
        steps: T.
        every: steps between audits.
        runs: of ten classes, and of one logit.
        repeats: likewise.
        rates: sample rates.
    """

    net: str = NETS["full"]
    side: int = 96
    shots: int = 50
    auxiliary: int = 3000
    steps: int = 500
    every: int = 25
    runs: tuple[int, int] = (600, 2500)
    repeats: tuple[int, int] = (1, 1)
    rates: tuple[float, ...] = RATES


FULL = Size(runs=(2500, 2500), repeats=(3, 3))
QUICK = Size(NETS["quick"], side=32, shots=4, auxiliary=60, steps=10, every=5, runs=(40, 40), repeats=(2, 1),
             rates=(1.0, 0.25))  # fmt: skip


def chosen(y: NDArray[np.integer[Any]], classes: Sequence[int], shots: int) -> NDArray[np.int64]:
    """The first `shots` rows of each class, in order."""
    return np.sort(np.concatenate([np.flatnonzero(y == c)[:shots] for c in classes]))


def standardised(seen: Tensor, public: Tensor) -> Tensor:
    """By mean and standard deviation of the public rows, one constant for all: gradients keep their directions."""
    return (seen - public.mean(0)) / public.std()


def tasks(options: Namespace) -> dict[str, Task]:
    """Both tasks, on features that are kept in the cache folder."""
    size = QUICK if options.quick else FULL if options.full else Size()
    arrays, source = load(options.data, "cifar10", ("x_train", "y_train"))
    y = arrays["y_train"].astype(np.int64)
    ten, two = chosen(y, range(10), size.shots), chosen(y, PAIR, 5 * size.shots)
    unused = np.setdiff1d(np.arange(len(y)), np.union1d(ten, two))[-size.auxiliary :]
    rows = np.concatenate([ten, two, unused])
    nets, files = third_party(options.data, (size.net,))
    net = nets[size.net]
    model = Classifier(net, size.side, net.convs[-1].in_channels).to(options.device).eval()
    images = torch.from_numpy((arrays["x_train"][rows].transpose(0, 3, 1, 2).astype(np.float32) - 128) / 128)
    seen = features(model, "head", images, batch_size=50, cache=options.cache / options.name, progress=Progress())
    seen, labels = standardised(seen, seen[-len(unused) :]), torch.from_numpy(y[rows])
    first, second = slice(len(ten)), slice(len(ten), len(ten) + len(two))
    is_pair = torch.isin(labels[-len(unused) :], torch.tensor(PAIR))
    spare, spare_labels = seen[-len(unused) :], labels[-len(unused) :]
    about = {"data": source, "weights": files, "side": size.side, "auxiliary": len(unused)}
    every = {"scenarios": SCENARIOS, "every": size.every, "about": about}
    softmax, logit = (Training(c, size.steps, lr=0.001, clip=2.0, bias=c > 2, one_logit=c == 2) for c in (10, 2))
    outside = (spare[is_pair], (spare_labels[is_pair] == PAIR[1]).long())
    return {
        "10 classes": Task(
            {
                q: softmax.setting("10 classes", seen[first], labels[first], q, (spare, spare_labels))
                for q in size.rates
            },
            runs=size.runs[0], repeats=size.repeats[0], **every,
        ),
        "one logit": Task(
            {
                q: logit.setting("one logit", seen[second], (labels[second] == PAIR[1]).long(), q, outside)
                for q in size.rates
            },
            runs=size.runs[1], repeats=size.repeats[1], **every,
        ),
    }  # fmt: skip


def missed(results: dict[str, Any]) -> list[str]:
    """What the paper says and these results do not."""
    return weak(results, ("gradient",), ("1", "0.25", "0.0625")) + weak(results, SCENARIOS[1:], ("1",))


def main(argv: list[str] | None = None) -> int:
    """Run the suite; 0 when it says what the paper says, 1 otherwise."""
    options = add_arguments(parser("canary_figure3", __doc__)).parse_args(argv)
    return report(options, tasks, PUBLISHED, missed)


if __name__ == "__main__":
    finish(main)
