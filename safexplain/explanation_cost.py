"""What a noised explanation costs in differential privacy: mu of the Gaussian mechanism, for a `safexplain.ledger`.

A hardened explanation is a number of coordinates that clip and mask confine to a bounded set K, whatever the training
data, plus Gaussian noise on each. Replacing any part of the training data moves the explanation from one point of K to
another, so that its L2 sensitivity is at most the diameter D of K, and one answer is mu-GDP with mu = D / std (Dong,
Roth and Su 2019, arXiv 1905.02383, Theorem 1). Rounding to the grid is post-processing. Nothing is assumed about the
model.

At noise under which a map can still be read, mu is in the tens or hundreds and the epsilon that follows is vacuous:
such noise protects empirically, as far as an audit shows, and not formally.
"""

from __future__ import annotations

import math

from safexplain._validate import check_whole
from safexplain.errors import RefusedError
from safexplain.hardening.clips import RangeClip
from safexplain.hardening.hardening import Hardening
from safexplain.hardening.masks import TopKMask
from safexplain.ledger.releases import Gaussian


def explanation_release(hardening: Hardening, features: int) -> Gaussian:
    """The release that one hardened explanation is, to be charged once for each query that is new.

    Asking again with the same key gives the same answer, which costs nothing. The noise is a keyed pseudo-random
    function: the statement holds towards whoever does not know the key.

    Args:
        hardening: with a clip and noise.
        features: d, the numbers in one explanation.

    Returns:
        `Gaussian(mu)`, mu the diameter of what clip and mask leave over the noise's standard deviation.

    Raises:
        RefusedError: without a clip or without noise there is no guarantee of any size.
        ConfigurationError: features is not a whole number of at least 1.

    Example:
        >>> from safexplain import GaussianNoise, Hardening, RangeClip
        >>> explanation_release(Hardening(clip=RangeClip(-1, 1), noise=GaussianNoise(0.1, key=bytes(32))), 10).mu
        63.245553203367585
    """
    check_whole("features", features, 1)
    std = hardening.noise_std(features)
    if hardening.clip is None or std == 0:
        missing, add = ("clip", "a clip") if hardening.clip is None else ("noise", "GaussianNoise")
        raise RefusedError(
            f"a hardening without {missing} has no differential privacy guarantee that a ledger could charge; add"
            f" {add}, or do not charge it and rely on the audit"
        )
    return Gaussian(diameter(hardening, features) / std)


def diameter(hardening: Hardening, features: int) -> float:
    """Largest L2 distance between two explanations after clip and mask, before noise.

    Of a norm c: 2 c. Of a range [a, b], k coordinates of d kept: coordinates that both keep differ by at most b - a,
    and those that one keeps are at most max(|a|, |b|) from the other's zero. With o of them in common the square of
    the distance is at most o (b - a)^2 + 2 (k - o) max(|a|, |b|)^2, largest at o = k or at o = max(0, 2 k - d).

    Args:
        hardening: with a clip.
        features: d.
    """
    clip, d = hardening.clip, features
    if not isinstance(clip, RangeClip):
        assert clip is not None
        return 2 * clip.scale(d) * math.sqrt(d)  # the norm that the clip allows
    low, high = (min(clip.low, 0.0), max(clip.high, 0.0)) if hardening.mask is not None else (clip.low, clip.high)
    kept = hardening.mask.kept(d) if isinstance(hardening.mask, TopKMask) else d
    common = max(0, 2 * kept - d)
    largest = max(low**2, high**2)
    return math.sqrt(max(o * (high - low) ** 2 + 2 * (kept - o) * largest for o in (kept, common)))
