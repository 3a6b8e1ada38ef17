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
from dataclasses import dataclass
from typing import Any

from ...shared.run import Run, finish
from . import images
from .images import Images
from .runs import FLAGS, report, weak
from .tasks import Task, Training

RATES = (1.0, 0.25, 0.0625)
SCENARIOS = ("gradient", "crafted", "mislabelled", "natural")
PUBLISHED = (
    "Gradient canaries give the tightest epsilon, above the add/remove epsilon by accounting, close to that under"
    " substitution (6.2.1).",
    "All canaries exceed the add/remove epsilon at large sample rates (6.2).",
    "Canaries in input space are weaker at later steps and at small sample rates (6.2.2).",
    "R = 2,500, three repeats, means with two standard errors; the figure prints no numbers.",
)


@dataclass(frozen=True)
class Size:
    """How large a run is."""

    images: Images = images.FULL  # which, and through what
    steps: int = 500  # T
    every: int = 25  # steps between audits
    runs: tuple[int, int] = (600, 2500)  # of ten classes, and of one logit
    repeats: tuple[int, int] = (1, 1)  # likewise
    rates: tuple[float, ...] = RATES  # sample rates


FULL = Size(runs=(2500, 2500), repeats=(3, 3))
QUICK = Size(images.QUICK, steps=10, every=5, runs=(40, 40), repeats=(2, 1), rates=(1.0, 0.25))


def tasks(options: Namespace) -> dict[str, Task]:
    """Both tasks, on features that are kept in the cache folder."""
    size = QUICK if options.quick else FULL if options.full else Size()
    found = images.sets(options, size.images)
    every = {"scenarios": SCENARIOS, "every": size.every, "about": found.about}
    softmax, logit = (Training(c, size.steps, lr=0.001, clip=2.0, bias=c > 2, one_logit=c == 2) for c in (10, 2))
    given = (
        ("10 classes", softmax, found.ten, found.ten_outside),
        ("one logit", logit, found.two, found.two_outside),
    )
    return {
        name: Task(
            {q: training.setting(name, *records, q, outside) for q in size.rates},
            runs=size.runs[i], repeats=size.repeats[i], **every,
        )
        for i, (name, training, records, outside) in enumerate(given)
    }  # fmt: skip


def missed(results: dict[str, Any]) -> list[str]:
    """What the paper says and these results do not."""
    return weak(results, ("gradient",), ("1", "0.25", "0.0625")) + weak(results, SCENARIOS[1:], ("1",))


def main(argv: list[str] | None = None) -> int:
    """Run the suite; 0 when it says what the paper says, 1 otherwise."""
    return report(Run("canary_figure3", __doc__, argv, **FLAGS), tasks, PUBLISHED, missed)


if __name__ == "__main__":
    finish(main)
