"""Lower bounds on epsilon from the counted errors of an attack."""

from __future__ import annotations

from safexplain._privacy_loss import SMALLEST_DELTA, Sampling
from safexplain.errors import InputError
from safexplain.verdict.stats.bound_methods import METHODS, BoundMethod, Errors, Method
from safexplain.verdict.stats.tradeoff import Family


def epsilon_from_errors(
    false_positives: int,
    negatives: int,
    false_negatives: int,
    positives: int,
    delta: float,
    method: BoundMethod = "clopper-pearson",
    *,
    confidence: float = 0.95,
    sample_rate: float = 1.0,
    steps: int = 1,
    sampling: Sampling | None = None,
) -> float:
    """Lower bound on epsilon from counted errors of an attack whose threshold these did not choose.

    Each error rate is taken at its Clopper-Pearson upper limit with half of 1 - confidence, so that both hold together.

    - "pld": the trade-off curve of the sampled Gaussian mechanism under substitution is inverted over the noise
      multiplier. It holds if the mechanism is as private as one of this sampling rate, steps and sampling with some
      noise. For a full batch it is "gdp".
    - "gdp": mu and then epsilon of the Gaussian mechanism (Nasr et al. 2023, arXiv 2302.07956). It assumes exact GDP,
      and where steps are few and batches nearly full it claims too much: 11.6 where 8.6 is true (one step, q = .9,
      noise .72; 25,000 runs), 3 % too much still with ten steps. With hundreds of steps it agrees with "pld".
    - "clopper-pearson": assumes nothing of the mechanism (Kairouz, Oh and Viswanath, arXiv 1311.0776, Theorem 2.1), and
      finds less than half of the epsilon of a Gaussian one.
    - "zanella-beguelin": as before, but a quantile of epsilon under Beta(errors + 1/2, others + 1/2) posteriors of both
      rates (Zanella-Beguelin et al. 2023, arXiv 2206.05199). A credible bound: with few runs, how often it is above
      the truth depends on the truth.

    Args:
        false_positives: runs of world b called a.
        negatives: runs of world b.
        false_negatives: runs of world a called b.
        positives: runs of world a.
        delta: in (0, 1); 0 is allowed for the last two methods.
        method: one of these.
        confidence: of the bound.
        sample_rate: q of the claimed mechanism.
        steps: of the claimed mechanism.
        sampling: of the claimed mechanism; None for "poisson", or a full batch where the sample rate is 1.

    Raises:
        InputError: counts, delta, confidence or method out of range.
        ConfigurationError: sample_rate, steps or sampling is.
    """
    errors = Errors(false_positives, negatives, false_negatives, positives, confidence)
    return checked_method(method, delta, confidence).bound(errors, delta, Family(sample_rate, steps, sampling))


def epsilon_ceiling(
    negatives: int,
    positives: int,
    delta: float,
    method: BoundMethod = "pld",
    *,
    confidence: float = 0.95,
    sample_rate: float = 1.0,
    steps: int = 1,
    sampling: Sampling | None = None,
) -> float:
    """The bound of an attack without any error: the most that so many counted runs can show.

    Args:
        negatives: counted runs of world b.
        positives: counted runs of world a.
        delta: as for `epsilon_from_errors`, as are the others.
        method: the same.
        confidence: the same.
        sample_rate: the same.
        steps: the same.
        sampling: the same.

    Raises:
        InputError: as for `epsilon_from_errors`.
        ConfigurationError: as there.
    """
    return epsilon_from_errors(
        0,
        negatives,
        0,
        positives,
        delta,
        method,
        confidence=confidence,
        sample_rate=sample_rate,
        steps=steps,
        sampling=sampling,
    )


def checked_method(name: str, delta: float, confidence: float) -> Method:
    """The method of this name.

    Raises:
        InputError: there is none, or delta or confidence is out of its range.
    """
    if name not in METHODS:
        raise InputError(f"method: expected one of {', '.join(METHODS)}, got {name!r}")
    if not 0 < confidence < 1:
        raise InputError(f"confidence lies in (0, 1), got {confidence!r}")
    if not 0 <= delta < 1:
        raise InputError(f"delta lies in [0, 1), got {delta!r}")
    if METHODS[name].needs_delta and delta < SMALLEST_DELTA:
        raise InputError(
            f"delta: method {name!r} needs at least {SMALLEST_DELTA:g}, got {delta!r}; Gaussian noise has no epsilon at"
            ' delta 0. Use method "clopper-pearson"'
        )
    return METHODS[name]
