"""The paper's Tables 4 and 5 on what is here: topics of DBpedia to pre-train on, a head for other texts on top.

The paper fine-tunes one public Transformer-XL, whose WikiText-103 everybody knows, and so can only train one classifier
for all points. Here an MLP on TF-IDF features is pre-trained on half of a pool of DBpedia abstracts, and a head is
fine-tuned on coarse topics of other abstracts, or on news (AG News). The vocabulary is of texts outside of the pool.
One classifier for all points is run as the paper runs it, beside the ratio for each point, which needs references that
were pre-trained with and without the point.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from safexplain.audit import FineTune, Population, Recipe, fine_tune, train_shadows
from safexplain.audit.asked import predict
from safexplain.audit.attacks import JointLikelihoodRatio, LabelLikelihoodRatio, LikelihoodRatio

from ...shared.run import Progress, load
from .evaluate import LIRA, Against, judged
from .metaclassifier import Metaclassifier
from .tasks import Size, accuracy

WORDS, HIDDEN, TOPICS = 1000, 128, 5
"""Words of the vocabulary, hidden units, and coarse topics: groups of three of the fourteen."""


def measure(folder: Path, size: Size, quick: bool, cache: Path, device: str, progress: Progress) -> dict[str, Any]:
    """Both tasks: {task: {"accuracy", "attacks"}}, and the pre-training."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    pages, source = load(folder, "dbpedia14k", ("x", "y"))
    news, other = load(folder, "agnews_test", ("x", "y"))
    (n, models), order = size.text, np.random.default_rng(0x7E).permutation(len(pages["y"]))
    pool, spare, tested = order[:n], order[n : 2 * n], order[2 * n : 3 * n]
    words = TfidfVectorizer(max_features=WORDS, stop_words="english", sublinear_tf=True)
    pages, news = ({k: np.asarray(v) for k, v in each.items()} for each in (pages, news))
    words.fit([str(t) for t in pages["x"][order[n:]]])

    def population(texts: Any, labels: Any) -> Population:
        seen = words.transform([str(t) for t in texts]).toarray()
        return Population.of(seen * WORDS**0.5, labels)

    def build(seed: int) -> nn.Module:
        return nn.Sequential(nn.Linear(WORDS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 14))

    known = population(pages["x"][pool], pages["y"][pool])
    recipe = Recipe(epochs=1 if quick else 30, batch_size=32)
    shadows = train_shadows(
        known, recipe, build=build, models=models, device=device, cache=str(cache), progress=progress
    )
    margins = predict(shadows, known, patience=(1,)).values
    head, many = Recipe(epochs=1 if quick else 20, batch_size=64, lr=3e-3), min(len(news["y"]) // 2, 2 * n)
    tasks = {
        "DBpedia, coarse topics": (
            population(pages["x"][spare], pages["y"][spare] // 3),
            population(pages["x"][tested], pages["y"][tested] // 3),
        ),
        "AG News": (
            population(news["x"][:many], news["y"][:many]),
            population(news["x"][many : 2 * many], news["y"][many : 2 * many]),
        ),
    }
    out: dict[str, Any] = {
        "pretraining": {
            "examples": n,
            "models": models,
            "accuracy": learned(known, margins["label"], shadows.membership),
            "attacks": judged({"LiRA": LIRA}, margins, shadows.membership, models),
        },
        "data": [source, other],
    }
    for name, (train, test) in tasks.items():
        tuned = fine_tune(shadows, FineTune(train, head), device=device, cache=str(cache), progress=progress)
        said = predict(tuned, known, patience=(1,), labels="foreign").values
        out[name] = {
            "accuracy": accuracy(tuned, test),
            "attacks": judged(against(models, size.learned[0]), said, tuned.membership, models),
        }
    return out


def against(models: int, turns: int) -> dict[str, Against]:
    """One classifier for all points with both numbers of neighbours, and what needs references of each point."""
    found = {"label": Against("label", LabelLikelihoodRatio())}
    for count in sorted({16, 32, models - 1}):
        if count >= models:
            continue
        for near in ("sqrt", "models"):
            attack = _First(count, Metaclassifier("knn", per_example=False, neighbours=near))
            found[f"one classifier for all, k = {near}, {count} references"] = Against("prediction", attack, turns)
    found["ratio"] = Against("prediction", LikelihoodRatio("identity"))
    found["joint ratio"] = Against("prediction", JointLikelihoodRatio("identity"))
    return found


class _First:
    """An attack with the first so many references."""

    def __init__(self, count: int, attack: Metaclassifier) -> None:
        self.count, self.attack = count, attack

    def __call__(self, target: Any, shadows: Any, membership: Any) -> Any:
        return self.attack(target, shadows[: self.count], membership[: self.count])


def learned(pool: Population, labels: Any, membership: Any) -> dict[str, float]:
    """Share of right predictions on members and on others."""
    right = labels == pool.y.numpy()
    return {"members": float(right[membership].mean()), "others": float(right[~membership].mean())}
