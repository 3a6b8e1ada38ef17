"""The paper's Figure 3, where everything is known: a mean that is released after "pre-training" and "fine-tuning".

    x_1 .. x_n ~ N(mu, I_d),  y_1 .. y_m ~ N(mu + nu, I_d),  released: mu_hat = alpha mean(x) + (1 - alpha) mean(y)

The attacker knows E(mu_hat) and mu, and reads <mu_hat - E(mu_hat), c - mu> for a challenge c (section 4.1, after
Sankararaman et al. 2009). The challenger chooses the alpha of least squared error for mu + nu (Lemma A.2).

Two slips in the paper, neither of which its figure has. Lemma A.3 prints exp where its proof, and Lemma 4.2, have erf:
(1 + exp(x)) / 2 is at least 1 for every x >= 0, which no AUC can be above. And Lemma 4.1's variance of the statistic of
a member, d (a + 2 alpha^2 / n^2) with a = alpha^2 / n + (1 - alpha)^2 / m, is its second moment about 0:
the variance is d (a + alpha^2 / n^2). For n = 1,000 the AUC differs in the fifth digit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from safexplain.audit import Signals
from safexplain.audit.attacks import LikelihoodRatio
from safexplain.verdict.stats import roc

from ...shared.run import rounded

PUBLISHED = {5.0: (0.77, 0.96), 10.0: (0.51, 0.78)}
"""Length of nu -> alpha and AUC as section 4.1 reads them off its figure."""


@dataclass(frozen=True)
class Linear:
    """One setting of the game.

    Args:
        d: dimension.
        n: records that are pre-trained on.
        m: records that are fine-tuned on.
        shift: length of nu, by how much the second mean differs from the first.
    """

    d: int = 12_000
    n: int = 1000
    m: int = 100
    shift: float = 5.0

    @property
    def alpha(self) -> float:
        """The weight of the pre-training data that makes the squared error for mu + nu least (Lemma A.2)."""
        return self.d / (self.m * (self.shift**2 + self.d / self.n) + self.d)

    def error(self, alpha: float) -> float:
        """E |mu_hat - (mu + nu)|^2 at another weight."""
        return self.noise(alpha) * self.d + alpha**2 * self.shift**2

    def noise(self, alpha: float) -> float:
        """Variance of a coordinate of mu_hat."""
        return alpha**2 / self.n + (1 - alpha) ** 2 / self.m

    def argument(self, alpha: float) -> float:
        """What Lemma 4.2 takes the error function of."""
        return alpha * self.d / (2 * math.sqrt(self.d * (self.noise(alpha) * self.n**2 + alpha**2)))

    def auc(self, alpha: float) -> float:
        """Lemma 4.2: the AUC, the statistic taken as normal."""
        return (1 + math.erf(self.argument(alpha))) / 2

    def auc_as_printed(self, alpha: float) -> float:
        """Lemma A.3 as it is printed, with exp; never below 1."""
        return (1 + math.exp(self.argument(alpha))) / 2

    def auc_exact(self, alpha: float) -> float:
        """The same as `auc` with the variance that the statistic of a member really has."""
        spread = self.d * (2 * self.noise(alpha) + (alpha / self.n) ** 2)
        return (1 + math.erf(alpha * self.d / self.n / math.sqrt(2 * spread))) / 2

    def play(self, targets: int, challenges: int, references: int, seed: int = 0) -> dict[str, Any]:
        """Play the game with real draws: each target draws its n + m records and is asked about members and others.

        The product's attack knows neither E(mu_hat) nor mu: it compares <mu_hat, c> with what releases on fresh records
        say, half of them with c among the n. Their means are drawn from the law of the mean, which an attacker knows;
        mu is 0, as the statistic moves with c - mu alone.

        Args:
            targets: releases that are attacked.
            challenges: members, and as many others, asked about in each.
            references: releases that the attacker draws.
            seed: of everything.

        Returns:
            Of each attack the mean AUC over targets, with a 95 % interval from how they differ.
        """
        rng, alpha = np.random.default_rng([seed, round(1000 * self.shift)]), self.alpha
        known, ratio = [], []
        for _ in range(targets):
            released, inside = self._released(rng, alpha)
            others = rng.standard_normal((challenges, self.d), dtype=np.float32)
            asked = np.concatenate([inside[:challenges], others])
            member = np.arange(2 * challenges) < challenges
            known.append(roc((asked @ (released - (1 - alpha) * self._nu())).astype(np.float64), member).auc)
            said = self._signals(rng, alpha, released, asked, member, references)
            scores = LikelihoodRatio("identity")(
                said.values["product"][0], said.values["product"][1:], said.membership[1:]
            )
            ratio.append(roc(scores, member).auc)
        return {name: _mean(np.array(found)) for name, found in (("known means", known), ("ratio", ratio))}

    def _nu(self) -> NDArray[np.float32]:
        """Any vector of this length."""
        return np.full(self.d, self.shift / math.sqrt(self.d), np.float32)

    def _released(self, rng: np.random.Generator, alpha: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """mu_hat of freshly drawn records, and those that were pre-trained on."""
        x = rng.standard_normal((self.n, self.d), dtype=np.float32)
        y = rng.standard_normal((self.m, self.d), dtype=np.float32) + self._nu()
        return alpha * x.mean(0) + (1 - alpha) * y.mean(0), x

    def _signals(
        self,
        rng: np.random.Generator,
        alpha: float,
        released: NDArray[np.float32],
        asked: NDArray[np.float32],
        member: NDArray[np.bool_],
        references: int,
    ) -> Signals:
        """<mu_hat, c> of the target, and of releases of which a random half, for each c, had c among their n."""

        def means(records: int) -> NDArray[np.float32]:
            return rng.standard_normal((references, self.d), dtype=np.float32) / np.float32(math.sqrt(records))

        inside = rng.random((references, len(asked))) < 0.5
        base = alpha * (self.n - 1) / self.n * means(self.n - 1) + (1 - alpha) * (means(self.m) + self._nu())
        own = (asked.astype(np.float64) ** 2).sum(1)
        other = rng.standard_normal(inside.shape) * np.sqrt(own)
        product = base @ asked.T + alpha / self.n * np.where(inside, own, other)
        values = np.concatenate([(asked @ released)[None], product]).astype(np.float64)
        return Signals(np.concatenate([member[None], inside]), {"product": values}, meta={"targets": [0]})


def _mean(found: NDArray[np.float64]) -> dict[str, float]:
    error = float(student.ppf(0.975, len(found) - 1)) * float(found.std(ddof=1)) / math.sqrt(len(found))
    value = float(found.mean())
    return {"auc": value, "low": value - error, "high": value + error}


def figure3(quick: bool) -> dict[str, Any]:
    """Both settings of the figure: what the lemmas say, what the paper reads off, and what the game gives."""
    out = {}
    for shift, (alpha, auc) in PUBLISHED.items():
        linear = Linear(shift=shift)
        targets, challenges, references = (2, 40, 40) if quick else (30, 400, 256)
        out[f"{shift:g}"] = {
            "alpha": linear.alpha,
            "auc": linear.auc(linear.alpha),
            "auc_exact_variance": linear.auc_exact(linear.alpha),
            "auc_as_printed": linear.auc_as_printed(linear.alpha),
            "published": {"alpha": alpha, "auc": auc},
            "targets": targets,
            "challenges": 2 * challenges,
            "references": references,
            **linear.play(targets, challenges, references),
        }
    result: dict[str, Any] = rounded(out)
    return result
