# Written by tests/typed/make_stubs.py from the catalog and the native signatures; change nothing here.

from typing import Any, Literal

from numpy.typing import ArrayLike, NDArray

from safexplain.explain.aix360.protodash import HardenedProtoDash
from safexplain.hardening.hardening import Hardening
from safexplain.lime import LimeImageExplainer as LimeImageExplainer
from safexplain.lime import LimeTabularExplainer as LimeTabularExplainer
from safexplain.lime import LimeTextExplainer as LimeTextExplainer

__all__ = ["LimeImageExplainer", "LimeTabularExplainer", "LimeTextExplainer", "ProtodashExplainer"]

class ProtodashExplainer(HardenedProtoDash):
    """AIX360's `ProtodashExplainer` with prototypes from a public set and hardened weights.

    What is lost: the answer no longer shows training cases. It shows the public or synthetic cases that represent the
    explained instances best.

    The prototypes' indices and their order are exact. They depend on the explained rows and the public rows, so they
    tell something about the training set only where one of the two does: features computed by the trained model, or a
    summary of training rows. The weights are hardened for that case.

    Audited and certified (`catalogued`, `from_certificate`) one row at a time. Of p public rows, its numbers are p
    places, (m - i) / m for the i-th prototype and 0 for all others, and then p weights; a service releases which rows
    the prototypes are, in their order, and their weights.

    Args:
        public: candidate prototypes (n, d), n > 2: public, synthetic or otherwise released rows. They leave as they
            are. A copy is kept, as `public`; numbers that are not floating point become float64.
        hardening: of the weights of one answer; None for `Hardening.ranked()`.
        progress: whether a call shows a spinner on standard error where that is a terminal.

    Attributes:
        public: the candidates, read-only; the prototypes of an answer are `public[S]`.

    Raises:
        ConfigurationTypeError: no `public`.
        InputError: `public` is not a finite (n, d) array with n > 2.
    """
    def __init__(self, public: ArrayLike, *, hardening: Hardening | None = None, progress: bool = True) -> None: ...
    def explain(
        self,
        X: ArrayLike,
        Y: ArrayLike | None = None,
        m: int = 10,
        kernelType: Literal["other", "linear", "Gaussian"] = "other",
        sigma: float = 2,
        optimizer: Literal["cvxpy", "osqp"] = "cvxpy",
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]: ...
