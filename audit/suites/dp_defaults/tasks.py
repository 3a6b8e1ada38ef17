"""Three classification problems of which a linear head trains: images, texts and a table."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from safexplain.dp.heads import features

from ...shared.run import Progress, load
from ..paper_c_canaries.images import FULL, QUICK, through

WORDS, TOPICS = 20_000, 256
"""Of the public texts: words that are counted, and directions that are kept."""

LOW = np.array([17, 0, 1, 0, 0, 1], np.float32)
HIGH = np.array([90, 1_500_000, 16, 100_000, 4_400, 99], np.float32)
"""Ranges of Adult's numbers, as the census codes them and not as these records have them."""


@dataclass(frozen=True, eq=False)
class Task:
    """Records, which are drawn anew for each repetition.

    Args:
        train, validation, test: records of each part.
    """

    x: Tensor  # (n, d) inputs of the head
    y: Tensor  # (n,) class indices
    classes: int  # how many
    train: int
    validation: int
    test: int
    about: dict[str, Any]  # what is recorded: data, weights

    def parts(self, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        """Rows that are trained on, that choose, and that are reported."""
        order = torch.from_numpy(np.random.default_rng([0xDEF, seed]).permutation(len(self.y)))
        first, second = self.train, self.train + self.validation
        return order[:first], order[first:second], order[second : second + self.test]


def cifar10(options: Namespace) -> Task:
    """Features of CIFAR-10 images, unscaled, as a frozen network of ImageNet hands them to its head."""
    sizes = (400, 100, 100) if options.quick else (8000, 2000, 4000)
    arrays, source = load(options.data, "cifar10", ("x_train", "y_train"))
    images = arrays["x_train"][: sum(sizes)].transpose(0, 3, 1, 2).astype(np.float32)
    model, pixels, net = through(options, QUICK if options.quick else FULL, torch.from_numpy(images))
    folder, progress = options.cache / "dp_defaults", Progress("cifar10: ")
    x = features(model.eval(), "head", pixels, batch_size=100, cache=folder, progress=progress)
    return Task(x, _labels(arrays["y_train"][: sum(sizes)]), 10, *sizes, {"data": source, **net})


def agnews(options: Namespace) -> Task:
    """Titles and first lines of news, embedded by a latent semantic analysis of other, public texts (DBpedia), to norm
    1 as most embeddings are."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import Normalizer

    sizes = (400, 100, 100) if options.quick else (5000, 800, 1800)
    pages, public = load(options.data, "dbpedia14k", ("x",))
    news, source = load(options.data, "agnews_test", ("x", "y"))
    words = TfidfVectorizer(max_features=WORDS, min_df=2, stop_words="english", sublinear_tf=True)
    embed = make_pipeline(words, TruncatedSVD(TOPICS, random_state=0), Normalizer())
    embed.fit([str(t) for t in pages["x"]])
    x = torch.from_numpy(embed.transform([str(t) for t in news["x"]]).astype(np.float32))
    return Task(x, _labels(news["y"]), 4, *sizes, {"data": source, "embedded_by": public})


def adult(options: Namespace) -> Task:
    """Income above 50,000 dollars: numbers by their public ranges to [0, 1] (gains and losses by logarithms), a column
    for each category."""
    sizes = (400, 100, 100) if options.quick else (20_000, 5_000, 15_000)
    arrays, source = load(options.data, "adult", ("x_num", "x_cat", "y"))
    numbers, low, high = arrays["x_num"].astype(np.float32).copy(), LOW.copy(), HIGH.copy()
    numbers[:, 3:5], high[3:5] = np.log1p(numbers[:, 3:5]), np.log1p(high[3:5])
    coded = [np.eye(int(column.max()) + 1, dtype=np.float32)[column] for column in arrays["x_cat"].T.astype(int)]
    x = np.concatenate([(numbers - low) / (high - low), *coded], axis=1)
    return Task(torch.from_numpy(x), _labels(arrays["y"]), 2, *sizes, {"data": source})


def _labels(y: NDArray[Any] | list[Any]) -> Tensor:
    return torch.from_numpy(np.asarray(y).astype(np.int64))


TASKS: dict[str, Callable[[Namespace], Task]] = {"cifar10": cifar10, "agnews": agnews, "adult": adult}
