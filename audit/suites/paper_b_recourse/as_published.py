"""Laplace recourse as published (Huang et al. 2023, arXiv 2308.04341): NOT private, and so no part of the package.

It is asked as the mechanisms of `safexplain.recourse` are, so that it can be compared with them; its answers have no
guarantee.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit

from safexplain._validate import check_number
from safexplain.dp.linear.classifier import noise_generator
from safexplain.errors import ConfigurationError
from safexplain.recourse.cost import EUCLIDEAN
from safexplain.recourse.solution import Floats, Solution, as_rows

WHY = (
    "Only the length of the answer is noised. Its direction is w/|w|, a function of the training data that one answer"
    " tells to machine precision: between neighbouring data sets, the event that an answer points along the weights of"
    " the first has the probability of an unfavourable decision and 0, so no finite epsilon holds; over several answers"
    " that probability tends to 1, so no delta below 1 does either. Step 4 uses the private"
    " weights again, which the post-processing theorem does not allow. Besides, epsilon is claimed by answer, without"
    " composition, and clamping makes most logits infinite at small epsilon (78 % at probability 1/2 and epsilon .5)"
)


@dataclass(eq=False)
class AsPublishedLaplace:
    """ "Laplace recourse" as published ("Differentially private recourse", section 4.2.2, steps 1 to 4): NOT private.

    Source: Huang et al. 2023, arXiv 2308.04341, section 4.2.2.

    1. p' = Pr(y = 1 | x) + Laplace(1 / epsilon). 2. p' is clamped to [0, 1]. 3. f' = log(p' / (1 - p')).
    4. x' = x + (s - f') w / |w|. What is added here: infinite f' are moved to the public ends +-score_bound and
    flagged as censored, and queries with f' >= s count as favourable.

    No formal statement holds. Counterexample: let neighbouring D and D' train to weights in different directions, as
    they do. Let A be the set of answers x + t w_D, t not 0. On D' its probability is 0, on D that of an unfavourable
    noised decision: at least 1/2 where Pr(y = 1 | x) <= 1/2, and close to 1 for one of several answers. So
    Pr[A on D] <= exp(epsilon) Pr[A on D'] + delta holds for no finite epsilon unless delta is as large. The Laplace
    noise has the right scale for p alone, which changes by at most 1.

    Args:
        published_formula: divide by |w| once, as published, which misses the target unless |w| = 1; False: by |w|^2.

    Raises:
        ConfigurationError: a model of other classes, or a value out of range.
    """

    model: Any  # fitted, with `coef_`, `intercept_` and two `classes_`
    epsilon: float = 1.0  # the claim, by answer; it holds for p' and for nothing that leaves
    classes: tuple[Any, Any] = (0, 1)  # pair (unfavourable, favourable) of labels
    target: float = 0.0  # s
    score_bound: float = 10.0  # public ends of f'
    published_formula: bool = True
    random_state: int = 0

    def __post_init__(self) -> None:
        check_number("epsilon", self.epsilon, above=0.0)
        check_number("score_bound", self.score_bound, above=0.0)
        self._noise = noise_generator(self.random_state)
        labels = np.asarray(self.model.classes_).tolist()
        if len(labels) != 2 or self.classes[1] not in labels:
            raise ConfigurationError(f"classes: expected the pair {labels} in either order, got {self.classes!r}")
        sign = 1.0 if labels[1] == self.classes[1] else -1.0
        self._weights: Floats = sign * np.asarray(self.model.coef_, dtype=np.float64).ravel()
        self._bias = sign * float(np.ravel(self.model.intercept_)[0])

    @property
    def claim(self) -> dict[str, Any]:
        """What is claimed, in the words of a guarantee: there is none."""
        return {
            "mechanism": f"Laplace recourse as published, claimed epsilon {self.epsilon:g} an answer",
            "is_private": False,
            "per": "answer",
            "epsilon": None,
            "delta": None,
            "adjacency": "substitute",
            "released": "a vector along the exact private weights, of noised length",
            "why": WHY,
        }

    def explain(self, x: ArrayLike) -> Solution:
        """Answers to (n, d) or (d,) queries; `valid` False where the published formula stops short of the target."""
        weights = self._weights
        rows = as_rows(x, len(weights))
        bound = float(self.score_bound)
        chance = expit(rows @ weights + self._bias) + self._noise.laplace(scale=1 / self.epsilon, size=len(rows))
        clamped = np.clip(chance, 0.0, 1.0)
        with np.errstate(divide="ignore"):
            score = np.clip(np.log(clamped) - np.log1p(-clamped), -bound, bound)
        favourable = score >= self.target
        length = float(np.linalg.norm(weights))
        divisor = length if self.published_formula else length**2
        gap = np.where(favourable, 0.0, self.target - score)
        change = gap[:, None] * (weights / divisor if length > 0 else weights)
        reached = rows + change
        valid = favourable | (score + change @ weights >= self.target - 1e-9 * bound)
        distance = EUCLIDEAN.distance(reached - rows)
        return Solution(rows, reached, valid, distance, score, favourable, np.abs(score) >= bound)
